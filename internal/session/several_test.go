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

// While a set waits no TTL runs and the names it has are held; then all begin at
// once.
func TestSeveralNames(t *testing.T) {
	inWorld(t, func(w *world) {
		b, d := w.ask(0, asks("b")), w.ask(1, asks("d"))
		r := asks("")
		r.TTL = 2 * time.Second
		a := w.ask(0, r, "d", "c", "a", "b")
		advance(7 * time.Second)
		if h := w.holder("a"); h == nil || !h.Provisional {
			t.Fatalf("a is %+v", h)
		}
		w.free("c")
		names := slices.Sorted(slices.Values(w.wires[0].Beaten()))
		if !slices.Equal(names, []fencing.Name{"a", "b"}) {
			t.Errorf("the heartbeat was about %v", names)
		}
		w.release(0, b.Name, b.Lease)
		synctest.Wait()
		if a.answered() || w.holder("c") == nil {
			t.Fatal("c was not taken after b")
		}
		w.release(1, d.Name, d.Lease)
		w.holds(a, true)
		for i := range a.outs {
			if got := a.outs[i].Remaining(time.Now()); got != r.TTL {
				t.Errorf("%s is left of %s", got, r.TTL)
			}
		}
		again := r
		again.Stamp = fencing.NewStamp()
		w.holds(w.ask(1, again, "a", "b", "c", "d"), false)
	})
}

func TestSeveralNamesWithoutWaiting(t *testing.T) {
	inWorld(t, func(w *world) {
		held := w.ask(1, asks("b"))
		r := asks("")
		r.Wait = 0
		w.refused(w.ask(0, r, "a", "b", "c"), fencing.CodeLocked, "b")
		w.free("a")
		w.release(1, held.Name, held.Lease)
		w.holds(w.ask(0, r, "a", "b", "c"), true)
		w.refused(w.ask(0, asks(""), "x", "y", "x"), fencing.CodeInvalidRequest, "")
	})
}

// Whatever ends an incomplete set, nothing of it is left.
func TestAnIncompleteSetEnds(t *testing.T) {
	for name, end := range map[string]func(w *world, a *whole){
		"out of time": func(w *world, a *whole) {
			advance(a.Wait)
			w.refused(a, fencing.CodeWaitTimeout, "c")
		},
		"client gone": func(w *world, a *whole) {
			a.cancel()
			w.refused(a, fencing.CodeUnavailable, "")
		},
		"drained": func(w *world, a *whole) {
			w.dogs[0].Drain()
			w.refused(a, fencing.CodeDraining, "c")
		},
		"gateway silent": func(w *world, a *whole) {
			w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("heartbeat", "acquire") })
			advance(fencing.GatewayTTL + 2*time.Second)
			if out, _ := w.wires[1].Do(w.t.Context(), fencing.InspectRequest{Name: "a"}); out.Lock.Held() {
				w.t.Errorf("a is held by %+v", out.Lock.Holders)
			}
			advance(a.Wait)
			w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
			advance(time.Second)
			w.refused(a, fencing.CodeWaitTimeout, "c")
		},
	} {
		for _, gateway := range []int{0, 1} {
			t.Run(name, func(t *testing.T) {
				inWorld(t, func(w *world) {
					r := asks("c")
					r.TTL = 2 * time.Minute
					held := w.ask(gateway, r)
					a := w.ask(0, asks(""), "a", "b", "c")
					advance(time.Second)
					r = asks("b")
					r.TTL, r.Wait = 2*time.Minute, 2*time.Minute
					behind := w.ask(1, r)
					w.waits(behind)
					end(w, a)
					w.free("a")
					w.holds(behind, true)
					w.release(gateway, "c", held.Lease)
					w.free("c")
				})
			})
		}
	}
}

// The confirmation of one name fails: none is delivered.
func TestASetIsNotConfirmed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			var calls atomic.Int32
			wire.Before = func(op string) error {
				if op == "confirm" && calls.Add(1) > 1 {
					return fencing.Unavailable(fencingtest.ErrCut)
				}
				return nil
			}
		})
		a := w.ask(0, asks(""), "a", "b")
		advance(2 * callTimeout)
		w.refused(a, fencing.CodeUnavailable, "")
		w.free("a")
		w.free("b")
	})
}

