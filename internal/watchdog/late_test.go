package watchdog

import (
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// An attempt to join that arrives when its request has given up already leaves no
// place behind that would be handed the lock (P6).
func TestALateJoinAfterAShortWait(t *testing.T) {
	inWorld(t, func(w *world) {
		holder := w.ask(0, request("a"))
		r := request("a")
		r.Wait = 200 * time.Millisecond
		short := w.ask(0, r)
		advance(250 * time.Millisecond)
		w.refused(short, fencing.CodeWaitTimeout)
		if out, err := w.wires[0].Do(t.Context(), r); err != nil || !out.Waits() { // the same, sent before
			t.Fatalf("%+v, %v", out, err)
		}
		advance(3 * time.Second) // twice the skew guard, and more
		synctest.Wait()
		places := w.state("a").Queue
		w.want("places", places.Len(), 0)
		w.holds(holder)
	})
}

// A store that was out of reach for longer than a minute comes back: the places of
// those who left meanwhile are given up, and who still waits is served (P5).
func TestAnOutageLeavesNoPlacesBehind(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.TTL = time.Hour
		holder := w.ask(0, r)
		w.holds(holder)
		var gone []*client
		for range 3 {
			gone = append(gone, w.ask(0, request("a")))
		}
		for _, each := range w.wires {
			each.Set(func(wire *fencingtest.Wire) {
				wire.Before = func(string) error { return fencing.Unavailable(fencingtest.ErrCut) }
			})
		}
		advance(140 * time.Second) // their minute runs out, and another one
		for _, c := range gone {
			w.refused(c, fencing.CodeUnavailable)
		}
		for _, each := range w.wires {
			each.Set(func(wire *fencingtest.Wire) { wire.Before = nil })
		}
		advance(3 * time.Second)
		behind := w.ask(0, request("a"))
		advance(3 * time.Second) // heartbeats
		w.waits(behind)
		w.release(0, holder)
		advance(2 * time.Second)
		w.holds(behind)
	})
}

// At a full gateway a lease may be asked for that needs no waiting; where the answer
// is lost, nobody will ask again, so it is taken back (P6).
func TestAFullGatewayLeaksNoGrant(t *testing.T) {
	inWorldWith(t, Options{MaxWaiters: 1, MaxSkew: time.Second}, func(w *world) {
		w.ask(0, request("a"))
		waits := w.ask(0, request("a"))
		w.waits(waits)
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = on("acquire", func() error { return fencing.Unavailable(fencingtest.ErrCut) })
		})
		w.refused(w.ask(0, request("b")), fencing.CodeUnavailable)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.After = nil })
		advance(time.Second)
		w.free("b")
	})
}

// Where an acquire was refused and an attempt of it has had no answer, what that may
// yet get is taken back (P6).
func TestARefusalWithAnAttemptUnanswered(t *testing.T) {
	for _, full := range []bool{false, true} {
		inWorldWith(t, Options{MaxWaiters: 1, MaxSkew: time.Second}, func(w *world) {
			if full {
				w.ask(0, request("b"))
				w.waits(w.ask(0, request("b")))
			}
			w.wires[0].Set(func(wire *fencingtest.Wire) {
				wire.After = on("acquire", func() error { return &fencing.Error{Code: fencing.CodeTooManyRequests, Unanswered: true} })
			})
			w.refused(w.ask(0, request("a")), fencing.CodeTooManyRequests)
			advance(time.Second)
			w.free("a")
		})
	}
}

// The same of a request that waits: the answer to its asking again ends it.
func TestAskingAgainRefusedWithAnAttemptUnanswered(t *testing.T) {
	inWorld(t, func(w *world) {
		holder := w.ask(0, request("a"))
		waiter := w.ask(0, request("a"))
		w.waits(waiter)
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = on("acquire", func() error { return &fencing.Error{Code: fencing.CodeTooManyRequests, Unanswered: true} })
		})
		w.asksAgain(0, waiter)
		w.refused(waiter, fencing.CodeTooManyRequests)
		advance(time.Second)
		places := w.state("a").Queue
		w.want("places", places.Len(), 0)
		w.holds(holder)
	})
}
