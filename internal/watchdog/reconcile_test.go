package watchdog

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// lose is a message hook that loses all grants.
func lose(fencing.Grant, func()) {}

// A lost message of a grant to another gateway costs a heartbeat.
func TestTheHeartbeatFindsALostGrant(t *testing.T) {
	inWorld(t, func(w *world) {
		first, second := w.ask(0, request("a")), w.ask(1, request("a"))
		advance(300 * time.Millisecond)
		w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Message = lose })
		w.release(0, first)
		w.waits(second)
		advance(fencing.HeartbeatInterval)
		w.holds(second)
		if second.took > fencing.HeartbeatInterval {
			t.Errorf("it was found after %s", second.took)
		}
		w.want("lost messages", w.seen[1].of("lost"), 1)
	})
}

// After a gap those who have been granted the lock are found, and of the others, whom the
// store has, nobody is asked for.
func TestGap(t *testing.T) {
	inWorld(t, func(w *world) {
		shared := func() fencing.AcquireRequest {
			r := request("a")
			r.Mode, r.Limit = fencing.ModeShared, 3
			return r
		}
		first := w.ask(0, request("a"))
		clients := []*client{}
		for range 8 {
			clients = append(clients, w.ask(0, shared()))
			advance(time.Millisecond)
		}
		other := w.ask(0, request("b"))
		behind := w.ask(0, request("b"))
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Message = lose })
		w.release(0, first)
		advance(time.Millisecond)
		before := w.wires[0].Count("acquire")
		w.gap(0)
		for i, c := range clients {
			if i >= 3 {
				w.waits(c)
				continue
			}
			if !c.answered() || c.err != nil {
				t.Errorf("client %d was not found", i)
			}
		}
		w.want("acquires", w.wires[0].Count("acquire")-before, 3)
		w.want("lost messages", w.seen[0].of("lost"), 3)

		before = w.wires[0].Count("acquire")
		w.gap(0)
		w.want("acquires", w.wires[0].Count("acquire")-before, 0)
		w.holds(other)
		w.waits(behind)
	})
}

// Of two that arrived at one instant the second can be the first that is known
// here.
func TestGapAfterOneInstant(t *testing.T) {
	inWorld(t, func(w *world) {
		holder := w.ask(0, request("a"))
		var second *client
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = on("acquire", func() error {
				second = w.start(0, request("a"))
				advance(time.Millisecond)
				return nil
			})
			wire.Message = lose
		})
		first := w.start(0, request("a"))
		advance(2 * time.Millisecond)
		w.release(0, holder)
		w.gap(0)
		w.holds(first)
		w.waits(second)
	})
}

// A gateway that the store has taken for dead has its waiters join anew, in their
// old order.
func TestTakenForDead(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.TTL = 30 * time.Second
		first := w.ask(0, r)
		clients := []*client{}
		for range 5 {
			clients = append(clients, w.ask(1, request("a")))
			advance(time.Millisecond)
		}
		here := w.ask(0, request("a"))
		w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("heartbeat", "acquire") })
		advance(fencing.GatewayTTL + 2*time.Second)
		queue := w.state("a").Queue
		w.want("places", queue.Len(), 1)
		w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
		advance(2 * time.Second)
		w.want("lapsed", w.seen[1].of("dropped "+DroppedLapsed), len(clients))
		w.release(0, first)
		w.holds(here)
		w.release(0, here)
		for _, c := range clients {
			w.holds(c)
			w.release(1, c)
		}
	})
}

// A provisional lease was taken back because its gateway had been silent: the
// request waits on.
func TestTakenForDeadBeforeTheConfirmation(t *testing.T) {
	inWorld(t, func(w *world) {
		first, second := w.ask(0, request("a")), w.ask(1, request("a"))
		third := w.ask(0, request("a"))
		w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("confirm", "heartbeat") })
		w.release(0, first)
		advance(fencing.GatewayTTL + time.Second)
		w.holds(third)
		w.waits(second)
		w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
		advance(2 * time.Second)
		w.waits(second)
		w.release(0, third)
		w.holds(second)
	})
}

