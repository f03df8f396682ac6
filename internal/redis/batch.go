package redis

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// maxBatch bounds how many commands go out together, in one call or several.
const maxBatch = 512

// maxOrphans bounds how many commands of a batcher wait whose callers have left, when one has
// been answered or has failed. What is dropped beyond that is done again: by whoever was told that
// it is not known what came of it, by the watchdog, or by time.
const maxOrphans = 8 * maxBatch

// batchers is how many batches are under way at a node at once. What a request asks about a name
// always goes by the same batcher, so it is run in the order in which it was asked. Heartbeats,
// expiries and lists go beside them (doAll), in any order with these.
// Two keep Redis busy while answers are read: on an idle machine 64 callers had 1.3 times
// the pairs of one call a request, against 1.15 with one batcher; with 256, 1.2
// and 1.25.
const batchers = 2

// batcher sends commands in batches. A command that finds nothing under way goes out at once;
// others queue, and all that did go out together when the answer arrives. So a
// lone caller waits for nobody, and the batches grow with the load by
// themselves.
type batcher struct {
	*sender
	node        *node
	maxInFlight int            // batches under way at once: one, but for comparison in benchmarks
	orphaned    func(*command) // takes the answer where the caller has left

	mu       sync.Mutex
	queue    []*command
	inFlight int
	closed   error         // why, if it is
	idle     chan struct{} // closed when closed and nothing is under way
}

// submit sends c, now or with the next batch; c.done tells when the answer is
// there. It reports false when the store is closed. Where only the node is
// retired, c fails and may be tried again.
func (b *batcher) submit(c *command) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.closed {
	case nil:
	case errRetired:
		c.err = errRetired
		c.done <- struct{}{}
		return true
	default:
		return false
	}
	c.awaited.Store(true)
	if b.inFlight < b.maxInFlight {
		b.inFlight++
		go b.run(c)
		return true
	}
	b.queue = append(b.queue, c)
	return true
}

// run sends first, and then whatever has queued up meanwhile until nothing has.
func (b *batcher) run(first *command) {
	batch := []*command{first}
	for len(batch) > 0 {
		b.send(b.node, batch)
		for i, c := range batch {
			batch[i] = nil
			if c.awaited.CompareAndSwap(true, false) {
				c.done <- struct{}{}
			} else {
				b.orphaned(c)
			}
		}
		batch = b.next(batch[:0])
	}
}

// next moves the next batch into spare; an empty one ends the run. What nobody
// waits for any more is dropped: behind a Redis that hangs it would pile up.
func (b *batcher) next(spare []*command) []*command {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch, n := spare, 0
	for _, c := range b.queue {
		if len(batch) == maxBatch {
			break
		}
		if c.awaited.Load() || c.outlives(b.member) {
			batch = append(batch, c)
		}
		n++
	}
	left := copy(b.queue, b.queue[n:])
	clear(b.queue[left:])
	b.queue = b.queue[:left]
	b.dropOrphans()
	if len(batch) == 0 {
		b.inFlight--
		if b.closed != nil && b.inFlight == 0 {
			close(b.idle)
		}
	}
	return batch
}

// dropOrphans drops what nobody waits for any more and need not be sent, or is too much. The
// mutex is held.
func (b *batcher) dropOrphans() {
	if len(b.queue) <= maxOrphans {
		return
	}
	kept := 0
	b.queue = slices.DeleteFunc(b.queue, func(c *command) bool {
		if c.awaited.Load() {
			return false
		} else if !c.outlives(b.member) || kept == maxOrphans {
			return true
		}
		kept++
		return false
	})
}

// close refuses new commands, with errRetired in a way that has them tried
// again, and waits for those that are queued or under way.
func (b *batcher) close(reason error) {
	b.mu.Lock()
	if b.closed == nil {
		b.closed = reason
		if b.inFlight == 0 {
			close(b.idle)
		}
	}
	b.mu.Unlock()
	<-b.idle
}

// sender sends batches of commands. It belongs to the store, not to a node: the
// floor of a partition goes with it to the next master.
type sender struct {
	clock      func() time.Time
	now        func() fencing.Instant // the store's clock; nil to leave it to Redis
	rediscover func()                 // called when an answer suggests that another node is the master
	floors     []atomic.Int64         // by partition
	keys       []keyspace
	header     header // but for what differs by call
	most       int    // operations of a call

	member bool // of a quorum, which undoes what it must not leave behind, and again
	acks   int  // replicas that have to confirm what grants
}

// calls puts commands together, those of each partition in order, just before they are
// sent to n: time that passed in a queue is no skew.
func (s *sender) calls(n *node, batch []*command) []*call {
	h, sentAt := s.header, s.clock()
	h.sent = fencing.InstantOf(sentAt)
	if s.now != nil {
		h.now = s.now()
	}
	var all []*call
	var at *call
	open := map[int]*call{} // by partition, where there are several
	for _, c := range batch {
		c.sent, c.sentAt, c.unacked = h.sent, sentAt, s.acks > 0 // until replicas say otherwise
		if c.bad {
			c.err = errText
			continue
		}
		if len(s.keys) > 1 {
			at = open[c.partition]
		}
		if at == nil || len(at.of) == s.most {
			h.floor = fencing.Token(s.floors[c.partition].Load())
			at = &call{key: s.keys[c.partition].never, header: lateHeader{n, h}, of: make([]*command, 0, min(s.most, len(batch)))}
			all = append(all, at)
			if len(s.keys) > 1 {
				open[c.partition] = at
			}
		}
		at.of = append(at.of, c)
	}
	return all
}

// send runs a batch to its end, all by one connection to n: every command has its
// answer or error then. The client's timeouts bound it, not any caller's context:
// the callers differ.
func (s *sender) send(n *node, batch []*command) {
	acked := false
	switch err := n.ready(); {
	case err != nil:
		for _, c := range batch {
			c.err = err
		}
	default:
		acks := s.needsAcks(batch)
		acked = s.exec(context.Background(), n.client, n, s.calls(n, batch), acks) && acks
	}
	received := fencing.InstantOf(s.clock())
	moved := false
	for _, c := range batch {
		c.received, c.unacked = received, c.unacked && !acked
		if c.err != nil {
			moved = moved || mayHaveMoved(c.err)
			if errors.Is(c.err, goredis.ErrClosed) && n.retired() {
				c.err = errRetired
			}
		}
	}
	if moved {
		s.rediscover()
	}
}

// raiseFloor raises the floor of a partition to a token that was issued there.
func (s *sender) raiseFloor(partition int, token fencing.Token) {
	raiseTo(&s.floors[partition], int64(token))
}

// raiseTo sets a number that only grows to another one, if that is higher.
func raiseTo(number *atomic.Int64, to int64) {
	for old := number.Load(); old < to && !number.CompareAndSwap(old, to); old = number.Load() {
	}
}
