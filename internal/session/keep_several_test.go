package session

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// Many names have one heartbeat, which asks the store about a few of them at a time.
func TestASessionIsRenewedTogether(t *testing.T) {
	inWorld(t, func(w *world) {
		var names []fencing.Name
		for i := range fencing.MaxNames {
			names = append(names, fencing.Name(rune('A'+i)))
		}
		r := asks("")
		r.TTL = 3 * time.Second
		a := w.attach(r, nil, names...)
		var now, most atomic.Int32
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.Before = func(op string) error {
				if op == "renew" {
					if n := now.Add(1); n > most.Load() {
						most.Store(n)
					}
					advance(time.Millisecond) // that the call takes
					now.Add(-1)
				}
				return nil
			}
		})
		advance(3*time.Second + 500*time.Millisecond)
		a.leaves()
		w.want("updates", len(a.updates), 3)
		w.want("renewals", w.wires[0].Count("renew"), 3*len(names))
		for _, u := range a.updates {
			if u.Err != nil || !slices.Equal(namesOf(u.Leases), names) {
				t.Errorf("%v: %v", namesOf(u.Leases), u.Err)
			}
		}
		if n := most.Load(); n < 2 || n > maxAtOnce {
			t.Errorf("%d renewals at once", n)
		}
	})
}

// One that is released leaves the rest, whether or not the event is lost; with the last one all is
// over. One that is broken ends all.
func TestASessionLosesNames(t *testing.T) {
	for deaf, told := range map[bool]time.Duration{false: 500 * time.Millisecond, true: time.Second} {
		inWorld(t, func(w *world) {
			w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Deaf = deaf })
			r := asks("")
			r.TTL = 3 * time.Second
			a := w.attach(r, nil, "a", "b", "c")
			advance(500 * time.Millisecond)
			if _, err := w.dogs[1].Do(w.t.Context(), fencing.ReleaseRequest{Name: "b", Lease: a.Lease}); err != nil {
				t.Fatal(err)
			}
			advance(1400 * time.Millisecond)
			w.breaks("c", 0)
			u, _ := a.ended()
			if e := fencing.AsError(u.Err); e == nil || e.Reason != fencing.ReasonBroken || u.Name != "c" {
				t.Errorf("deaf %t: it ended with %s: %v", deaf, u.Name, u.Err)
			}
			first := slices.IndexFunc(a.updates, func(u Update) bool { return !slices.Contains(namesOf(u.Leases), "b") })
			if first < 0 || a.at[first] != told {
				t.Errorf("deaf %t: that b is released was told by update %d of %v", deaf, first, a.at)
			}
			if h := w.holder("a"); h == nil {
				t.Error("a was released")
			}

			a = w.attach(asks(""), nil, "d", "e")
			for _, name := range a.names {
				if _, err := w.dogs[1].Do(w.t.Context(), fencing.ReleaseRequest{Name: name, Lease: a.Lease}); err != nil {
					t.Fatal(err)
				}
			}
			u, _ = a.ended()
			if e := fencing.AsError(u.Err); e == nil || e.Reason != fencing.ReasonReleased || len(u.Leases) != 0 {
				t.Errorf("deaf %t: it ended with %v: %v", deaf, u.Leases, u.Err)
			}
		})
	}
}

// A name whose renewal fails is asked about again, alone; one that can't be renewed ends all
// before it runs out.
func TestANameOfASessionCanNotBeRenewed(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("")
		r.TTL = 3 * time.Second
		a := w.attach(r, nil, "a", "b", "c")
		var calls atomic.Int32
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.Before = func(op string) error {
				if op == "renew" && calls.Add(1) == 2 {
					return fencing.Unavailable(fencingtest.ErrCut)
				}
				return nil
			}
		})
		advance(1500 * time.Millisecond)
		w.want("renewals", int(calls.Load()), 4)
		synctest.Wait()
		w.want("updates", len(a.updates), 1)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("renew") })
		began := time.Now()
		u, _ := a.ended()
		if took := time.Since(began); fencing.CodeOf(u.Err) != fencing.CodeUnavailable || u.Name == "" || took > r.TTL {
			t.Errorf("it ended after %s with %s: %v", took, u.Name, u.Err)
		}
	})
}

// Names are added at another gateway: the older stream has what it had until the newer one
// has all, and keeps it if that comes to nothing, in whatever way.
func TestASessionGrowsElsewhere(t *testing.T) {
	for name, fail := range map[string]func(w *world, a *whole){
		"out of time": func(w *world, a *whole) { advance(a.Wait) },
		"client gone": func(w *world, a *whole) { a.cancel() },
		"drained":     func(w *world, a *whole) { w.dogs[1].Drain() },
		"gateway silent": func(w *world, a *whole) {
			w.wires[1].Set(func(wire *fencingtest.Wire) {
				wire.Before = fencingtest.Failing("heartbeat", "acquire", "leave", "take_back", "expire")
			})
			advance(fencing.GatewayTTL + 2*time.Second)
		},
		"not confirmed": func(w *world, a *whole) {
			w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("confirm") })
			if _, err := w.dogs[0].Do(w.t.Context(), fencing.BreakRequest{Name: "c", Token: w.holder("c").Token}); err != nil {
				w.t.Fatal(err)
			}
			advance(2 * callTimeout)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				r := asks("")
				r.TTL = 3 * time.Second
				a := w.attach(r, nil, "b", "d")
				before := []fencing.Token{w.holder("b").Token, w.holder("d").Token}
				other := asks("c")
				other.TTL = 2 * time.Minute
				held := w.ask(0, other)
				more := a.AcquireRequest
				more.Attach, more.Stamp = true, fencing.NewStamp()
				grows := w.start(1, more, "a", "b", "c", "d")
				advance(4 * time.Second)
				if grows.answered() {
					t.Fatal("it does not wait")
				}
				fail(w, grows)
				advance(4 * time.Second)
				if out, err := w.wires[0].Do(w.t.Context(), fencing.InspectRequest{Name: "a"}); err != nil || out.Lock.Held() {
					t.Errorf("a is held: %+v, %v", out.Lock, err)
				}
				for i, name := range []fencing.Name{"b", "d"} {
					if h := w.holder(name); h == nil || h.Token != before[i] || !h.Live(fencing.InstantOf(time.Now())) {
						t.Errorf("%s is held by %+v", name, h)
					}
				}
				synctest.Wait()
				if n := len(a.updates); n == 0 || a.updates[n-1].Err != nil {
					t.Errorf("the older stream was told %+v", a.updates[n-1])
				}
				if name != "out of time" && name != "client gone" {
					return
				}

				more.Stamp = fencing.NewStamp()
				grows = w.start(1, more, "a", "b", "c", "d")
				advance(time.Second)
				w.release(0, held.Name, held.Lease)
				w.holdsSession(grows, map[fencing.Name]fencing.Token{"b": before[0], "d": before[1]})
				if u, _ := a.ended(); fencing.CodeOf(u.Err) != fencing.CodeReplaced {
					t.Errorf("the older stream ended with %v", u.Err)
				}
				w.closes(a.whole)
				w.holdsSession(grows, nil)
			})
		})
	}
}
