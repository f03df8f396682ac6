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

// whole is a request for several names under way.
type whole struct {
	fencing.AcquireRequest
	names  []fencing.Name
	stream *Stream // with Attach
	cancel context.CancelFunc
	done   chan struct{}
	outs   []fencing.Outcome
	err    error
}

func (w *world) startAll(gateway int, r fencing.AcquireRequest, names ...fencing.Name) *whole {
	ctx, cancel := context.WithCancel(w.t.Context())
	a := &whole{AcquireRequest: r, names: names, cancel: cancel, done: make(chan struct{})}
	if r.Attach {
		a.stream = w.open(gateway, r, names...)
	}
	go func() {
		defer close(a.done)
		a.outs, a.err = w.dogs[gateway].AcquireAll(ctx, names, r, a.stream, nil)
	}()
	return a
}

func (w *world) askAll(gateway int, r fencing.AcquireRequest, names ...fencing.Name) *whole {
	a := w.startAll(gateway, r, names...)
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

// holdsAll checks that all names are held, firm and with the whole TTL from now on.
func (w *world) holdsAll(a *whole, fresh bool) {
	w.t.Helper()
	synctest.Wait()
	if !a.answered() || a.err != nil {
		w.t.Fatalf("answered %t: %v", a.answered(), a.err)
	}
	if len(a.outs) != len(a.names) {
		w.t.Fatalf("%d outcomes for %v", len(a.outs), a.names)
	}
	for i, name := range slices.Sorted(slices.Values(a.names)) {
		out, h := &a.outs[i], w.holder(name)
		if h == nil || h.Provisional || out.Holder.Provisional || h.Token != out.Holder.Token || out.Fresh != fresh {
			w.t.Fatalf("%s: told %+v, fresh %t; the store has %+v", name, out.Holder, out.Fresh, h)
		}
	}
}

func (w *world) refusedAll(a *whole, code fencing.Code, name fencing.Name) {
	w.t.Helper()
	synctest.Wait()
	if !a.answered() {
		w.t.Fatal("it still waits")
	}
	if a.err == nil || fencing.CodeOf(a.err) != code {
		w.t.Fatalf("answered %v; want %s", a.err, code)
	}
	if e := fencing.AsError(a.err); name != "" && (e.Lock == nil || e.Lock.Name != name) {
		w.t.Fatalf("%+v does not name %s", e, name)
	}
}

// While a set waits no TTL runs and the names it has are held; then all begin at
// once.
func TestSeveralNames(t *testing.T) {
	inWorld(t, func(w *world) {
		b, d := w.ask(0, request("b")), w.ask(1, request("d"))
		r := request("")
		r.TTL = 2 * time.Second
		a := w.askAll(0, r, "d", "c", "a", "b")
		advance(7 * time.Second)
		if h := w.holder("a"); h == nil || !h.Provisional {
			t.Fatalf("a is %+v", h)
		}
		w.free("c")
		names := slices.Sorted(slices.Values(w.wires[0].beaten()))
		if !slices.Equal(names, []fencing.Name{"a", "b"}) {
			t.Errorf("the heartbeat was about %v", names)
		}
		w.release(0, b)
		synctest.Wait()
		if a.answered() || w.holder("c") == nil {
			t.Fatal("c was not taken after b")
		}
		w.release(1, d)
		w.holdsAll(a, true)
		for i := range a.outs {
			if got := a.outs[i].Remaining(time.Now()); got != r.TTL {
				t.Errorf("%s is left of %s", got, r.TTL)
			}
		}
		again := r
		again.Stamp = fencing.NewStamp()
		w.holdsAll(w.askAll(1, again, "a", "b", "c", "d"), false)
	})
}

func TestSeveralNamesWithoutWaiting(t *testing.T) {
	inWorld(t, func(w *world) {
		held := w.ask(1, request("b"))
		r := request("")
		r.Wait = 0
		w.refusedAll(w.askAll(0, r, "a", "b", "c"), fencing.CodeLocked, "b")
		w.free("a")
		w.release(1, held)
		w.holdsAll(w.askAll(0, r, "a", "b", "c"), true)
		w.refusedAll(w.askAll(0, request(""), "x", "y", "x"), fencing.CodeInvalidRequest, "")
	})
}

// Whatever ends an incomplete set, nothing of it is left.
func TestAnIncompleteSetEnds(t *testing.T) {
	for name, end := range map[string]func(w *world, a *whole){
		"out of time": func(w *world, a *whole) {
			advance(a.Wait)
			w.refusedAll(a, fencing.CodeWaitTimeout, "c")
		},
		"client gone": func(w *world, a *whole) {
			a.cancel()
			w.refusedAll(a, fencing.CodeUnavailable, "")
		},
		"drained": func(w *world, a *whole) {
			w.dogs[0].Drain()
			w.refusedAll(a, fencing.CodeDraining, "c")
		},
		"gateway silent": func(w *world, a *whole) {
			w.wires[0].set(func(wire *wire) { wire.before = failing("heartbeat", "acquire") })
			advance(fencing.GatewayTTL + 2*time.Second)
			if out, _ := w.wires[1].Inspect(w.t.Context(), fencing.InspectRequest{Name: "a"}); out.Lock.Held() {
				w.t.Errorf("a is held by %+v", out.Lock.Holders)
			}
			advance(a.Wait)
			w.wires[0].set(func(wire *wire) { wire.before = nil })
			advance(time.Second)
			w.refusedAll(a, fencing.CodeWaitTimeout, "c")
		},
	} {
		for _, gateway := range []int{0, 1} {
			t.Run(name, func(t *testing.T) {
				inWorld(t, func(w *world) {
					r := request("c")
					r.TTL = 2 * time.Minute
					held := w.ask(gateway, r)
					a := w.askAll(0, request(""), "a", "b", "c")
					advance(time.Second)
					r = request("b")
					r.TTL, r.Wait = 2*time.Minute, 2*time.Minute
					behind := w.ask(1, r)
					w.waits(behind)
					end(w, a)
					w.free("a")
					w.holds(behind)
					w.release(gateway, held)
					w.free("c")
				})
			})
		}
	}
}

// The confirmation of one name fails: none is delivered.
func TestASetIsNotConfirmed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wires[0].set(func(wire *wire) {
			var calls atomic.Int32
			wire.before = func(op string) error {
				if op == "confirm" && calls.Add(1) > 1 {
					return fencing.Unavailable(errCut)
				}
				return nil
			}
		})
		a := w.askAll(0, request(""), "a", "b")
		advance(2 * callTimeout)
		w.refusedAll(a, fencing.CodeUnavailable, "")
		w.free("a")
		w.free("b")
	})
}

