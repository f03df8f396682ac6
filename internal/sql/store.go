package sql

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

const (
	// connectTimeout bounds how long it takes to open a connection, and openTimeout to open a store that has much to read.
	connectTimeout = 4 * time.Second
	openTimeout    = 2 * time.Minute

	// patience bounds how long a caller waits for the database.
	patience = 5 * time.Second
)

var errClosed = errors.New("the store is closed")

// Store is a fencing.Store in a database.
type Store struct {
	options    Options
	log        *slog.Logger
	db         database
	gateway    fencing.Gateway
	batch      machine.Batch // an empty one of this gateway
	listener   atomic.Pointer[fencing.Listener]
	watchers   fencing.Watchers
	losses     atomic.Int64
	panics     atomic.Int64
	turnsEnded atomic.Int64 // sessions of gateways that stood still in their turn
	inUse      atomic.Int64 // the longest TTL in use that this gateway knows of, nanoseconds

	waitsUntil atomic.Int64          // somebody waits here, or has a stream, until then, as far as is known: nanoseconds since 1970
	out        atomic.Pointer[error] // why the database can't be asked; nil while it can

	wants     atomic.Bool            // a turn is waited for
	waitsLong chan struct{}          // holds one when that takes long
	lockedBy  atomic.Pointer[string] // who has the store locked, in words, when that was last looked for; nil: nobody

	queue queue

	mu     sync.RWMutex // held by who changes memory: in a turn until its commit is decided
	memory memory

	// What follows is run's.
	conn       connection // nil while there is none
	guarded    []*item    // those that a transaction keeps waiting
	introduced bool       // the log says which version writes
	failing    bool       // the last turn has failed
	unwritten  int        // bytes of one that has, and was to write something, and nothing was written since; 0: something was
	lastApart  time.Time  // when a turn was last refused for what one item asks for
	taken      row        // the last row that this gateway has written; the zero row: none
	lastTaken  time.Time  // when the database was last seen to take the probe, behind a refusal from which that could not be told
	lastGiven  time.Time  // when one was that granted something to who waited
	arrives    bool       // the log is to say who serves
	forgot     bool       // the log is to say that something was lost
	lastFound  fencing.Instant
	served     string          // who served the last turn
	floor      fencing.Token   // the highest that this gateway knows of
	longest    time.Duration   // the longest TTL in use that it knows of
	lastNow    fencing.Instant // the database's clock
	lastSeen   time.Time       // when it was read, or later
	lastOther  time.Time       // when another gateway was last seen to have done anything
	lastSkewed bool            // the clocks differed in the last turn
	resting    resting
	opened     time.Time
	tidied     bool      // what gateways that were gone before this one was opened have left of snapshots is removed
	said       time.Time // when this gateway last said which rules it knows

	rules atomic.Pointer[fencing.Finding] // which are in force; nil until this gateway has said which it knows

	hints  *hints         // nil if the database passes none on
	hinted atomic.Bool    // this gateway hears them
	saving sync.Mutex     // held by who writes a snapshot, or tidies
	work   sync.WaitGroup // for it, and for who passes hints on
	failed chan struct{}  // closed when the store can't go on
	fault  sync.Once
	cause  error // set before failed is closed

	ctx     context.Context // of all that goes on until Close
	cancel  context.CancelFunc
	closing chan struct{} // closed by Close
	ended   chan struct{} // closed when run has ended
	close   sync.Once
}

var _ fencing.Store = (*Store)(nil)