// While the store is out of reach heartbeats are tried less and less often.
func TestHeartbeatsBackOff(t *testing.T) {
	inWorld(t, func(w *world) {
		first := w.ask(0, request("a"))
		second := w.ask(0, request("a"))
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Message, wire.Before = lose, fencingtest.Failing("heartbeat") })
		w.release(0, first)
		before := w.wires[0].Count("heartbeat")
		for range 10 {
			w.gap(0)
			advance(time.Second - gapPause)
		}
		tried := w.wires[0].Count("heartbeat") - before
		if tried < 10 || tried > 20 {
			t.Errorf("%d attempts in 10 s", tried)
		}
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
		advance(maxBackoff)
		if !second.answered() {
			t.Error("the grant was not found")
		}
	})
}

// A name is asked for by one request at a time, however long that takes.
func TestOneAsksAtATime(t *testing.T) {
	inWorld(t, func(w *world) {
		first := w.ask(0, request("a"))
		for range 3 {
			r := request("a")
			r.Mode = fencing.ModeShared
			w.ask(0, r)
		}
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Message = lose })
		w.release(0, first)
		before := w.wires[0].Count("acquire")
		var inside, most atomic.Int32
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.Before = func(op string) error {
				if op == "acquire" {
					most.Store(max(most.Load(), inside.Add(1)))
					advance(time.Second)
					inside.Add(-1)
				}
				return nil
			}
		})
		for range 5 {
			w.gap(0)
		}
		advance(5 * time.Second)
		w.want("acquires", w.wires[0].Count("acquire")-before, 3)
		w.want("at once", int(most.Load()), 1)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
	})
}

// The answer to a request that asks again comes when its request has gone: what it brought is
// undone, but a lease that was delivered is left alone.
func TestTheRequestGoesWhileItAsksAgain(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world, first, waiting *client) // while the answer is on its way
		then func(w *world, first, waiting, next *client)
	}{
		{"delivered", func(w *world, first, waiting *client) {
			w.release(0, first)
			<-waiting.done
		}, func(w *world, first, waiting, next *client) {
			advance(5 * time.Second)
			w.holds(waiting)
			w.waits(next)
		}},
		{"left", func(w *world, first, waiting *client) {
			waiting.cancel()
			<-waiting.done
		}, func(w *world, first, waiting, next *client) {
			w.release(0, first)
			advance(time.Second)
			w.holds(next)
		}},
	} {
		for _, late := range []bool{false, true} { // the store decides when all is over
			t.Run(c.name, func(t *testing.T) {
				inWorld(t, func(w *world) {
					first := w.ask(0, request("a"))
					advance(time.Millisecond)
					waiting := w.ask(0, request("a"))
					advance(time.Millisecond)
					next := w.ask(0, request("a"))
					hook := on("acquire", func() error { c.do(w, first, waiting); return nil })
					w.wires[0].Set(func(wire *fencingtest.Wire) {
						if late {
							wire.Before = hook
						} else {
							wire.After = hook
						}
					})
					w.asksAgain(0, waiting)
					synctest.Wait()
					c.then(w, first, waiting, next)
				})
			})
		}
	}
}

// A request that asks again and reaches the store when it has long gone brings nothing
// back, on a store without late commands too.
func TestAskingAgainBehindTheEnd(t *testing.T) {
	for name, end := range map[string]func(w *world, first, waiting *client){
		"left": func(w *world, first, waiting *client) {
			waiting.cancel()
			<-waiting.done
		},
		"delivered and taken back": func(w *world, first, waiting *client) {
			w.release(0, first)
			<-waiting.done
			w.dogs[0].TakeBackLater(takeBackOf(&waiting.AcquireRequest))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, Options{}, func(w *world) {
				first := w.ask(0, request("a"))
				advance(time.Millisecond)
				waiting := w.ask(0, request("a"))
				w.wires[0].Set(func(wire *fencingtest.Wire) {
					wire.Before = on("acquire", func() error {
						end(w, first, waiting)
						advance(time.Millisecond) // it is taken back
						first = w.start(1, request("a"))
						advance(time.Millisecond)
						return nil
					})
				})
				w.asksAgain(0, waiting)
				advance(10 * time.Millisecond)
				synctest.Wait()
				if name == "left" {
					w.waits(first)
				} else {
					w.holds(first)
				}
				want := 0
				if name == "left" {
					want = 1 // first
				}
				queue := w.state("a").Queue
				w.want("places", queue.Len(), want)
			})
		})
	}
}

// Who was replaced does not take over again.
func TestTheReplacedDoNotAskAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		first, r := w.ask(0, request("a")), request("a")
		r.Keep = true
		_, older, err := w.dogs[0].Join(w.t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		r.Stamp = fencing.NewStamp()
		newer := w.ask(1, r)
		w.gap(0)
		synctest.Wait()
		if _, err := older.Wait(w.t.Context()); fencing.CodeOf(err) != fencing.CodeReplaced {
			t.Errorf("the older one was answered %v", err)
		}
		w.release(0, first)
		w.holds(newer)
	})
}

