package watchdog

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// on returns a hook that does something at the first call of an operation.
func on(op string, do func() error) func(string) error {
	var done atomic.Bool
	return func(called string) error {
		if called != op || !done.CompareAndSwap(false, true) {
			return nil
		}
		return do()
	}
}

// On one gateway every turn is two calls, whoever waits how long.
func TestServedInOrderOfArrival(t *testing.T) {
	inWorld(t, func(w *world) {
		clients := []*client{}
		for range 6 {
			clients = append(clients, w.ask(0, request("a")))
			advance(time.Millisecond)
		}
		for i, c := range clients {
			w.holds(c)
			for _, next := range clients[i+1:] {
				w.waits(next)
			}
			w.release(0, c)
		}
		w.want("confirmations", w.wires[0].Count("confirm"), 0)
		w.want("acquires", w.wires[0].Count("acquire"), 6)
		w.want("hand-offs", w.seen[0].of("handed"), 5)
		w.want("waits", w.seen[0].of("waited "+WaitedGranted), 5)
		w.want("lost messages", w.seen[0].of("lost"), 0)
	})
}

// Across gateways a grant is confirmed before it is answered, and its TTL runs
// from there.
func TestHandedToAnotherGateway(t *testing.T) {
	inWorld(t, func(w *world) {
		first, second := w.ask(0, request("a")), w.ask(1, request("a"))
		advance(3 * time.Second)
		w.waits(second)
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.Before = on("confirm", func() error { advance(2 * time.Second); return nil })
		})
		w.release(0, first)
		w.waits(second)
		advance(2 * time.Second)
		w.holds(second)
		if got := second.out.Remaining(time.Now()); got != second.TTL {
			t.Errorf("%s is left of %s", got, second.TTL)
		}
		if second.out.Holder.Waited != 5*time.Second {
			t.Errorf("it waited %s", second.out.Holder.Waited)
		}
		w.want("confirmations", w.wires[1].Count("confirm"), 1)
		w.want("lost messages", w.seen[1].of("lost"), 0)
		if w.seen[1].longestHandOver() != 2*time.Second {
			t.Errorf("the hand-off took %s", w.seen[1].longestHandOver())
		}
	})
}

// The message of the grant can be there before the answer that there is a wait.
func TestTheMessageOvertakesTheAnswer(t *testing.T) {
	for gateway := range 2 {
		inWorld(t, func(w *world) {
			first := w.ask(0, request("a"))
			w.wires[gateway].Set(func(wire *fencingtest.Wire) {
				wire.After = on("acquire", func() error { w.release(0, first); return nil })
			})
			w.holds(w.ask(gateway, request("a")))
			w.want("taken back", w.wires[gateway].Count("take_back"), 0)
		})
	}
}

// What can't be read of an acquire is undone, place or grant.
func TestAnAcquireOfUnknownOutcome(t *testing.T) {
	for _, granted := range []bool{false, true} {
		inWorld(t, func(w *world) {
			first := w.ask(0, request("a"))
			w.wires[0].Set(func(wire *fencingtest.Wire) {
				wire.After = on("acquire", func() error {
					if granted {
						w.release(0, first)
					}
					return fencing.Unavailable(fencingtest.ErrCut)
				})
			})
			w.refused(w.ask(0, request("a")), fencing.CodeUnavailable)
			if !granted {
				w.release(0, first)
			}
			w.free("a")
		})
	}
}

func TestTheWaitRunsOut(t *testing.T) {
	inWorld(t, func(w *world) {
		holder, other := request("a"), request("a")
		holder.TTL = 90 * time.Second
		first, ahead, late := w.ask(0, holder), w.ask(1, other), w.ask(0, request("a"))
		advance(time.Minute)
		err := w.refused(late, fencing.CodeWaitTimeout)
		if err.Position != 2 && err.Position != 1 {
			t.Errorf("its place was %d", err.Position)
		}
		if err.Lock == nil || len(err.Lock.Holders) != 1 || err.RetryAfter != 30*time.Second {
			t.Errorf("refused with %+v", err)
		}
		if late.took != time.Minute {
			t.Errorf("it took %s", late.took)
		}
		w.refused(ahead, fencing.CodeWaitTimeout)
		w.want("left", w.wires[0].Count("leave"), 1)
		w.want("taken back", w.wires[0].Count("take_back"), 0)
		w.release(0, first)
		w.free("a")
	})
}