// Open opens the store in a database. It reads all that the store has, and fails unless it can: the URL is at fault, the database
// can't be reached, refuses the user or has no tables of this version, or the log can't be carried out by this version.
func Open(ctx context.Context, o Options) (*Store, error) {
	db, err := newDatabase(o.URL)
	if err != nil {
		return nil, err
	}
	if o.wrap != nil {
		db = o.wrap(db)
	}
	o.complete()
	gateway := newGateway()
	s := &Store{
		options: o, log: o.Logger, db: db, gateway: gateway, queue: newQueue(), opened: time.Now(),
		batch:     machine.Batch{Gateway: string(gateway), MaxHolders: o.MaxHolders, StepLimit: o.stepLimit, MaxSkew: int64(o.MaxSkew)},
		waitsLong: make(chan struct{}, 1), failed: make(chan struct{}), closing: make(chan struct{}), ended: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if s.conn, err = s.connect(ctx); err == nil {
		s.memory, err = load(ctx, s.conn, mark{}, &o)
		if err != nil {
			s.conn.close()
		} else {
			s.memory.GiveBack()
		}
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.passHints()
	s.work.Go(s.watchHolders)
	go s.run()
	return s, nil
}

func newGateway() fencing.Gateway {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return fencing.Gateway(hex.EncodeToString(b[:]))
}

func (s *Store) connect(ctx context.Context) (connection, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := s.db.connect(ctx)
	if err != nil {
		return nil, err
	}
	return within(conn), nil
}

// Do implements fencing.Store.
func (s *Store) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	if !fencing.Served(op) {
		return fencing.Outcome{}, fencing.UnservedError(op)
	}
	if admit, admits := op.(fencing.AdmitRequest); admits {
		out, err := view(ctx, s, func(l *looked) (out fencing.Outcome) {
			if unmoved, known := l.machine.Unmoved(admit, l.now, l.guard); known {
				out, out.Asked = unmoved, l.asked
			}
			return out
		})
		if err != nil || !out.Asked.IsZero() {
			return result(out, err)
		}
	}
	if fencing.OnlyLooks(op) {
		out, err := settledView(ctx, s, op.LockName(), func(l *looked) (out fencing.Outcome) {
			if l.guard.Sent != 0 || !l.machine.Doubtful(op.LockName()) {
				out = l.machine.Look(op, l.now, l.guard)
				out.Asked = l.asked
			}
			return out
		})
		if err != nil || !out.Asked.IsZero() {
			return result(out, err)
		} // else it puts right what was written while clocks differed
	}
	encoded := machine.EncodeOp(op)
	for {
		it := &item{ops: []operation{{op, encoded}}}
		if err := s.await(ctx, it); err != nil {
			return fencing.Outcome{}, err
		}
		out := it.results[0].Out
		out.Asked = it.asked
		if !out.AskAgain() || s.options.stepLimit != 0 {
			return out.Result()
		}
	}
}

func result(out fencing.Outcome, err error) (fencing.Outcome, error) {
	if err != nil {
		return fencing.Outcome{}, err
	}
	return out.Result()
}

// List implements fencing.Store. It shows locks at more than one instant: see machine.Page.
func (s *Store) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	type beginning struct {
		now   fencing.Instant
		guard fencing.Guard
		total int
	}
	at, err := settledView(ctx, s, "", func(l *looked) beginning {
		at := beginning{now: l.now, guard: l.guard}
		if r.Count {
			at.total = l.machine.HeldBelow(r.Prefix)
		}
		return at
	})
	if err != nil {
		return fencing.ListPage{}, err
	}
	page := machine.Page(r, func(v machine.View, after fencing.Name) ([]*fencing.Lock, bool) {
		if err != nil {
			return nil, false
		}
		v.Now, v.Guard = at.now, at.guard
		locks, more := []*fencing.Lock(nil), false
		err = s.peek(ctx, func() { locks, more = s.memory.Views(v, after) })
		return locks, more
	})
	if err != nil {
		return fencing.ListPage{}, err
	}
	page.Total = at.total
	return page, nil
}

// Expire implements fencing.Store.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	it := &item{due: func(m *machine.Machine, now fencing.Instant, guarded map[fencing.Name]bool) (ops []operation) {
		for _, name := range m.Due(now, limit+len(guarded)) {
			if !guarded[name] && len(ops) < min(limit, machine.MostOps) {
				ops = append(ops, newOperation(fencing.ExpireRequest{Name: name}))
			}
		}
		if limit > 0 && m.PruneDue(now) {
			ops = append(ops, operation{encoded: machine.Prune()})
		}
		return ops
	}}
	var next time.Duration
	var skewed *fencing.Error
	it.look = func(l *looked) {
		if next = l.machine.NextDue(l.now); next == 0 && l.guard.Sent != 0 {
			skewed = fencing.SkewError(l.guard, l.now)
		}
		if l.guarded {
			next = max(next, guardedEvery)
		}
	}
	if err := s.await(ctx, it); err != nil {
		return fencing.Expiry{}, err
	}
	if skewed != nil {
		return fencing.Expiry{}, skewed
	}
	expiry := fencing.Expiry{Next: next}
	for _, r := range append(it.parts, it.results...) {
		expiry.Ended = append(expiry.Ended, r.Out.Ended...)
	}
	return expiry, nil
}

