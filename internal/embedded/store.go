// Package embedded is the store that needs nothing else: machine.Machine in memory, whose log is a file. It is a cluster
// without peers, and its directory may become that of the first node of one.
//
// Operations are decided in their callers' goroutines, one at a time; another goroutine writes down what was asked, as
// entries of the log. What is decided during a flush shares the next. An answer
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
// A flush that fails is final: the log may hold less than memory does, so all
// that is pending fails, nothing is granted any more, and Failed tells the
// owner to end the process. So is a panic in a decision: memory may be half changed, and the log has nothing of it.
package embedded

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/wal"
)

const (
	// idlePause is how long Expire tells its caller to rest when nothing is due. While anybody holds, the log has the time
	// as often: how long a lease was held counts against its bound after a restart, even if the wall clock is set back.
	idlePause = time.Minute

	// gatherPause is how long what nobody waits for, such as a release, gathers
	// for a flush with others. A crash within it costs a TTL.
	gatherPause = 5 * time.Millisecond

	// self is the one gateway of this store. Places and provisional leases don't
	// outlive the process, so it needs no other name at the next start.
	self fencing.Gateway = "embedded"
)

// Options says where and how to open a store.
type Options struct {
	Dir     string                 // made with mode 0700 if missing
	Logger  *slog.Logger           // nil discards
	Now     func() fencing.Instant // for tests; nil is the machine's clock, monotonic while the process lives
	Wall    func() fencing.Instant // for tests: the wall clock; nil is Now, or the machine's
	Version string                 // of the gateway: the log says which one wrote it

	MaxHolders int // of one name: see fencing.Guard; 0 is any number

	Expect bool // Open fails where there is no store, and makes nothing

	files       wal.Files    // for tests; nil is the system's
	free        freeSpace    // for tests; nil is datadir.Free
	beforeFlush func() error // for tests: a flush that fails
	afterFlush  func()       // for tests: what is durable by now
	rules       int          // for tests: the newest that the store knows; 0 is fencing.NewestRules
	stepLimit   int          // for tests: see fencing.Guard; only Expire and Heartbeat go on then
	segment     int64        // for tests: bytes of a file of the log; 0 is wal.DefaultFileSize
	snapshotAt  int          // for tests: bytes of the log after which a snapshot takes its place; 0 is snapshotAfter
}

// freeSpace is how many bytes are free in a directory, if that is known.
type freeSpace = func(dir string) (bytes int64, known bool)

// Store is a fencing.Store in one directory.
type Store struct {
	log       *slog.Logger
	clock     clock
	disk      *directory    // flushAll's, and takeSnapshot's
	wake      chan struct{} // holds one when flushAll is to look for something to do
	ended     chan struct{} // closed when flushAll has ended
	failed    chan struct{} // closed when a flush has failed
	close     sync.Once
	closing   atomic.Bool
	listener  atomic.Pointer[fencing.Listener]
	watchers  fencing.Watchers
	walls     atomic.Pointer[machine.WallSteps]
	guard     fencing.Guard // goes with every operation
	hooks     Options
	run       string // sets the events of this run apart: a copy of the directory, or an empty one, has the same numbers again
	snapshots sync.WaitGroup
	pulse     machine.Pulse // of mu

	mu         sync.RWMutex // held to decide; by readers to look at machine
	machine    *machine.Machine
	next       *batch          // gathers
	flushing   *batch          // is under way; nil if none is
	logged     fencing.Instant // when the last entry began
	gathered   *time.Timer     // until next has gathered for long enough
	gathering  bool            // gathered runs
	grown      int             // bytes of entries since the last snapshot
	saving     *saving         // nil if no snapshot is being written
	quarantine machine.QuarantineLog
	ending     bool  // Close has been called: nothing is decided any more
	cause      error // why the store has failed; set before failed is closed
	unclean    error // why there was no clean end, though no flush had failed; set before ended is closed
}

var _ fencing.Store = (*Store)(nil)

