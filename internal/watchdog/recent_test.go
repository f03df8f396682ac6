package watchdog

import (
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// standStill has gateway 0 read its next answer to op half a minute late. Meanwhile a
// fail-over has forgotten what that granted to r, the quarantine is over, and a client of
// gateway 1 has got the lock, for an hour, which is returned.
func standStill(w *world, op string, r fencing.AcquireRequest) <-chan *client {
	other := make(chan *client, 1)
	w.wires[0].Set(func(wire *fencingtest.Wire) {
		wire.After = on(op, func() error {
			other <- w.forgets(r)
			return nil
		})
	})
	return other
}

// forgets is what happens while a gateway stands still.
func (w *world) forgets(r fencing.AcquireRequest) *client {
	taken := fencing.TakeBackRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp, Refused: true}
	if _, err := w.wires[1].Model.Do(w.t.Context(), taken); err != nil {
		w.t.Error(err)
	}
	next := request(r.Name)
	next.Wait, next.TTL = 0, time.Hour
	other := w.start(1, next)
	<-other.done
	advance(30 * time.Second)
	return other
}

// hour is a request whose lease would outlast the quarantine.
func hour(wait time.Duration) fencing.AcquireRequest {
	r := request("a")
	r.Wait, r.TTL = wait, time.Hour
	return r
}

// A lease that was granted and forgotten before its gateway read the answer is not told
// (P1): the lock is somebody else's.
func TestOldGrantIsNotTold(t *testing.T) {
	for _, wait := range []time.Duration{0, 10 * time.Minute} {
		inWorld(t, func(w *world) {
			r := hour(wait)
			other := standStill(w, "acquire", r)
			c := w.ask(0, r)
			advance(31 * time.Second)
			o := <-other
			w.holds(o)
			if wait == 0 {
				w.refused(c, fencing.CodeLocked)
				return
			}
			w.waits(c)
			w.release(1, o)
			w.holds(c)
		})
	}
}

// The same of one that the answer to a release handed on to a request that waits.
func TestOldHandOffIsNotTold(t *testing.T) {
	inWorld(t, func(w *world) {
		holder, r := w.ask(0, request("a")), hour(10*time.Minute)
		c := w.ask(0, r)
		w.waits(c)
		other := make(chan *client, 1)
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.Message = func(_ fencing.Grant, pass func()) {
				go func() { other <- w.forgets(r); pass() }()
			}
		})
		w.release(0, holder)
		advance(31 * time.Second)
		o := <-other
		w.holds(o)
		w.waits(c)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Message = nil })
		w.release(1, o)
		w.holds(c)
	})
}

// The same of one that was confirmed.
func TestOldConfirmationIsNotTold(t *testing.T) {
	inWorld(t, func(w *world) {
		holder, r := w.ask(1, request("a")), hour(10*time.Minute)
		c := w.ask(0, r)
		w.waits(c)
		other := standStill(w, "confirm", r)
		w.release(1, holder)
		advance(31 * time.Second)
		w.holds(<-other)
		w.waits(c)
		c.cancel()
		synctest.Wait()
	})
}

// The same of one that was found when its request gave up.
func TestOldGrantFoundLeavingIsNotTold(t *testing.T) {
	inWorld(t, func(w *world) {
		holder, r := w.ask(0, hour(0)), hour(time.Minute)
		c := w.ask(0, r)
		w.waits(c)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Message, wire.Mute = lose, true }) // nor does a heartbeat find it
		advance(time.Minute - time.Millisecond)
		w.release(0, holder)
		other := standStill(w, "leave", r)
		advance(31 * time.Second)
		w.holds(<-other)
		w.refused(c, fencing.CodeWaitTimeout)
	})
}

// A lease that the store still has is told, and what is left of it by then.
func TestOldGrantThatIsStillHeld(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = on("acquire", func() error { advance(30 * time.Second); return nil })
		})
		c := w.ask(0, hour(0))
		advance(31 * time.Second)
		w.holds(c)
		if left := c.out.Remaining(time.Now()); left > time.Hour-30*time.Second {
			t.Errorf("%s is left", left)
		}
		w.want("acquires", w.wires[0].Count("acquire"), 2)
	})
}

// A store whose every answer is old is told apart from one that refuses, and asked twice.
func TestAnswersThatAreAllOld(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = func(op string) error {
				if op == "acquire" {
					advance(oldAnswer + time.Second)
				}
				return nil
			}
		})
		c := w.ask(0, hour(time.Minute))
		advance(3*oldAnswer + 3*time.Second)
		w.refused(c, fencing.CodeUnavailable)
		w.want("acquires", w.wires[0].Count("acquire"), 2)
		advance(5 * time.Second)
		w.free("a")
	})
}

// A renewal that was forgotten is not told either: the lease is lost.
func TestOldRenewalIsNotTold(t *testing.T) {
	inWorld(t, func(w *world) {
		r := hour(0)
		w.holds(w.ask(0, r))
		other := standStill(w, "renew", r)
		_, err := w.dogs[0].Do(t.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
		w.holds(<-other)
		if err == nil || fencing.CodeOf(err) != fencing.CodeLeaseLost {
			t.Errorf("the renewal came to %v", err)
		}
	})
}

// An answer in time is not asked for again.
func TestRecentGrantsAreAskedForOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = on("acquire", func() error { advance(oldAnswer - time.Millisecond); return nil })
		})
		c := w.ask(0, hour(0))
		advance(oldAnswer)
		w.holds(c)
		w.want("acquires", w.wires[0].Count("acquire"), 1)
	})
}
