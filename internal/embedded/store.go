// Package embedded is the store that needs nothing else: fencing.Step in memory
// behind a durable log in one file.
//
// One goroutine decides operations, another flushes what they changed; what is
// decided during a flush shares the next. An answer that a lease, a token or a
// lost lease depends on is given when all that was decided before it is on disk;
// so what is durable is always a prefix of what happened. Two answers don't
// wait: a release (losing it costs one TTL, never a promise) and a renewal that
// does not lengthen the TTL, for after a restart every lease that was not known
// to have ended gets its full TTL again.
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
	"time"

	"fencepost/internal/fencing"
)

const (
	// queueLen is how many operations can wait to be decided; callers beyond it
	// wait to queue.
	queueLen = 1024

	// idlePause is how long Expire tells its caller to rest when nothing is due.
	idlePause = time.Minute
)

// Options says where and how to open a store.
type Options struct {
	Dir    string                 // made with mode 0700 if missing
	Logger *slog.Logger           // nil discards
	Now    func() fencing.Instant // for tests; nil is the machine's clock, monotonic while the process lives

	beforeCommit func() error // for tests: a flush that fails
	afterCommit  func()       // for tests: what is durable by now
}

// Store is a fencing.Store in one file.
type Store struct {
	log     *slog.Logger
	now     func() fencing.Instant
	disk    *disk
	queue   chan *call
	closed  chan struct{}   // closed by Close: no new calls
	ended   chan struct{}   // closed when nothing is decided any more
	failed  chan struct{}   // closed when a flush has failed
	cause   error           // why; set before failed is closed
	flushed fencing.Instant // when the last flush began; decideAll's
	close   sync.Once

	mu    sync.RWMutex // held to change state and index by decide, readers to look
	state *fencing.State
	index *index
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
		return nil, err
	}
	state, err := d.load(o.Now())
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	s := &Store{
		log: o.Logger, now: o.Now, disk: d, state: state, index: newIndex(state),
		queue: make(chan *call, queueLen), closed: make(chan struct{}), ended: make(chan struct{}), failed: make(chan struct{}),
	}
	go s.decideAll()
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

// Acquire implements fencing.Store.
func (s *Store) Acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	return s.do(ctx, r)
}

// Renew implements fencing.Store.
func (s *Store) Renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, error) {
	return s.do(ctx, r)
}

// Release implements fencing.Store.
func (s *Store) Release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	return s.do(ctx, r)
}

// TakeBack implements fencing.Store.
func (s *Store) TakeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, error) {
	return s.do(ctx, r)
}

// Break implements fencing.Store.
func (s *Store) Break(ctx context.Context, r fencing.BreakRequest) (fencing.Outcome, error) {
	return s.do(ctx, r)
}

// Inspect implements fencing.Store. It shows only what is durable.
func (s *Store) Inspect(ctx context.Context, r fencing.InspectRequest) (fencing.Outcome, error) {
	return s.do(ctx, r)
}

// Expire implements fencing.Store.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	c := newCall(ctx, nil)
	c.limit = limit
	if err := s.submit(c); err != nil {
		return fencing.Expiry{}, err
	}
	return c.expiry, nil
}

// List implements fencing.Store. It may show a grant that is not durable yet.
func (s *Store) List(_ context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	if err := s.Cause(); err != nil {
		return fencing.ListPage{}, fencing.Unavailable(err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.list(s.state, s.now(), r), nil
}

// Stats implements fencing.Store.
func (s *Store) Stats(context.Context) (fencing.Stats, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fencing.Stats{Held: s.index.held.Len()}, nil
}

// Check implements fencing.Store: it waits for the flush under way, so it notices a
// flush that hangs as well as one that failed.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.Expire(ctx, 0)
	return err
}

// Close implements fencing.Store. What was submitted before is still decided.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		close(s.closed)
		<-s.ended
		err = s.disk.close()
	})
	return err
}

// call is an operation on its way.
type call struct {
	ctx    context.Context
	op     fencing.Op // nil: Expire
	limit  int        // of Expire
	out    fencing.Outcome
	expiry fencing.Expiry
	err    error // the store failed
	done   chan struct{}
}

func newCall(ctx context.Context, op fencing.Op) *call {
	return &call{ctx: ctx, op: op, done: make(chan struct{})}
}

func (s *Store) do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	c := newCall(ctx, op)
	if err := s.submit(c); err != nil {
		return fencing.Outcome{}, err
	}
	return c.out.Result()
}

var errClosed = errors.New("the store is closed")

// submit has a call decided and waits for its answer.
func (s *Store) submit(c *call) error {
	select {
	case <-s.closed:
		return fencing.Unavailable(errClosed)
	default:
	}
	select {
	case s.queue <- c:
	case <-c.ctx.Done():
		return fencing.Unavailable(c.ctx.Err())
	case <-s.ended:
		return fencing.Unavailable(errClosed)
	}
	select {
	case <-c.done:
	case <-c.ctx.Done():
		return fencing.Unavailable(c.ctx.Err())
	case <-s.ended:
		select {
		case <-c.done: // among the last to be decided
		default:
			return fencing.Unavailable(errClosed)
		}
	}
	if c.err != nil {
		return fencing.Unavailable(c.err)
	}
	return nil
}
