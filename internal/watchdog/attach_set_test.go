package watchdog

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// session takes several names for a stream at a gateway, and attaches them.
func (w *world) session(ctx context.Context, gateway int, r fencing.AcquireRequest, names ...fencing.Name) (*whole, *attached) {
	w.t.Helper()
	r.Attach, r.Stamp = true, fencing.NewStamp()
	all := w.askAll(gateway, r, names...)
	synctest.Wait()
	if !all.answered() || all.err != nil {
		w.t.Fatalf("answered %t: %v", all.answered(), all.err)
	}
	return all, w.keepAll(ctx, all)
}

func (w *world) keepAll(ctx context.Context, all *whole) *attached {
	var leases []Attached
	for i, name := range slices.Sorted(slices.Values(all.names)) {
		leases = append(leases, Attached{name, all.outs[i]})
	}
	return follow(all.stream.Keep(ctx, leases, nil))
}

func namesOf(leases []Attached) (names []fencing.Name) {
	for _, l := range leases {
		names = append(names, l.Name)
	}
	return names
}

// Many names have one heartbeat, which asks the store about a few of them at a time.
func TestASessionIsRenewedTogether(t *testing.T) {
	inWorld(t, func(w *world) {
		var names []fencing.Name
		for i := range fencing.MaxNames {
			names = append(names, fencing.Name(rune('A'+i)))
		}
		r := request("")
		r.TTL = 3 * time.Second
		ctx, cancel := context.WithCancel(w.t.Context())
		_, a := w.session(ctx, 0, r, names...)
		var now, most atomic.Int32
		w.wires[0].set(func(wire *wire) {
			wire.before = func(op string) error {
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
		cancel()
		<-a.done
		w.want("updates", len(a.updates), 3)
		w.want("renewals", w.wires[0].count("renew"), 3*len(names))
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
			w.wires[0].set(func(wire *wire) { wire.deaf = deaf })
			r := request("")
			r.TTL = 3 * time.Second
			all, a := w.session(w.t.Context(), 0, r, "a", "b", "c")
			advance(500 * time.Millisecond)
			if _, err := w.dogs[1].Release(w.t.Context(), fencing.ReleaseRequest{Name: "b", Lease: all.Lease}); err != nil {
				t.Fatal(err)
			}
			advance(1400 * time.Millisecond)
			if _, err := w.dogs[1].Break(w.t.Context(), fencing.BreakRequest{Name: "c", Token: w.holder("c").Token}); err != nil {
				t.Fatal(err)
			}
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

			all, a = w.session(w.t.Context(), 0, request(""), "d", "e")
			for _, name := range all.names {
				if _, err := w.dogs[1].Release(w.t.Context(), fencing.ReleaseRequest{Name: name, Lease: all.Lease}); err != nil {
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
		r := request("")
		r.TTL = 3 * time.Second
		_, a := w.session(w.t.Context(), 0, r, "a", "b", "c")
		var calls atomic.Int32
		w.wires[0].set(func(wire *wire) {
			wire.before = func(op string) error {
				if op == "renew" && calls.Add(1) == 2 {
					return fencing.Unavailable(errCut)
				}
				return nil
			}
		})
		advance(1500 * time.Millisecond)
		w.want("renewals", int(calls.Load()), 4)
		synctest.Wait()
		w.want("updates", len(a.updates), 1)
		w.wires[0].set(func(wire *wire) { wire.before = failing("renew") })
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
			w.wires[1].set(func(wire *wire) { wire.before = failing("heartbeat", "acquire", "leave", "take_back", "expire") })
			advance(fencing.GatewayTTL + 2*time.Second)
		},
		"not confirmed": func(w *world, a *whole) {
			w.wires[1].set(func(wire *wire) { wire.before = failing("confirm") })
			if _, err := w.dogs[0].Break(w.t.Context(), fencing.BreakRequest{Name: "c", Token: w.holder("c").Token}); err != nil {
				w.t.Fatal(err)
			}
			advance(2 * callTimeout)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				r := request("")
				r.TTL = 3 * time.Second
				all, a := w.session(w.t.Context(), 0, r, "b", "d")
				before := []fencing.Token{w.holder("b").Token, w.holder("d").Token}
				other := request("c")
				other.TTL = 2 * time.Minute
				held := w.ask(0, other)
				more := all.AcquireRequest
				more.Attach, more.Stamp = true, fencing.NewStamp()
				grows := w.startAll(1, more, "a", "b", "c", "d")
				advance(4 * time.Second)
				if grows.answered() {
					t.Fatal("it does not wait")
				}
				fail(w, grows)
				advance(4 * time.Second)
				if out, err := w.wires[0].Inspect(w.t.Context(), fencing.InspectRequest{Name: "a"}); err != nil || out.Lock.Held() {
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
				grows = w.startAll(1, more, "a", "b", "c", "d")
				advance(time.Second)
				w.release(0, held)
				w.holdsSession(grows, map[fencing.Name]fencing.Token{"b": before[0], "d": before[1]})
				if u, _ := a.ended(); fencing.CodeOf(u.Err) != fencing.CodeReplaced {
					t.Errorf("the older stream ended with %v", u.Err)
				}
				for _, err := range all.stream.Release(w.t.Context(), all.names) {
					if err != nil {
						t.Error(err)
					}
				}
				w.holdsSession(grows, nil)
			})
		})
	}
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
		if h == nil || h.Token != a.outs[i].Holder.Token || h.Provisional || h.Attached != a.Stamp {
			w.t.Errorf("%s: told %+v; the store has %+v", name, a.outs[i].Holder, h)
		}
		if token := before[name]; token != 0 && h.Token != token {
			w.t.Errorf("%s has the token %d, not %d", name, h.Token, token)
		}
	}
}
