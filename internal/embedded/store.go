// Package embedded is the store that needs nothing else: fencing.Step in memory
// behind files: a table of the whole state, and a journal of what was flushed since. They
// belong together.
//
// Operations are decided in their callers' goroutines, one at a time; another goroutine
// flushes what they changed. What is decided during a flush shares the next. An answer
// that a lease, a token or a lost lease depends on is given, and a waiter told of its
// grant, when all that was decided before is on disk; so what is durable is always a
// prefix of what happened. Events leave in the same order.
//
// Some answers don't wait. A release, or one that unwinds a hold: losing it costs
// one TTL, never a promise, for every later request names the depth it means. A
// renewal that does not lengthen the TTL: after a restart every lease that was
// not known to have ended gets its full TTL again. A refusal because of others,
// and all that is about places in the queue and provisional leases: neither
// outlives the process, for the connections of their clients don't.
//
// A flush that fails is final: the file may hold less than memory does, so all
// that is pending fails, nothing is granted any more, and Failed tells the
// owner to end the process.
package embedded

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/fencing"
	"fencepost/internal/fencing/index"
)

const (
	// idlePause is how long Expire tells its caller to rest when nothing is due.
	idlePause = time.Minute

	// gatherPause is how long what nobody waits for, such as a release, gathers
	// for a flush with others. A crash within it costs a TTL.
	gatherPause = 5 * time.Millisecond

	// self is the one gateway of this store. Places and provisional leases don't
	// outlive the process, so it needs no other name at the next start.
	self fencing.Gateway = "embedded"

	// never is when self counts as dead.
	never = fencing.Instant(fencing.MaxToken)
)

// guard goes with what only looks: clock and memory are the gateway's own.
var guard = fencing.Guard{Gateway: self}

// Options says where and how to open a store.
type Options struct {
	Dir    string                 // made with mode 0700 if missing
	Logger *slog.Logger           // nil discards
	Now    func() fencing.Instant // for tests; nil is the machine's clock, monotonic while the process lives

	MaxHolders int // of one name: see fencing.Guard; 0 is any number

	files       files        // for tests; nil is the system's
	beforeFlush func() error // for tests: a flush that fails
	afterFlush  func()       // for tests: what is durable by now
	stepLimit   int          // for tests: see fencing.Guard; only Expire and Heartbeat go on then
	segment     int64        // for tests: the least size of a segment of the journal; 0 is leastSegment
}

// Store is a fencing.Store in one directory.
type Store struct {
	log      *slog.Logger
	now      func() fencing.Instant
	disk     *disk         // flushAll's
	wake     chan struct{} // holds one when flushAll is to look for something to do
	ended    chan struct{} // closed when flushAll has ended
	failed   chan struct{} // closed when a flush has failed
	close    sync.Once
	listener atomic.Pointer[fencing.Listener]
	watchers *watchers
	guard    fencing.Guard // goes with every operation

	mu         sync.RWMutex // held to decide; by readers to look at state and index
	state      *fencing.State
	index      *index.Index
	tombstones dueTombstones
	histories  *histories
	unfinished map[fencing.Name]bool // a step has left something to do: fencing.StepLimit
	next       *batch                // gathers
	flushing   *batch                // is under way; nil if none is
	flushed    fencing.Instant       // when the last flush began
	gathered   *time.Timer           // until next has gathered for long enough
	gathering  bool                  // gathered runs
	ending     bool                  // Close has been called: nothing is decided any more
	cause      error                 // why the store has failed; set before failed is closed
	unclean    error                 // why there was no clean end, though no flush had failed; set before ended is closed
}

var _ fencing.Store = (*Store)(nil)