// Open opens or makes the store in o.Dir. It fails if another process has it
// open, if a file is damaged, of another format or by rules that this version does not know, if this version comes to something else than the one that wrote the log, or on any error of the
// file system.
func Open(o Options) (*Store, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := openStore(o)
	if err != nil {
		return nil, datadir.Explained(o.Dir, err)
	}
	go s.flushAll()
	go s.pulse.Watch(&s.mu, s.ended)
	return s, nil
}

func openStore(o Options) (*Store, error) {
	d, err := openDisk(&o)
	if err != nil {
		return nil, err
	}
	s := &Store{
		log: o.Logger, disk: d, hooks: o, run: newRun(),
		guard: fencing.Guard{Gateway: self, StepLimit: o.stepLimit, MaxHolders: o.MaxHolders},
		wake:  make(chan struct{}, 1), ended: make(chan struct{}), failed: make(chan struct{}), next: newBatch(),
	}
	s.machine, err = d.carriedOut()
	if err == nil {
		s.clock, err = goOn(&o, s.machine)
	}
	if err == nil {
		err = s.restart(o.Version)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	s.machine.GiveBack()
	s.gathered = time.AfterFunc(gatherPause, s.gatheredEnough)
	where := disk.Absolute(o.Dir)
	if d.fresh {
		s.log.Warn("a new, empty store was made: there was none in the directory", "directory", where)
	}
	s.log.Info("the store is open", "directory", where, "locks", s.machine.Stats(s.now()).Held, "entry", s.machine.Applied(), "torn_bytes", d.log.Torn())
	return s, nil
}

// newRun names a run of the store.
func newRun() string {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:]) + "-"
}

// restart begins to write: all that remembers this entry gives every lease its TTL anew.
func (s *Store) restart(version string) error {
	now, wall := s.clock.read()
	e := machine.Entry{Term: s.disk.term, Now: int64(now), Wall: int64(wall), Writer: version}
	e.Behind, e.Digest = s.machine.LastDigest()
	if before := s.machine.Rules(); before < s.machine.Known() { // nobody else uses the store, and all behind it was decided by those before
		e.Rules = s.machine.Known()
		s.log.Info("the rules of the store are raised: an earlier version of the gateway that does not know them can't start with it any more", "rules", e.Rules, "before", before)
	}
	e.Batches = []machine.Batch{{Gateway: string(self), Ops: []machine.Op{machine.Restart()}}}
	index, data, err := s.disk.append(s.machine.Applied()+1, &e)
	if err != nil {
		return err
	}
	decoded, err := machine.Decode(data)
	if err != nil {
		return err
	}
	if _, err := s.machine.Apply(index, decoded, &machine.Telling{Quiet: true}, false); err != nil {
		return err
	}
	if err := disk.Begin(s.disk.dir, s.disk.files, s.disk.held); err != nil {
		return err
	}
	s.machine.Ready()
	s.noteWalls()
	s.quarantine.Tell(s.log, s.machine, now)
	s.grown, s.logged = s.disk.behind+len(data), now
	return nil
}

// clock is the time of the log: it goes on from that (see machine.Last), by the monotonic clock: no step of the wall clock
// ends a lease early.
type clock struct {
	now   func() fencing.Instant
	wall  func() fencing.Instant
	ahead time.Duration // of now
}

// newClock returns the clocks of the machine, or those of a test.
func newClock(o *Options) clock {
	c := clock{now: o.Now, wall: o.Wall}
	if c.now == nil {
		start := time.Now()
		c.now = func() fencing.Instant { return fencing.InstantOf(start.Add(time.Since(start))) }
	}
	if c.wall == nil {
		c.wall = o.Now
	}
	if c.wall == nil {
		c.wall = func() fencing.Instant { return fencing.InstantOf(time.Now()) }
	}
	return c
}

// goOn returns the clock of what was recovered. It fails where the wall clock can't be right.
func goOn(o *Options, m *machine.Machine) (clock, error) {
	c := newClock(o)
	from, err := m.Last().GoOnAt(c.wall())
	c.ahead = from.Sub(c.now())
	return c, err
}