// A name is lost before the set is complete.
func TestANameOfASetIsLost(t *testing.T) {
	inWorld(t, func(w *world) {
		held := w.ask(1, request("b"))
		r := request("")
		a := w.askAll(0, r, "a", "b")
		if _, err := w.dogs[1].Break(w.t.Context(), fencing.BreakRequest{Name: "a", Token: w.holder("a").Token}); err != nil {
			t.Fatal(err)
		}
		w.release(1, held)
		w.refusedAll(a, fencing.CodeLeaseLost, "a")
		w.free("b")
	})
}

// The wait of a set in the middle of its names rests for a client that comes back.
func TestASetComesBack(t *testing.T) {
	inWorld(t, func(w *world) {
		held := w.ask(1, request("b"))
		r := request("")
		r.Keep, r.Wait = true, 2*time.Second
		a := w.askAll(0, r, "a", "b")
		advance(time.Second)
		behind := w.ask(1, request("b"))
		advance(time.Second)
		w.refusedAll(a, fencing.CodeWaitTimeout, "b")
		r.Stamp, r.Wait = fencing.NewStamp(), time.Minute
		a = w.askAll(1, r, "a", "b")
		w.release(1, held)
		w.holdsAll(a, true)
		w.waits(behind)
	})
}

// A set that could not be delivered is undone.
func TestTakeBackAll(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("")
		a := w.askAll(0, r, "a", "b")
		w.holdsAll(a, true)
		w.dogs[0].TakeBackAll([]fencing.Name{"a", "b"}, takeBackOf(&r))
		w.free("a")
		w.free("b")
	})
}

// Of streams of one lease id that are sent together one goes on, also where each of the others comes late
// to the second name, and takes it away from the one that has the first.
func TestASetTakesBackEachTime(t *testing.T) {
	inWorld(t, func(w *world) {
		const ms = time.Millisecond
		r := request("")
		r.Attach, r.Wait = true, 0
		var acquires, confirms atomic.Int32
		w.wires[1].set(func(wire *wire) {
			wire.before = func(op string) error {
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
		w.wires[0].set(func(wire *wire) {
			wire.before = func(op string) error {
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
			sent = append(sent, w.askAll(gateway, r, "a", "b"))
		}
		advance(time.Second)
		w.refusedAll(sent[0], fencing.CodeReplaced, "")
		w.refusedAll(sent[1], fencing.CodeReplaced, "")
		w.holdsSession(sent[2], nil)
	})
}
