package redis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// maxBatch bounds how many commands go out together, and with it how long Redis
// serves nobody else.
const maxBatch = 512

// lanes is how many batches are under way at once. A name always goes by the
// same lane, so what is asked about it is run in the order in which it was asked.
// Two keep Redis busy while answers are read: on an idle machine 64 callers had 1.3 times
// the pairs of one EVALSHA a request, against 1.15 with one lane; with 256, 1.2
// and 1.25.
const lanes = 2

// batcher is a lane. A command that finds nothing under way goes out at once;
// others queue, and all that did go out together when the answer arrives. So a
// lone caller waits for nobody, and the batches grow with the load by
// themselves.
type batcher struct {
	*sender
	node     *node
	flights  int            // batches under way at once: one, but for comparison in benchmarks
	orphaned func(*command) // takes the answer where the caller has left

	mu     sync.Mutex
	queue  []*command
	busy   int
	closed error         // why, if it is
	idle   chan struct{} // closed when closed and nothing is under way
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
		c.cmd.SetErr(errRetired)
		c.done <- struct{}{}
		return true
	default:
		return false
	}
	c.awaited.Store(true)
	if b.busy < b.flights {
		b.busy++
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
	if len(batch) == 0 {
		b.busy--
		if b.closed != nil && b.busy == 0 {
			close(b.idle)
		}
	}
	return batch
}

// close refuses new commands, with errRetired in a way that has them tried
// again, and waits for those that are queued or under way.
func (b *batcher) close(reason error) {
	b.mu.Lock()
	if b.closed == nil {
		b.closed = reason
		if b.busy == 0 {
			close(b.idle)
		}
	}
	b.mu.Unlock()
	<-b.idle
}

// sender sends batches of commands. It belongs to the store, not to a node: the
// floor of a partition goes with it to the next master.
type sender struct {
	clock   func() time.Time
	now     func() fencing.Instant // the store's clock; nil to leave it to Redis
	strayed func()                 // called when an answer suggests that another node is the master
	floors  [partitions]atomic.Int64

	guard     any // handle, whether losses are heeded, and MaxSkew in µs, as an argument of scripts
	unsettled any // the same to a server that was not looked at

	member  bool // of a quorum, which undoes what it must not leave behind, and again
	acks    int  // replicas that have to confirm what grants
	ackKeys *[partitions]keyspace
}

// failed gives the error of a pipeline to those commands that have none: the library
// leaves it out where it could get no connection because Redis refused one.
func failed(batch []*command, err error) {
	if err == nil {
		return
	}
	for _, c := range batch {
		if c.cmd.Err() == nil && c.cmd.Val() == nil {
			c.cmd.SetErr(err)
		}
	}
}

// prepare stamps the commands of a batch just before they are sent to n.
func (s *sender) prepare(n *node, batch []*command) (sentAt time.Time) {
	sentAt = s.clock()
	sent := fencing.InstantOf(sentAt)
	var now fencing.Instant
	if s.now != nil {
		now = s.now()
	}
	guard := s.guard
	if !n.settled.Load() {
		guard = s.unsettled
	}
	var loaded [scriptCount]bool
	for _, c := range batch {
		if c.asSource { // once a batch is enough: the script is known from there on
			c.asSource, loaded[c.script.index] = !loaded[c.script.index], true
		}
		c.args[c.guardAt] = guard
		c.prepare(now, sent, s.floors[c.partition].Load())
	}
	return sentAt
}

// send runs a batch to its end, all by one connection to n: every command has its
// answer or error then. The client's timeouts bound it, not any caller's context:
// the callers differ.
func (s *sender) send(n *node, batch []*command) {
	ctx := context.Background()
	sentAt := s.prepare(n, batch)
	if s.acks > 0 {
		for _, c := range batch {
			c.unacked = true // until replicas say otherwise
		}
	}
	switch {
	case n.client == nil:
		for _, c := range batch {
			c.cmd.SetErr(errNowhere)
		}
	case s.needsAcks(batch):
		s.withAcks(ctx, n, batch)
	case len(batch) == 1:
		_ = n.client.Process(ctx, batch[0].cmd) // the command holds its error
	default:
		pipe := n.client.Pipeline()
		for _, c := range batch {
			_ = pipe.Process(ctx, c.cmd)
		}
		_, err := pipe.Exec(ctx)
		failed(batch, err)
	}
	received := fencing.InstantOf(s.clock())
	astray := false
	for _, c := range batch {
		c.sentAt, c.received = sentAt, received
		if err := c.cmd.Err(); err != nil {
			astray = astray || strayed(err)
			if errors.Is(err, goredis.ErrClosed) && n.retired() {
				c.cmd.SetErr(errRetired)
			}
		}
	}
	if astray {
		s.strayed()
	}
}

// saw raises the floor of a partition to a token that was issued there.
func (s *sender) saw(partition int, token fencing.Token) {
	floor := &s.floors[partition]
	for {
		old := floor.Load()
		if int64(token) <= old || floor.CompareAndSwap(old, int64(token)) {
			return
		}
	}
}