// Open opens or makes the store in o.Dir. It fails if another process has it
// open, if the file is damaged or of another format, or on any error of the
// file system.
func Open(o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = steadyClock()
	}
	d, err := openDisk(o)
	if err != nil {
		return nil, datadir.Explained(o.Dir, err)
	}
	l, err := d.load(o.Now())
	if err == nil {
		err = d.begin()
	}
	if err != nil {
		return nil, datadir.Explained(o.Dir, errors.Join(err, d.close()))
	}
	l.state.Gateways.Seen[self] = never
	s := &Store{
		log: o.Logger, now: o.Now, disk: d, state: l.state, index: index.New(l.state), tombstones: newTombstones(l.state),
		watchers: newWatchers(), histories: newHistories(),
		guard: fencing.Guard{Gateway: self, StepLimit: o.stepLimit, MaxHolders: o.MaxHolders}, unfinished: map[fencing.Name]bool{},
		wake: make(chan struct{}, 1), ended: make(chan struct{}), failed: make(chan struct{}), next: newBatch(),
	}
	s.gathered = time.AfterFunc(gatherPause, s.gatheredEnough)
	s.histories.restore(l.state, l.last)
	go s.flushAll()
	return s, nil
}

// steadyClock returns a clock that starts at the wall clock and from then on
// follows the monotonic one: no step of the wall clock ends a lease early.
func steadyClock() func() fencing.Instant {
	start := time.Now()
	return func() fencing.Instant { return fencing.InstantOf(start.Add(time.Since(start))) }
}

// Failed is closed when a flush has failed; Cause then says why. The process is
// to end with an error: restarting reads what is durable.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Cause returns why the store has failed, nil if it has not.
func (s *Store) Cause() error {
	select {
	case <-s.failed:
		return s.cause
	default:
		return nil
	}
}

// Do implements fencing.Store. It shows and judges only what is durable.
func (s *Store) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	if !fencing.Served(op) {
		return fencing.Outcome{}, fencing.UnservedError(op)
	}
	return s.do(ctx, op)
}

// Expire implements fencing.Store.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	var expiry fencing.Expiry
	err := s.decide(ctx, func() (wait bool) {
		expiry = s.expire(limit)
		return true
	})
	if err != nil {
		return fencing.Expiry{}, err
	}
	return expiry, nil
}

// Listen implements fencing.Store. No message or answer is lost, and nothing is forgotten
// while the process lives: there is never a Gap, and nothing that a heartbeat would tell.
func (s *Store) Listen(l fencing.Listener) { s.listener.Store(&l) }

// Capabilities implements fencing.Store.
func (s *Store) Capabilities() fencing.Capabilities { return fencing.Capabilities{Queue: true} }

// Heartbeat implements fencing.Store. The gateway lives as long as the store does.
func (s *Store) Heartbeat(ctx context.Context, names []fencing.Name) error {
	return s.decide(ctx, func() (wait bool) {
		s.beat(names)
		return false
	})
}

// Watch implements fencing.Store. Events are of what is durable, and none is lost
// but with the process: there is never a Gap.
func (s *Store) Watch(sink fencing.EventSink) (stop func()) { return s.watchers.Add(sink) }

// Stats implements fencing.Store.
func (s *Store) Stats(context.Context) (fencing.Stats, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fencing.Stats{Held: s.index.Held()}, nil
}

// Examine implements fencing.Store. A write that fails ends the gateway, so all that could
// be at fault while it serves is that there is little room for the next ones.
func (s *Store) Examine(context.Context) ([]fencing.Finding, error) {
	return append([]fencing.Finding{{
		Check: "durability", OK: true, Detail: "grants are on disk before they are answered",
	}}, examineRoom(s.disk.dir)...), nil
}

// Check implements fencing.Store: it waits for the flush under way, so it notices a
// flush that hangs as well as one that failed.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.Expire(ctx, 0)
	return err
}

// Close implements fencing.Store. What was decided before is flushed and answered. An error
// says that the next start has to read the journal; so does Failed, where it was a flush that failed.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		s.gathered.Stop()
		s.mu.Lock()
		s.ending = true
		s.scheduleFlush()
		s.mu.Unlock()
		<-s.ended
		err = errors.Join(s.unclean, s.disk.close())
	})
	return err
}
