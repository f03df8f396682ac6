package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
)

// Options say how to ask the nodes. A zero field has its default.
type Options struct {
	MaxSkew     time.Duration    // largest difference between clocks, as the nodes guard it; default 1 s
	NodeTimeout time.Duration    // for one request to one node; default 250 ms
	LongestTTL  time.Duration    // a node that forgot does not vote for so long at least; default 30 s
	Logger      *slog.Logger     // default: slog.Default
	Clock       func() time.Time // the gateway's clock, monotonic in differences; default time.Now

	// Passive is for who only looks: no node is taken into service.
	Passive bool

	// Names that nodes are called by, in logs and findings; default 1, 2, 3.
	Names []string

	// For tests.
	tick  time.Duration // between looks at what the nodes remember
	pause time.Duration // five times the first one of who tries again
	exact bool          // a lease lasts as long as the nodes say, and may be as short as they allow
}

const (
	defaultTick        = time.Second
	defaultPause       = 50 * time.Millisecond
	defaultNodeTimeout = 250 * time.Millisecond

	// longTimeout is for one request to one node that looks at all it has.
	longTimeout = 2 * time.Second

	// immediateTries is how often a request that met others in the act is tried before it
	// counts as refused.
	immediateTries = 4
)

// Store is a fencing.Store on a majority of nodes.
type Store struct {
	options Options
	nodes   []fencing.Node
	log     *slog.Logger
	self    fencing.Gateway

	seen     atomic.Int64  // the highest token that was proposed here, or issued by a node
	suspect  []atomic.Bool // nodes whose last request failed
	events   events
	streams  streams
	enrolled chan struct{} // closed when nodes were taken into service for the first time, as far as could be
	busy     atomic.Int64  // goroutines at work, but for those that wait for a time to come; for tests

	mu       sync.Mutex // guards what follows
	closed   bool
	close    sync.Once
	closeErr error // of the nodes
	closing  chan struct{}
	work     sync.WaitGroup
	calls    map[leaseKey]*leaseCalls
	undos    undos
}

var _ fencing.Store = (*Store)(nil)

// Open returns a store on nodes, an odd number from fencing.MinNodes to MaxNodes. It closes
// them when it is closed, and not if it fails.
func Open(nodes []fencing.Node, o Options) (*Store, error) {
	if n := len(nodes); n < fencing.MinNodes || n > fencing.MaxNodes || n%2 == 0 {
		return nil, fmt.Errorf("a quorum has an odd number of nodes from %d to %d, not %d", fencing.MinNodes, fencing.MaxNodes, n)
	}
	o.MaxSkew = cmp.Or(o.MaxSkew, time.Second)
	o.NodeTimeout = cmp.Or(o.NodeTimeout, defaultNodeTimeout)
	o.LongestTTL = cmp.Or(o.LongestTTL, fencing.DefaultBounds().DefaultTTL)
	o.tick, o.pause = cmp.Or(o.tick, defaultTick), cmp.Or(o.pause, defaultPause)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Clock == nil {
		o.Clock = time.Now
	}
	for i := len(o.Names); i < len(nodes); i++ {
		o.Names = append(o.Names, fmt.Sprint(i+1))
	}
	s := &Store{
		options: o, nodes: nodes, log: o.Logger, self: fencing.Gateway(fencing.NewStamp()),
		suspect: make([]atomic.Bool, len(nodes)), closing: make(chan struct{}), enrolled: make(chan struct{}),
		calls: map[leaseKey]*leaseCalls{}, undos: undos{underWay: map[requestKey]int{}, retryStamps: map[requestKey]retryStamp{}},
	}
	s.events.store = s
	s.streams.store, s.streams.replaced = s, map[nameStamp]*counted{}
	if s.options.Passive {
		close(s.enrolled)
	} else {
		s.spawn(s.watchNodes)
	}
	return s, nil
}

// Capabilities implements fencing.Store. Nothing waits at the nodes, but heartbeats tell of streams.
func (s *Store) Capabilities() fencing.Capabilities { return fencing.Capabilities{Tells: true} }

// Do implements fencing.Store. It serves nothing that only a queue takes.
func (s *Store) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	switch r := op.(type) {
	case fencing.AcquireRequest:
		return resultOf(s.acquire(ctx, r))
	case fencing.RenewRequest:
		return resultOf(s.renew(ctx, r))
	case fencing.ReleaseRequest:
		return resultOf(s.release(ctx, r))
	case fencing.TakeBackRequest:
		return resultOf(s.takeBack(ctx, r))
	case fencing.BreakRequest:
		return resultOf(s.breakLease(ctx, r))
	case fencing.AdmitRequest:
		return s.admit(ctx, r)
	case fencing.JudgeRequest:
		return s.judge(ctx, r)
	case fencing.InspectRequest:
		return s.inspect(ctx, r)
	case fencing.HistoryRequest:
		return s.history(ctx, r)
	case fencing.ConfirmRequest, fencing.LeaveRequest, fencing.EvictRequest:
		return resultOf(fencing.Outcome{}, fencing.NoQueueError())
	}
	return fencing.Outcome{}, fencing.UnservedError(op)
}

// spawn runs f in a goroutine that Close waits for, unless the store is closed.
func (s *Store) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.spawnLocked(f)
	return true
}

// spawnLocked runs f in a goroutine that Close waits for. The caller holds mu, and the store
// is not closed.
func (s *Store) spawnLocked(f func()) {
	s.busy.Add(1)
	s.work.Go(func() {
		defer s.busy.Add(-1)
		f()
	})
}

