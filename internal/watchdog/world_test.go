package watchdog

import (
	"context"
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
	wires [2]*fencingtest.Wire
	seen  [2]*counts
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
		w := &world{t: t, wires: [2]*fencingtest.Wire{{Model: model}, {Model: model.Second()}}}
		for i, wire := range w.wires {
			w.seen[i] = &counts{}
			o.Observer = w.seen[i]
			w.dogs[i] = New(wire, o)
			w.dogs[i].Start()
		}
		test(w)
		for i, dog := range w.dogs {
			dog.Stop()
			synctest.Wait()
			l := &dog.requests
			if len(l.waiters)+len(l.held)+len(l.queues) != 0 {
				t.Errorf("gateway %d still knows of %d waiters, %d held leases and %d queues", i, len(l.waiters), len(l.held), len(l.queues))
			}
			if w.seen[i].of("waiting") != 0 {
				t.Errorf("gateway %d counts %d waiters at the end", i, w.seen[i].of("waiting"))
			}
		}
		model.Close()
	})
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
		c.out, c.err = w.dogs[gateway].Do(ctx, r)
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
	if _, err := w.dogs[gateway].Do(w.t.Context(), fencing.ReleaseRequest{Name: c.Name, Lease: c.Lease}); err != nil {
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