// The grant that comes while the request gives up is delivered.
func TestAGrantCrossesLeaving(t *testing.T) {
	for gateway := range 2 {
		inWorld(t, func(w *world) {
			r := request("a")
			r.TTL = 2 * time.Minute
			first, late := w.ask(0, r), w.ask(gateway, request("a"))
			w.wires[gateway].Set(func(wire *fencingtest.Wire) {
				wire.Message = func(fencing.Grant, func()) {} // lost
				wire.Before = on("leave", func() error { w.release(0, first); return nil })
			})
			advance(time.Minute)
			w.holds(late)
			w.want("left", w.wires[gateway].Count("leave"), 1)
			w.want("taken back", w.wires[gateway].Count("take_back"), 0)
		})
	}
}

// The store can't be told that a request leaves; what there is goes back later. A
// grant that it told of before is delivered.
func TestLeavingUnheard(t *testing.T) {
	for _, granted := range []bool{false, true} {
		inWorld(t, func(w *world) {
			r := request("a")
			r.TTL = 2 * time.Minute
			first, late := w.ask(0, r), w.ask(0, request("a"))
			w.wires[0].Set(func(wire *fencingtest.Wire) {
				wire.After = on("leave", func() error { return fencing.Unavailable(fencingtest.ErrCut) })
				wire.Before = on("leave", func() error {
					if granted {
						w.release(0, first)
					}
					return nil
				})
			})
			advance(time.Minute)
			if granted {
				w.holds(late)
				return
			}
			w.refused(late, fencing.CodeUnavailable)
			w.release(0, first)
			w.free("a")
			if w.wires[0].Count("take_back") == 0 {
				t.Error("nothing was taken back")
			}
		})
	}
}

// Whoever leaves is served no more: the next in line is.
func TestTheClientLeaves(t *testing.T) {
	inWorld(t, func(w *world) {
		first, leaving, next := w.ask(0, request("a")), w.ask(0, request("a")), w.ask(1, request("a"))
		leaving.cancel()
		w.refused(leaving, fencing.CodeUnavailable)
		w.release(0, first)
		w.holds(next)
		w.want("left", w.seen[0].of("waited "+WaitedLeft), 1)
		w.want("phantoms", w.seen[0].of("takenBack"), 0)
	})
}

// A grant that crosses the leaving of its client is taken back, once, and the next
// in line has the lock within a second.
func TestAGrantCrossesTheClientsLeaving(t *testing.T) {
	for gateway := range 2 {
		t.Run("message late", func(t *testing.T) {
			inWorld(t, func(w *world) {
				first, leaving, next := w.ask(0, request("a")), w.ask(gateway, request("a")), w.ask(0, request("a"))
				var late func()
				w.wires[gateway].Set(func(wire *fencingtest.Wire) {
					wire.Message = func(_ fencing.Grant, pass func()) { late = pass }
				})
				w.release(0, first)
				w.wires[gateway].Set(func(wire *fencingtest.Wire) { wire.Message = nil })
				leaving.cancel()
				w.refused(leaving, fencing.CodeUnavailable)
				late()
				w.holds(next)
				w.want("phantoms", w.seen[gateway].of("takenBack"), 1)
			})
		})
		t.Run("both at once", func(t *testing.T) {
			inWorld(t, func(w *world) {
				first, leaving, next := w.ask(0, request("a")), w.ask(gateway, request("a")), w.ask(0, request("a"))
				w.wires[gateway].Set(func(wire *fencingtest.Wire) {
					wire.Message = func(_ fencing.Grant, pass func()) { leaving.cancel(); pass() }
				})
				w.release(0, first)
				w.wires[gateway].Set(func(wire *fencingtest.Wire) { wire.Message = nil })
				w.refused(leaving, fencing.CodeUnavailable)
				w.holds(next)
				w.want("phantoms", w.seen[gateway].of("takenBack"), 1)
			})
		})
	}
}

