package session

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/watchdog"
)

// world is two gateways on one model, on the clock of a synctest bubble.
type world struct {
	t     *testing.T
	dogs  [2]*watchdog.Watchdog
	all   [2]*Sessions
	wires [2]*fencingtest.Wire

	open []*whole // to be closed at the end
	held []func() // what lets calls go on that a test holds up
}

// inWorld runs a test in a world whose gateways are stopped at its end, and checks that they have forgotten everybody.
func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		model := fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(time.Now()) })
		w := &world{t: t, wires: [2]*fencingtest.Wire{{Model: model}, {Model: model.Second()}}}
		for i, wire := range w.wires {
			w.dogs[i] = watchdog.New(wire, watchdog.Options{MaxSkew: time.Second})
			w.all[i] = New(w.dogs[i], Options{})
			w.dogs[i].Start()
		}
		defer w.ends(model) // also when the test gives up: who is left in a bubble is a panic, and the tests after it don't run
		test(w)
	})
}

// ends lets whoever a test holds up go on, stops the gateways, and checks that they have forgotten everybody.
func (w *world) ends(model *fencingtest.Model) {
	for i, dog := range w.dogs {
		dog.Drain()
		w.wires[i].Set(func(w *fencingtest.Wire) { w.Before, w.After = nil, nil })
	}
	for _, pass := range w.held {
		pass()
	}
	for _, a := range w.open {
		<-a.done
		a.Close()
	}
	for i, dog := range w.dogs {
		dog.Stop()
		synctest.Wait()
		if o := w.all[i]; len(o.byRequest)+len(o.byName)+len(o.turns.of) != 0 {
			w.t.Errorf("gateway %d still knows of %d and %d names, and of %d turns", i, len(o.byRequest), len(o.byName), len(o.turns.of))
		}
	}
	model.Close()
}

// advance moves the clock of the bubble.
func advance(d time.Duration) { <-time.After(d) }

// asks is a request that waits for a minute.
func asks(name fencing.Name) fencing.AcquireRequest {
	return fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(),
		Mode: fencing.ModeExclusive, Hold: 1, TTL: 10 * time.Second, Wait: time.Minute,
	}
}

// whole is a request under way, for one name or, with names, for several.
type whole struct {
	fencing.AcquireRequest
	*Session
	names  []fencing.Name
	cancel context.CancelFunc // its client leaves
	ctx    context.Context
	done   chan struct{}
	outs   []fencing.Outcome
	err    error
}

// start has a request made at a gateway; it is closed at the end of the test.
func (w *world) start(gateway int, r fencing.AcquireRequest, names ...fencing.Name) *whole {
	ctx, cancel := context.WithCancel(w.t.Context())
	a := &whole{AcquireRequest: r, names: names, cancel: cancel, ctx: ctx, done: make(chan struct{})}
	if a.Session, a.err = w.all[gateway].Begin(&Request{AcquireRequest: r, Names: names}); a.err != nil {
		close(a.done)
		return a
	}
	w.open = append(w.open, a)
	go func() {
		defer close(a.done)
		a.outs, a.err = a.Acquire(ctx, func(fencing.Name, fencing.Waiter, *fencing.Lock) context.Context { return ctx })
	}()
	return a
}

// ask is start that returns when the request waits, or has its answer.
func (w *world) ask(gateway int, r fencing.AcquireRequest, names ...fencing.Name) *whole {
	a := w.start(gateway, r, names...)
	synctest.Wait()
	return a
}

func (a *whole) answered() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// closes closes the request before the end of the test.
func (w *world) closes(a *whole) bool {
	w.open = slices.DeleteFunc(w.open, func(other *whole) bool { return other == a })
	return a.Close()
}

func (w *world) waits(a *whole) {
	w.t.Helper()
	synctest.Wait()
	if a.answered() {
		w.t.Fatalf("%s was answered: %+v, %v", a.Lease.Public(), a.outs, a.err)
	}
}