// A name is lost before the set is complete.
func TestANameOfASetIsLost(t *testing.T) {
	inWorld(t, func(w *world) {
		held := w.ask(1, asks("b"))
		r := asks("")
		a := w.ask(0, r, "a", "b")
		w.breaks("a", 0)
		w.release(1, held.Name, held.Lease)
		w.refused(a, fencing.CodeLeaseLost, "a")
		w.free("b")
	})
}

// The wait of a set in the middle of its names rests for a client that comes back.
func TestASetComesBack(t *testing.T) {
	inWorld(t, func(w *world) {
		held := w.ask(1, asks("b"))
		r := asks("")
		r.Keep, r.Wait = true, 2*time.Second
		a := w.ask(0, r, "a", "b")
		advance(time.Second)
		behind := w.ask(1, asks("b"))
		advance(time.Second)
		w.refused(a, fencing.CodeWaitTimeout, "b")
		r.Stamp, r.Wait = fencing.NewStamp(), time.Minute
		a = w.ask(1, r, "a", "b")
		w.release(1, held.Name, held.Lease)
		w.holds(a, true)
		w.waits(behind)
	})
}

// A set that could not be delivered is undone.
func TestASetIsNotDelivered(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.ask(0, asks(""), "a", "b")
		synctest.Wait()
		if !w.closes(a) {
			t.Error("nothing was taken back")
		}
		w.free("a")
		w.free("b")
	})
}

// Of streams of one lease id that are sent together one goes on, also where each of the others comes late
// to the second name, and takes it away from the one that has the first.
func TestASetTakesBackEachTime(t *testing.T) {
	inWorld(t, func(w *world) {
		const ms = time.Millisecond
		r := asks("")
		r.Attach, r.Wait = true, 0
		var acquires, confirms atomic.Int32
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.Before = func(op string) error {
				if op != "acquire" {
					return nil
				}
				switch acquires.Add(1) {
				case 2: // the first stream's second name
					advance(30 * ms)
				case 4: // the second one's
					advance(10 * ms)
				}
				return nil
			}
		})
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.Before = func(op string) error {
				if op != "confirm" {
					return nil
				}
				switch confirms.Add(1) {
				case 1, 2, 3: // both names, and the second one when it has been taken back
					advance(20 * ms)
				}
				return nil
			}
		})
		var sent []*whole
		for _, gateway := range []int{1, 1, 0} {
			r.Stamp = fencing.NewStamp()
			sent = append(sent, w.ask(gateway, r, "a", "b"))
		}
		advance(time.Second)
		w.refused(sent[0], fencing.CodeReplaced, "")
		w.refused(sent[1], fencing.CodeReplaced, "")
		w.holdsSession(sent[2], nil)
	})
}

// Of a set that waits for one of its names, and is evicted there, nothing is left.
func TestEvictedFromASet(t *testing.T) {
	inWorld(t, func(w *world) {
		holder := w.ask(0, asks("b"))
		a := w.ask(1, asks(""), "a", "b")
		if _, err := w.dogs[0].Do(w.t.Context(), fencing.EvictRequest{Name: "b", Waiter: a.Lease.Public()}); err != nil {
			t.Error(err)
		}
		if e := w.refused(a, fencing.CodeLeaseLost, "b"); e.Reason != fencing.ReasonEvicted {
			t.Errorf("%+v", e)
		}
		w.free("a")
		w.release(0, "b", holder.Lease)
		w.free("b")
	})
}

// The store panics while several names are taken: nothing of them is left.
func TestAPanicWhileSeveralAreTaken(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		inWorld(t, func(w *world) {
			var acquires atomic.Int32
			w.wires[0].Set(func(wire *fencingtest.Wire) {
				wire.After = func(op string) error {
					if op == "acquire" && acquires.Add(1) == 2 {
						panic("as planned")
					}
					return nil
				}
			})
			r := asks("")
			r.Wait = wait
			s, err := w.all[0].Begin(&Request{AcquireRequest: r, Names: []fencing.Name{"a", "b", "c"}})
			if err != nil {
				t.Fatal(err)
			}
			func() {
				defer func() {
					if recover() == nil {
						t.Error("it did not panic")
					}
				}()
				s.Acquire(t.Context(), nil)
			}()
			s.Close()
			advance(10 * time.Second) // what is taken back is repeated after the skew guard's span
			w.free("a")
			w.free("b")
		})
	}
}