func TestTheClientLeavesDuringTheConfirmation(t *testing.T) {
	inWorld(t, func(w *world) {
		first, leaving, next := w.ask(0, request("a")), w.ask(1, request("a")), w.ask(0, request("a"))
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.After = on("confirm", func() error { leaving.cancel(); return nil })
		})
		w.release(0, first)
		w.refused(leaving, fencing.CodeUnavailable)
		w.holds(next)
		w.want("phantoms", w.seen[1].of("takenBack"), 1)
	})
}

// A message told twice does no harm to the lease that was delivered.
func TestAMessageToldTwice(t *testing.T) {
	for gateway := range 2 {
		inWorld(t, func(w *world) {
			first, second := w.ask(0, request("a")), w.ask(gateway, request("a"))
			var again func()
			w.wires[gateway].Set(func(wire *fencingtest.Wire) {
				wire.Message = func(_ fencing.Grant, pass func()) { again = pass; pass() }
			})
			w.release(0, first)
			w.holds(second)
			again()
			advance(5 * time.Second)
			w.holds(second)
			w.want("taken back", w.wires[gateway].Count("take_back"), 0)
		})
	}
}

// A grant that was on its way for longer than it lasts is not delivered.
func TestAGrantThatCameTooLate(t *testing.T) {
	inWorld(t, func(w *world) {
		first, late := w.ask(0, request("a")), w.ask(0, request("a"))
		var pass func()
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.Message = func(_ fencing.Grant, p func()) { pass = p }
		})
		w.release(0, first)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("acquire", "heartbeat") })
		advance(late.TTL)
		pass()
		w.refused(late, fencing.CodeUnavailable)
		w.want("phantoms", w.seen[0].of("takenBack"), 1)
	})
}

// The confirmation is tried until it is heard, as long as there is patience.
func TestConfirmationsAreRetried(t *testing.T) {
	for _, lost := range []struct {
		name string
		set  func(*fencingtest.Wire, func(string) error)
	}{
		{"request", func(w *fencingtest.Wire, hook func(string) error) { w.Before = hook }},
		{"answer", func(w *fencingtest.Wire, hook func(string) error) { w.After = hook }},
	} {
		t.Run(lost.name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				first, second := w.ask(0, request("a")), w.ask(1, request("a"))
				w.wires[1].Set(func(wire *fencingtest.Wire) { lost.set(wire, fencingtest.Failing("confirm")) })
				w.release(0, first)
				advance(2 * time.Second)
				w.waits(second)
				w.wires[1].Set(func(wire *fencingtest.Wire) { lost.set(wire, nil) })
				advance(time.Second)
				w.holds(second)
			})
		})
	}
}

func TestAConfirmationNeverHeard(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.Wait = 5 * time.Second
		first, second, next := w.ask(0, request("a")), w.ask(1, r), w.ask(0, request("a"))
		w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("confirm") })
		w.release(0, first)
		advance(5 * time.Second)
		w.refused(second, fencing.CodeUnavailable)
		w.holds(next)
	})
}

// A newer request with the lease id takes over, wherever the older one waits.
func TestANewerRequestTakesOver(t *testing.T) {
	for gateway := range 2 {
		inWorld(t, func(w *world) {
			first := w.ask(0, request("a"))
			r := request("a")
			r.Keep = true
			older := w.ask(0, r)
			r.Stamp = fencing.NewStamp()
			newer := w.ask(gateway, r)
			w.refused(older, fencing.CodeReplaced)
			w.waits(newer)
			w.release(0, first)
			w.holds(newer)
			w.want("taken back", w.wires[0].Count("take_back"), 0)
		})
	}
}

// A newer request comes between the hand-off and its confirmation.
func TestANewerRequestTakesAGrantOver(t *testing.T) {
	inWorld(t, func(w *world) {
		first := w.ask(0, request("a"))
		r := request("a")
		r.Keep = true
		older := w.ask(1, r)
		r.Stamp = fencing.NewStamp()
		var newer *client
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.Before = on("confirm", func() error { newer = w.start(0, r); <-newer.done; return nil })
		})
		w.release(0, first)
		w.refused(older, fencing.CodeReplaced)
		w.holds(newer)
	})
}

