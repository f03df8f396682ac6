package watchdog

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// world is two gateways on one model, on the clock of a synctest bubble.
type world struct {
	t     *testing.T
	dogs  [2]*Watchdog
	wires [2]*wire
	seen  [2]*counts

	streams []*Stream // to be closed at the end
}

// inWorld runs a test in a world whose watchdogs are stopped at its end, and
// checks that they have forgotten everybody.
func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	inWorldWith(t, Options{MaxSkew: time.Second}, test)
}

func inWorldWith(t *testing.T, o Options, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		model := fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(time.Now()) })
		w := &world{t: t, wires: [2]*wire{{Model: model}, {Model: model.Second()}}}
		for i, wire := range w.wires {
			w.seen[i] = &counts{}
			o.Observer = w.seen[i]
			w.dogs[i] = New(wire, o)
			w.dogs[i].Start()
		}
		test(w)
		for _, s := range w.streams {
			s.Close()
		}
		for i, dog := range w.dogs {
			dog.Stop()
			synctest.Wait()
			l := &dog.requests
			if len(l.waiters)+len(l.held)+len(l.queues) != 0 {
				t.Errorf("gateway %d still knows of %d waiters, %d held leases and %d queues", i, len(l.waiters), len(l.held), len(l.queues))
			}
			if len(l.streams)+len(l.attached)+len(l.kept) != 0 {
				t.Errorf("gateway %d still knows of %d streams, of %d and %d names", i, len(l.streams), len(l.attached), len(l.kept))
			}
			if w.seen[i].of("waiting") != 0 {
				t.Errorf("gateway %d counts %d waiters at the end", i, w.seen[i].of("waiting"))
			}
		}
		model.Close()
	})
}

// wire is a store on which calls and messages can be held up, lost and counted.
type wire struct {
	*fencingtest.Model

	mu      sync.Mutex
	calls   map[string]int
	before  func(op string) error // nil lets the call through
	after   func(op string) error // an error takes the place of the answer
	message func(g fencing.Grant, pass func())
	late    func(op string) time.Duration // a call whose caller may have gone when it is made
	mute    bool                          // heartbeats fail
	deaf    bool                          // no events are heard
	unasked bool                          // nobody is told to ask
	unheard bool                          // nobody is told that another request has its lease
	names   []fencing.Name                // of the last heartbeat
}

// Watch implements fencing.Store.
func (w *wire) Watch(sink fencing.EventSink) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deaf {
		return func() {}
	}
	return w.Model.Watch(sink)
}

func (w *wire) set(change func(*wire)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

func (w *wire) count(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[op]
}

func (w *wire) hook(op string, of func(*wire) func(string) error) error {
	w.mu.Lock()
	hook := of(w)
	w.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(op)
}

// call makes a call of the model as the hooks say.
func call[A, R any](ctx context.Context, w *wire, op string, do func(context.Context, A) (R, error), r A) (R, error) {
	var none R
	w.mu.Lock()
	if w.calls == nil {
		w.calls = map[string]int{}
	}
	w.calls[op]++
	late, mute := w.late, w.mute && op == "heartbeat"
	w.mu.Unlock()
	if mute {
		return none, fencing.Unavailable(errCut)
	}
	if err := w.hook(op, func(w *wire) func(string) error { return w.before }); err != nil {
		return none, err
	}
	var out R
	var err error
	if d := delay(late, op); d > 0 {
		type answer struct {
			out R
			err error
		}
		answers := make(chan answer, 1)
		go func() {
			advance(d)
			out, err := do(context.WithoutCancel(ctx), r)
			answers <- answer{out, err}
		}()
		select {
		case a := <-answers:
			out, err = a.out, a.err
		case <-ctx.Done():
			return none, fencing.Unavailable(ctx.Err())
		}
	} else {
		out, err = do(ctx, r)
	}
	if lost := w.hook(op, func(w *wire) func(string) error { return w.after }); lost != nil {
		return none, lost
	}
	return out, err
}

func delay(late func(string) time.Duration, op string) time.Duration {
	if late == nil {
		return 0
	}
	return late(op)
}

func (w *wire) Acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	return call(ctx, w, "acquire", w.Model.Acquire, r)
}

func (w *wire) Renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, error) {
	return call(ctx, w, "renew", w.Model.Renew, r)
}

func (w *wire) Confirm(ctx context.Context, r fencing.ConfirmRequest) (fencing.Outcome, error) {
	return call(ctx, w, "confirm", w.Model.Confirm, r)
}

func (w *wire) Leave(ctx context.Context, r fencing.LeaveRequest) (fencing.Outcome, error) {
	return call(ctx, w, "leave", w.Model.Leave, r)
}

func (w *wire) TakeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, error) {
	return call(ctx, w, "take_back", w.Model.TakeBack, r)
}

func (w *wire) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	return call(ctx, w, "expire", w.Model.Expire, limit)
}

func (w *wire) Heartbeat(ctx context.Context, names []fencing.Name) error {
	_, err := call(ctx, w, "heartbeat", func(ctx context.Context, names []fencing.Name) (struct{}, error) {
		w.set(func(w *wire) { w.names = slices.Clone(names) })
		return struct{}{}, w.Model.Heartbeat(ctx, names)
	}, names)
	return err
}

// beaten returns the names of the last heartbeat.
func (w *wire) beaten() []fencing.Name {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names
}

func (w *wire) Listen(l fencing.Listener) { w.Model.Listen(messages{l, w}) }

// messages passes on what the model says, as the wire lets it.
type messages struct {
	fencing.Listener
	wire *wire
}