// Listen implements fencing.Store. There is a Gap where memory was read anew.
func (s *Store) Listen(l fencing.Listener) { s.listener.Store(&l) }

// Capabilities implements fencing.Store. What an asynchronous fail-over or a restored backup has forgotten may be grants.
func (s *Store) Capabilities() fencing.Capabilities {
	return fencing.Capabilities{Queue: true, LosesMessages: true, LosesGrants: true, Tells: true}
}

// Heartbeat implements fencing.Store.
func (s *Store) Heartbeat(ctx context.Context, names []fencing.Name) error {
	began := time.Now()
	if len(names) > 0 {
		s.wait()
	}
	it := &item{beats: true, due: func(m *machine.Machine, now fencing.Instant, guarded map[fencing.Name]bool) []operation {
		ops := []operation{{encoded: machine.Beat()}}
		for _, name := range m.DueAmong(names, now) {
			if !guarded[name] && len(ops) < machine.MostOps/2 {
				ops = append(ops, newOperation(fencing.ExpireRequest{Name: name}))
			}
		}
		return ops
	}}
	if err := s.await(ctx, it); err != nil {
		return err
	}
	if err := it.results[0].Out.Err; err != nil {
		return err
	}
	if listener := s.listener.Load(); listener != nil {
		(*listener).Has(names, began, it.results[0].Entries)
	}
	return nil
}

// Watch implements fencing.Store. Events are in one order at all gateways, and have the same ids. There is a Gap as there is
// one of Listen.
func (s *Store) Watch(sink fencing.EventSink) (stop func()) { return s.watchers.Add(sink) }

// Stats implements fencing.Store.
func (s *Store) Stats(ctx context.Context) (fencing.Stats, error) {
	return view(ctx, s, func(l *looked) fencing.Stats { return l.machine.Stats(l.now) })
}

// Check implements fencing.Store: the database can begin a turn, and takes what one writes, as far as can be known before: see tries.
func (s *Store) Check(ctx context.Context) error {
	return s.await(ctx, &item{locks: true})
}

// Examine implements fencing.Store.
func (s *Store) Examine(ctx context.Context) ([]fencing.Finding, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, fencing.Unavailable(err)
	}
	defer conn.close()
	findings, err := examine(ctx, conn, &s.options, time.Duration(s.inUse.Load()))
	if err != nil {
		return nil, fencing.Unavailable(err)
	}
	if f := s.rules.Load(); f != nil {
		findings = append(findings, *f)
	}
	return findings, nil
}

// Losses counts how often the database was found to have forgotten something.
func (s *Store) Losses() int64 { return s.losses.Load() }

// Panics counts the operations that could not be carried out here, for they panicked.
func (s *Store) Panics() int64 { return s.panics.Load() }

// Failed is closed when the store can't go on: what came of the log here is something else than at another gateway, or an entry
// can't be read by this version. Cause then says why. The process is to end with an error.
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

func (s *Store) fail(err error) {
	s.fault.Do(func() {
		s.cause = err
		s.log.Error("the store has failed and stops", "error", err)
		close(s.failed)
	})
}

// Close implements fencing.Store. What was taken up is answered. The log says that this gateway leaves and, if it is the last one or there are few
// locks, a snapshot takes its place. All that takes closeTimeout at most, and giveUpTimeout if a snapshot is given up.
func (s *Store) Close() error {
	s.close.Do(func() {
		close(s.closing)
		s.queue.end()
		hangs := time.AfterFunc(s.options.closesIn, s.cancel)
		<-s.ended
		hangs.Stop()
		s.cancel()
		s.work.Wait()
	})
	return nil
}

// errFailed says why nothing is decided any more.
func (s *Store) errFailed() error { return fmt.Errorf("the store has stopped: %w", s.cause) }