// read returns the instant that it is now, and that by the wall clock.
func (c *clock) read() (now, wall fencing.Instant) { return c.now().Add(c.ahead), c.wall() }

func (s *Store) now() fencing.Instant {
	now, _ := s.clock.read()
	return now
}

// Failed is closed when a flush has failed, or a decision has panicked; Cause then says why. The process is
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

// Alive returns why the process is to be started again, nil if it need not: see machine.Pulse. It never waits.
func (s *Store) Alive() error { return s.pulse.Alive() }

// List implements fencing.Store. It returns when all that it shows is durable. It may show locks at
// more than one instant: see machine.Page.
func (s *Store) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	if err := s.Cause(); err != nil {
		return fencing.ListPage{}, fencing.Unavailable(err)
	}
	total := 0
	if r.Count {
		total = s.heldBelow(r.Prefix)
	}
	page := machine.Page(r, func(v machine.View, after fencing.Name) ([]*fencing.Lock, bool) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		v.Now, v.Guard = s.now(), fencing.Guard{Gateway: self}
		return s.machine.Views(v, after)
	})
	page.Total = total
	if err := s.decide(ctx, func() (wait bool) { return true }); err != nil {
		return fencing.ListPage{}, err
	}
	return page, nil
}

func (s *Store) heldBelow(prefix string) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.machine.HeldBelow(prefix)
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
func (s *Store) Capabilities() fencing.Capabilities {
	return fencing.Capabilities{Queue: true, WallTime: func(at fencing.Instant) time.Time { return s.walls.Load().Time(at) }}
}

// noteWalls has times shown by what the log says of the wall clock. The caller holds the mutex, or is alone.
func (s *Store) noteWalls() {
	walls := s.machine.Walls()
	s.walls.Store(&walls)
}

// Heartbeat implements fencing.Store. The gateway lives as long as the store does.
func (s *Store) Heartbeat(ctx context.Context, names []fencing.Name) error {
	return s.decide(ctx, func() (wait bool) {
		for _, name := range s.machine.DueAmong(names, s.next.now) {
			s.attend(name)
		}
		return false
	})
}

// Watch implements fencing.Store. Events are of what is durable, and none is lost
// but with the process: there is never a Gap.
func (s *Store) Watch(sink fencing.EventSink) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next.telling.Watched = true // also if operations of the entry were decided before
	return s.watchers.Add(sink)
}

// Stats implements fencing.Store. It counts what is not durable yet, too: it is for people, and is not to wait for a disk that hangs.
func (s *Store) Stats(context.Context) (fencing.Stats, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.machine.Stats(s.now()), nil
}

// Examine implements fencing.Store. A write that fails ends the gateway, so all that could
// be at fault while it serves is that there is little room for the next ones.
func (s *Store) Examine(context.Context) ([]fencing.Finding, error) {
	return append([]fencing.Finding{{
		Check: "durability", OK: true, Detail: "grants are on disk before they are answered",
	}}, s.disk.room()...), nil
}

// Check implements fencing.Store: it waits for the flush under way, so it notices a
// flush that hangs as well as one that failed.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.Expire(ctx, 0)
	return err
}

// Close implements fencing.Store. What was decided before is flushed and answered, and a snapshot takes the place of the log. An error
// says that the next start has to carry out the log; so does Failed, where a flush had failed before.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		s.closing.Store(true)
		s.gathered.Stop()
		s.mu.Lock()
		healthy := s.cause == nil
		for s.cause == nil && !s.next.empty() && s.machine.Walls().Differs(s.clock.read()) { // that entry says another wall clock
			s.awaitTaken(context.Background())
		}
		if s.cause == nil {
			s.noteTime()
		}
		s.ending = true
		s.scheduleFlush()
		s.mu.Unlock()
		<-s.ended
		if healthy && s.unclean == nil {
			s.unclean = s.Cause()
		}
		err = errors.Join(s.unclean, s.disk.close())
	})
	return err
}