func (m messages) Granted(g fencing.Grant, now fencing.Instant, asked time.Time) {
	pass := func() { m.Listener.Granted(g, now, asked) }
	m.wire.mu.Lock()
	deal := m.wire.message
	m.wire.mu.Unlock()
	if deal == nil {
		pass()
		return
	}
	deal(g, pass)
}

func (m messages) Replaced(name fencing.Name, stamp fencing.Stamp) {
	m.wire.mu.Lock()
	unheard := m.wire.unheard
	m.wire.mu.Unlock()
	if !unheard {
		m.Listener.Replaced(name, stamp)
	}
}

// counts is an Observer.
type counts struct {
	mu      sync.Mutex
	by      map[string]int // outcomes of waits, reasons of drops, and what has one name here
	longest time.Duration  // hand-over
}

func (c *counts) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string]int{}
	}
	c.by[what] += n
}

func (c *counts) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by[what]
}

func (c *counts) longestHandOver() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.longest
}

func (c *counts) Waited(_ time.Duration, outcome string) { c.add("waited "+outcome, 1) }
func (c *counts) TakenBack()                             { c.add("takenBack", 1) }
func (c *counts) FoundLost()                             { c.add("lost", 1) }
func (c *counts) Dropped(reason string)                  { c.add("dropped "+reason, 1) }
func (c *counts) Waiting(delta int)                      { c.add("waiting", delta) }
func (c *counts) HandedOver(latency time.Duration) {
	c.add("handed", 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.longest = max(c.longest, latency)
}

// request is an acquire that waits for a minute.
func request(name fencing.Name) fencing.AcquireRequest {
	return fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(),
		Mode: fencing.ModeExclusive, Hold: 1, TTL: 10 * time.Second, Wait: time.Minute,
	}
}

// client is a request under way.
type client struct {
	fencing.AcquireRequest
	cancel context.CancelFunc
	done   chan struct{}
	out    fencing.Outcome
	err    error
	took   time.Duration
}

// ask has a client wait at a gateway, and returns when it does or has its answer.
func (w *world) ask(gateway int, r fencing.AcquireRequest) *client {
	c := w.start(gateway, r)
	synctest.Wait()
	return c
}

// start is ask for those who can't wait for it.
func (w *world) start(gateway int, r fencing.AcquireRequest) *client {
	ctx, cancel := context.WithCancel(w.t.Context())
	c := &client{AcquireRequest: r, cancel: cancel, done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(c.done)
		c.out, c.err = w.dogs[gateway].Acquire(ctx, r)
		c.took = time.Since(began)
	}()
	return c
}

func (c *client) answered() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// holds checks that a client has been answered with a lease that is live.
func (w *world) holds(c *client) {
	w.t.Helper()
	synctest.Wait()
	if !c.answered() {
		w.t.Fatalf("%s still waits", c.Lease.Public())
	}
	if c.err != nil {
		w.t.Fatalf("%s was refused: %v", c.Lease.Public(), c.err)
	}
	if h := w.holder(c.Name); h == nil || h.Token != c.out.Holder.Token || h.Provisional || c.out.Holder.Provisional {
		w.t.Fatalf("the client was told of %+v, the store has %+v", c.out.Holder, h)
	}
	if c.out.Remaining(time.Now()) <= 0 || !c.out.Fresh {
		w.t.Fatalf("%s is left, fresh %t", c.out.Remaining(time.Now()), c.out.Fresh)
	}
}

func (w *world) waits(c *client) {
	w.t.Helper()
	synctest.Wait()
	if c.answered() {
		w.t.Fatalf("%s was answered: %+v, %v", c.Lease.Public(), c.out.Holder, c.err)
	}
}

// refused checks that a client has been answered with a code.
func (w *world) refused(c *client, code fencing.Code) *fencing.Error {
	w.t.Helper()
	synctest.Wait()
	if !c.answered() {
		w.t.Fatalf("%s still waits", c.Lease.Public())
	}
	if c.err == nil || fencing.CodeOf(c.err) != code {
		w.t.Fatalf("%s was answered %+v, %v; want %s", c.Lease.Public(), c.out.Holder, c.err, code)
	}
	return fencing.AsError(c.err)
}

func (w *world) state(name fencing.Name) *fencing.Record {
	return w.wires[0].Snapshot().Records[name]
}

// holder returns who holds a name that is held exclusively.
func (w *world) holder(name fencing.Name) *fencing.Holding {
	if r := w.state(name); r != nil && r.Holders.Len() > 0 {
		h := r.Holders.First()
		return &h
	}
	return nil
}

func (w *world) free(name fencing.Name) {
	w.t.Helper()
	synctest.Wait()
	if h := w.holder(name); h != nil {
		w.t.Fatalf("%s is held by %+v", name, h)
	}
}

// release ends a lease through a gateway's store.
func (w *world) release(gateway int, c *client) {
	w.t.Helper()
	if _, err := w.dogs[gateway].Release(w.t.Context(), fencing.ReleaseRequest{Name: c.Name, Lease: c.Lease}); err != nil {
		w.t.Error(err)
	}
}

func (w *world) want(what string, got, want int) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: %d, want %d", what, got, want)
	}
}

// gap has a gateway make a heartbeat now, and returns when what comes of it is done.
func (w *world) gap(gateway int) {
	listener{w.dogs[gateway]}.Gap()
	advance(gapPause)
	synctest.Wait()
}

// asksAgain has a request that waits ask again, as if the store did not have it.
func (w *world) asksAgain(gateway int, c *client) {
	l := &w.dogs[gateway].requests
	l.mu.Lock()
	t := l.waiters[key{c.Name, c.Stamp}]
	l.mu.Unlock()
	go w.dogs[gateway].again(t)
}