// A request that asks again reaches the store right behind its leaving, and is answered first.
func TestAskingAgainCrossesLeaving(t *testing.T) {
	inWorldWith(t, Options{}, func(w *world) {
		r := request("a")
		r.TTL = 2 * time.Minute
		first, late := w.ask(0, r), w.ask(0, request("a"))
		left := make(chan struct{})
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.Before = on("acquire", func() error { <-left; return nil })
			wire.After = on("leave", func() error { close(left); advance(time.Millisecond); return nil })
		})
		advance(time.Minute - time.Millisecond)
		w.asksAgain(0, late)
		advance(10 * time.Millisecond)
		w.refused(late, fencing.CodeWaitTimeout)
		queue := w.state("a").Queue
		w.want("places", queue.Len(), 0)
		w.release(0, first)
		w.free("a")
	})
}

// A newer grant is not overwritten by an older one, nor a firm one by its
// provisional self.
func TestOffers(t *testing.T) {
	w := New(&store{}, Options{})
	grant := func(token fencing.Token, provisional bool) *granted {
		return &granted{holder: fencing.Holder{Token: token, Provisional: provisional}}
	}
	for _, c := range []struct{ has, offered, keeps *granted }{
		{nil, grant(5, true), grant(5, true)},
		{grant(5, true), grant(5, false), grant(5, false)},
		{grant(5, false), grant(5, true), grant(5, false)},
		{grant(5, false), grant(4, false), grant(5, false)},
		{grant(5, false), grant(6, true), grant(6, true)},
	} {
		waiter := &Waiter{dog: w, grant: c.has}
		waiter.offer(c.offered)
		if waiter.grant.holder.Token != c.keeps.holder.Token || waiter.grant.holder.Provisional != c.keeps.holder.Provisional {
			t.Errorf("%+v offered %+v keeps %+v", c.has, c.offered, waiter.grant)
		}
	}
}

// Heartbeats go on as long as somebody waits, and no longer.
func TestHeartbeats(t *testing.T) {
	inWorld(t, func(w *world) {
		advance(5 * time.Second)
		w.want("heartbeats of nobody", w.wires[0].Count("heartbeat"), 0)
		r := request("a")
		r.TTL = time.Minute
		first := w.ask(0, r)
		second := w.ask(0, request("a"))
		advance(5500 * time.Millisecond)
		w.want("heartbeats", w.wires[0].Count("heartbeat"), 5)
		w.release(0, first)
		w.holds(second)
		advance(10 * time.Second)
		if n := w.wires[0].Count("heartbeat"); n > 6 {
			t.Errorf("%d heartbeats, though nobody waits", n)
		}
		w.ask(0, request("b"))
		third := w.ask(0, request("b"))
		advance(1500 * time.Millisecond)
		w.waits(third)
		if n := w.wires[0].Count("heartbeat"); n < 6 {
			t.Errorf("%d heartbeats, though somebody waits again", n)
		}
	})
}

func TestAnOutageIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	inWorldWith(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(w *world) {
		r := request("a")
		r.TTL = time.Minute
		w.ask(0, r)
		w.ask(0, request("a"))
		for range 2 {
			w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("heartbeat") })
			advance(5 * time.Second)
			w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
			advance(5 * time.Second)
		}
	})
	if n := strings.Count(log.String(), "heartbeats don't reach the store"); n != 2 {
		t.Errorf("two outages were logged %d times:\n%s", n, log.String())
	}
}

// Those who have gone are remembered until what they had is taken back for good.
func TestTheGoneAreForgotten(t *testing.T) {
	inWorld(t, func(w *world) {
		remembered := func() int {
			w.dogs[0].mu.Lock()
			defer w.dogs[0].mu.Unlock()
			return len(w.dogs[0].takeBacks)
		}
		r := request("a")
		r.TTL = time.Hour
		w.ask(0, r)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("leave", "take_back") })
		for range 10 {
			w.ask(0, request("a")).cancel()
		}
		advance(time.Minute)
		w.want("remembered while the store does not answer", remembered(), 10)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
		advance(5 * time.Second)
		w.want("remembered after it has", remembered(), 0)
		w.want("names of heartbeats", len(w.dogs[0].requests.lingering), 0)
	})
}