// holds checks that a request has been answered with all of its leases, firm and with time left, and tells its client.
func (w *world) holds(a *whole, fresh bool) {
	w.t.Helper()
	synctest.Wait()
	if !a.answered() || a.err != nil {
		w.t.Fatalf("answered %t: %v", a.answered(), a.err)
	}
	for i, l := range a.Leases() {
		out, h := &a.outs[i], w.holder(l.Name)
		if h == nil || h.Provisional || out.Holder.Provisional || h.Token != out.Holder.Token || out.Fresh != fresh {
			w.t.Fatalf("%s: told %+v, fresh %t; the store has %+v", l.Name, out.Holder, out.Fresh, h)
		}
		if left := out.Remaining(time.Now()); left <= 0 {
			w.t.Fatalf("%s is left of %s", left, l.Name)
		}
	}
	a.Told()
}

// refused checks that a request has been answered with a code, about a name unless that is empty.
func (w *world) refused(a *whole, code fencing.Code, name fencing.Name) *fencing.Error {
	w.t.Helper()
	synctest.Wait()
	if !a.answered() {
		w.t.Fatal("it still waits")
	}
	e := fencing.AsError(a.err)
	if e == nil || e.Code != code {
		w.t.Fatalf("answered %v; want %s", a.err, code)
	}
	if name != "" && (e.Lock == nil || e.Lock.Name != name) {
		w.t.Fatalf("%+v does not name %s", e, name)
	}
	return e
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
func (w *world) release(gateway int, name fencing.Name, lease fencing.LeaseID) {
	w.t.Helper()
	if _, err := w.dogs[gateway].Do(w.t.Context(), fencing.ReleaseRequest{Name: name, Lease: lease}); err != nil {
		w.t.Error(err)
	}
}

// breaks breaks a lease through the second gateway.
func (w *world) breaks(name fencing.Name, notice time.Duration) {
	w.t.Helper()
	if _, err := w.dogs[1].Do(w.t.Context(), fencing.BreakRequest{Name: name, Token: w.holder(name).Token, Notice: notice, BreakReason: "deploy"}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) want(what string, got, want int) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: %d, want %d", what, got, want)
	}
}

// kept is what comes of leases that hang on a request.
type kept struct {
	*whole
	granted time.Time
	updates []Update
	at      []time.Duration
	over    chan struct{}
}

// attach takes leases for a request at the first gateway that they hang on, and follows them.
func (w *world) attach(r fencing.AcquireRequest, ready func() bool, names ...fencing.Name) *kept {
	w.t.Helper()
	r.Attach = true
	a := w.ask(0, r, names...)
	if !a.answered() || a.err != nil {
		w.t.Fatalf("answered %t: %v", a.answered(), a.err)
	}
	return w.follow(a, ready)
}

// follow notes what comes of the leases of a request.
func (w *world) follow(a *whole, ready func() bool) *kept {
	k := &kept{whole: a, granted: time.Now(), over: make(chan struct{})}
	updates := a.Session.Keep(a.ctx, ready)
	go func() {
		defer close(k.over)
		for u := range updates {
			k.updates = append(k.updates, u)
			k.at = append(k.at, time.Since(k.granted))
		}
	}()
	return k
}

// ended waits for the end and returns the last update and when it came.
func (k *kept) ended() (Update, time.Duration) {
	<-k.over
	n := len(k.updates)
	if n == 0 {
		return Update{}, 0
	}
	return k.updates[n-1], k.at[n-1]
}

// leaves has the client leave, and returns when nobody keeps the leases any more.
func (k *kept) leaves() {
	k.cancel()
	<-k.over
}

func namesOf(leases []Lease) (names []fencing.Name) {
	for _, l := range leases {
		names = append(names, l.Name)
	}
	return names
}

// holdsSession checks that all names are held and hang on the newest stream, some with the tokens they had.
func (w *world) holdsSession(a *whole, before map[fencing.Name]fencing.Token) {
	w.t.Helper()
	synctest.Wait()
	if !a.answered() || a.err != nil {
		w.t.Fatalf("answered %t: %v", a.answered(), a.err)
	}
	for i, name := range slices.Sorted(slices.Values(a.names)) {
		h := w.holder(name)
		if h == nil || h.Token != a.outs[i].Holder.Token || h.Provisional || h.Attached != a.Stamp || h.ExpiresAt < a.outs[i].Holder.ExpiresAt {
			w.t.Errorf("%s: told %+v; the store has %+v", name, a.outs[i].Holder, h)
		}
		if token := before[name]; token != 0 && h.Token != token {
			w.t.Errorf("%s has the token %d, not %d", name, h.Token, token)
		}
	}
}