// Drain answers at once; only places with a lease id of the client's own rest.
func TestDrain(t *testing.T) {
	inWorld(t, func(w *world) {
		first := w.ask(0, request("a"))
		keeping, other := request("a"), request("a")
		keeping.Keep = true
		kept, gone, elsewhere := w.ask(0, keeping), w.ask(0, other), w.ask(1, request("a"))
		w.dogs[0].Drain()
		w.refused(kept, fencing.CodeDraining)
		w.refused(gone, fencing.CodeDraining)
		w.refused(w.ask(0, request("a")), fencing.CodeDraining)
		w.refused(w.ask(0, request("b")), fencing.CodeDraining)
		w.dogs[0].Stop()
		queue := w.state("a").Queue
		w.want("connected places", queue.Len(), 1)
		w.want("resting places", len(queue.Resting()), 1)
		keeping.Stamp = fencing.NewStamp()
		back := w.ask(1, keeping)
		w.release(1, first)
		w.holds(back)
		w.waits(elsewhere)
		w.release(1, back)
		w.holds(elsewhere)
		w.want("drops", w.seen[0].of("dropped "+DroppedDraining), 4)
	})
}

// A grant that has come before the drain is delivered.
func TestDrainDuringTheConfirmation(t *testing.T) {
	inWorld(t, func(w *world) {
		first, second := w.ask(0, request("a")), w.ask(1, request("a"))
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.Before = on("confirm", func() error { w.dogs[1].Drain(); return nil })
		})
		w.release(0, first)
		w.holds(second)
	})
}

// Who joins while the gateway drains has no place left behind.
func TestDrainDuringJoin(t *testing.T) {
	inWorld(t, func(w *world) {
		w.ask(0, request("a"))
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.After = on("acquire", func() error { w.dogs[1].Drain(); return nil })
		})
		w.refused(w.ask(1, request("a")), fencing.CodeDraining)
		queue := w.state("a").Queue
		w.want("places", queue.Len(), 0)
	})
}

// Beyond the cap nobody is parked, but a free lock is granted.
func TestTheProcessIsFull(t *testing.T) {
	inWorldWith(t, Options{MaxWaiters: 2}, func(w *world) {
		first := w.ask(0, request("a"))
		second, third := w.ask(0, request("a")), w.ask(0, request("a"))
		err := w.refused(w.ask(0, request("a")), fencing.CodeTooManyRequests)
		if err.Lock == nil || err.RetryAfter <= 0 {
			t.Errorf("refused with %+v", err)
		}
		w.holds(w.ask(0, request("b")))
		w.want("drops", w.seen[0].of("dropped "+DroppedProcessFull), 1)
		w.release(0, first)
		w.holds(second)
		w.waits(w.ask(0, request("a")))
		w.release(0, second)
		w.holds(third)
	})
}

func TestTheNameIsFull(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.MaxWaiters = 1
		w.ask(0, r)
		r = request("a")
		r.MaxWaiters = 1
		w.ask(0, r)
		r = request("a")
		r.MaxWaiters = 1
		w.refused(w.ask(0, r), fencing.CodeTooManyRequests)
		w.want("drops", w.seen[0].of("dropped "+DroppedNameFull), 1)
	})
}

// A place says where the request stands.
func TestPlace(t *testing.T) {
	inWorld(t, func(w *world) {
		w.ask(0, request("a"))
		w.ask(1, request("a"))
		r := request("a")
		r.Owner = "worker"
		out, waiter, err := w.dogs[0].Join(w.t.Context(), r)
		if err != nil || waiter == nil || out.Lock == nil {
			t.Fatalf("joined with %+v, %v", out, err)
		}
		if p := waiter.Place(); p.Position < 1 || p.Position > 2 || p.Owner != "worker" || p.Lease != r.Lease.Public() {
			t.Errorf("the place is %+v", p)
		}
		w.dogs[0].Drain()
		if _, err := waiter.Wait(w.t.Context()); fencing.CodeOf(err) != fencing.CodeDraining {
			t.Errorf("waiting ended with %v", err)
		}
	})
}

// A panic of the store leaves nobody parked.
func TestAPanicInTheStore(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = on("acquire", func() error { panic("a defect") })
		})
		func() {
			defer func() { recover() }()
			w.dogs[0].Do(w.t.Context(), request("a"))
		}()
		w.free("a")
		synctest.Wait()
	})
}