var errClosed = errors.New("the store is closed")

// Close ends what goes on in the background, which takes a few NodeTimeouts, or the 2 s of a heartbeat to a node
// that does not answer, and closes the nodes.
func (s *Store) Close() error {
	s.close.Do(func() {
		s.mu.Lock()
		s.closed = true
		close(s.closing)
		s.mu.Unlock()
		s.work.Wait()
		for _, node := range s.nodes {
			s.closeErr = errors.Join(s.closeErr, node.Close())
		}
	})
	return s.closeErr
}

// usable returns why nothing can be asked: the caller has gone, or the store is
// closed.
func (s *Store) usable(ctx context.Context) *fencing.Error {
	if ctx.Err() != nil {
		return fencing.Unavailable(context.Cause(ctx))
	}
	select {
	case <-s.closing:
		return fencing.Unavailable(errClosed)
	default:
		return nil
	}
}

// call gives a request to one node its time. A caller that leaves does not end it.
func (s *Store) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), s.options.NodeTimeout)
}

// longCall is call for what nobody waits for at a lock.
func (s *Store) longCall() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), max(s.options.NodeTimeout, longTimeout))
}

// idle is pause for a goroutine of the store that has nothing to do until then.
func (s *Store) idle(d time.Duration) bool {
	s.busy.Add(-1)
	defer s.busy.Add(1)
	return s.pause(d)
}

// pause waits for d; it reports false if the store was closed meanwhile.
func (s *Store) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.closing:
		return false
	}
}

// mark notes whether a node answers.
func (s *Store) mark(node int, err error) {
	failed := err != nil && asError(err).Code == fencing.CodeUnavailable
	if s.suspect[node].Load() != failed {
		s.suspect[node].Store(failed)
	}
}

// suspects returns the nodes that are not asked for leases now, for they have not
// answered lately: those who compete would wait for them while each has some of the
// others. watchNodes finds out when they answer again. If it is not a minority, all
// are asked: perhaps it was the gateway that stood still.
func (s *Store) suspects() nodeSet {
	var set nodeSet
	n := 0
	for i := range s.suspect {
		if s.suspect[i].Load() {
			set |= 1 << i
			n++
		}
	}
	if n > len(s.nodes)-majorityOf(len(s.nodes)) {
		return 0
	}
	return set
}

// raiseTo sets a number that only grows to another one, if that is higher.
func raiseTo(number *atomic.Int64, to int64) {
	for old := number.Load(); old < to && !number.CompareAndSwap(old, to); old = number.Load() {
	}
}

// resultOf is what Do returns.
func resultOf(out fencing.Outcome, err *fencing.Error) (fencing.Outcome, error) {
	if err != nil {
		out.Err = err
	}
	return out.Result()
}

// asError returns what a node's error says, nil for none.
func asError(err error) *fencing.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*fencing.Error](err); ok {
		return e
	}
	return fencing.Unavailable(err)
}

// answer is what one node said.
type answer[R any] struct {
	node int
	out  R
	err  *fencing.Error
}

// ask asks all nodes at once and hands out the answers as they come, one for each,
// until enough says that it has enough. The rest goes on in the background.
func ask[R any](ctx context.Context, s *Store, do func(context.Context, fencing.Node) (R, error), enough func(answer[R]) bool) *fencing.Error {
	return askWithin(ctx, s, s.call, do, enough)
}

// askMajority asks all nodes at once and hands out what they say as it comes, until heard
// says that it has enough, which a majority may be, or all have answered. It fails if no
// majority does, with what most of the others say.
func askMajority[R any](ctx context.Context, s *Store, within func() (context.Context, context.CancelFunc), do func(context.Context, fencing.Node) (R, error), heard func(node int, out *R, majority bool) bool) *fencing.Error {
	votes, answered := make([]vote, len(s.nodes)), 0
	err := askWithin(ctx, s, within, do, func(a answer[R]) bool {
		if a.err != nil {
			votes[a.node] = vote{standing: against, err: a.err}
			return false
		}
		answered++
		return heard(a.node, &a.out, answered >= majorityOf(len(s.nodes)))
	})
	if err == nil && answered < majorityOf(len(s.nodes)) {
		err = commonest(votes)
	}
	return err
}

func askWithin[R any](ctx context.Context, s *Store, within func() (context.Context, context.CancelFunc), do func(context.Context, fencing.Node) (R, error), enough func(answer[R]) bool) *fencing.Error {
	return askBy(ctx, s, func(_ int, f func()) bool { return s.spawn(f) }, within, do, enough)
}

// askBy is ask for who says how a goroutine is begun, and how long a request may take.
func askBy[R any](ctx context.Context, s *Store, begin func(node int, f func()) bool, within func() (context.Context, context.CancelFunc), do func(context.Context, fencing.Node) (R, error), enough func(answer[R]) bool) *fencing.Error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	answers := make(chan answer[R], len(s.nodes))
	for i, node := range s.nodes {
		if !begin(i, func() {
			call, cancel := within()
			defer cancel()
			out, err := do(call, node)
			answers <- answer[R]{i, out, asError(err)}
		}) {
			return fencing.Unavailable(errClosed)
		}
	}
	for range s.nodes {
		select {
		case a := <-answers:
			if enough(a) {
				return nil
			}
		case <-ctx.Done():
			return fencing.Unavailable(context.Cause(ctx))
		}
	}
	return nil
}
