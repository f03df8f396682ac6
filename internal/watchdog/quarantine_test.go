package watchdog

import (
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// handedOver returns a waiter at gateway 1 that was handed the lock, and was not told
// before a quarantine began.
func handedOver(w *world, quarantine time.Duration, r fencing.AcquireRequest) *client {
	holder := w.ask(0, request("a"))
	c := w.ask(1, r)
	w.waits(c)
	w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Message = lose })
	w.release(0, holder)
	synctest.Wait()
	w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Message = nil })
	w.wires[0].Arrive(fencing.Arrival{Server: "S", Least: quarantine, Most: quarantine, Lost: true})
	return c
}

// waiting returns a request that waits for so long, and whose place rests for it.
func waiting(d time.Duration) fencing.AcquireRequest {
	r := request("a")
	r.Wait, r.Keep, r.TTL = d, true, time.Hour
	return r
}

// Who was handed the lock and not told is told at the end of a quarantine.
func TestConfirmedAfterQuarantine(t *testing.T) {
	inWorld(t, func(w *world) {
		c := handedOver(w, 20*time.Second, waiting(time.Minute))
		advance(19 * time.Second)
		w.waits(c)
		advance(2 * time.Second)
		w.holds(c)
	})
}

// One that would have to wait for longer than it may is told at once.
func TestQuarantineIsLongerThanTheWait(t *testing.T) {
	inWorld(t, func(w *world) {
		c := handedOver(w, 20*time.Second, waiting(2*time.Second))
		advance(2*time.Second + 100*time.Millisecond)
		w.refused(c, fencing.CodeQuarantined)
	})
}

// Drain reaches who waits for the end of a quarantine.
func TestDrainInQuarantine(t *testing.T) {
	inWorld(t, func(w *world) {
		c := handedOver(w, 20*time.Second, waiting(time.Minute))
		advance(2 * time.Second) // the heartbeat has told of it
		w.waits(c)
		w.dogs[1].Drain()
		w.refused(c, fencing.CodeDraining)
	})
}

// The client comes back at another gateway in a quarantine: it goes on waiting.
func TestComesBackInQuarantine(t *testing.T) {
	inWorld(t, func(w *world) {
		c := handedOver(w, 20*time.Second, waiting(time.Minute))
		again := c.AcquireRequest
		again.Stamp = fencing.NewStamp()
		back := w.ask(0, again)
		w.waits(back)
		w.refused(c, fencing.CodeReplaced)
		advance(21 * time.Second)
		w.holds(back)
	})
}

// So it does if the gateway has died that was handed the lock, and who came later is
// served later.
func TestComesBackFromADeadGatewayInQuarantine(t *testing.T) {
	inWorld(t, func(w *world) {
		c := handedOver(w, 30*time.Second, waiting(2*time.Minute))
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.Before = func(string) error { return fencing.Unavailable(fencingtest.ErrCut) }
		})
		later := request("a")
		later.Wait = 10 * time.Minute
		behind := w.ask(0, later)
		advance(100 * time.Millisecond)
		again := c.AcquireRequest
		again.Stamp = fencing.NewStamp()
		back := w.ask(0, again)
		advance(31 * time.Second)
		w.holds(back)
		w.waits(behind)
		w.wires[1].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
		behind.cancel()
		c.cancel()
		synctest.Wait()
	})
}

// The first attempt of a request joined and had no answer, the lock was handed to it,
// and the second attempt comes in a quarantine.
func TestOwnAttemptWasHandedTheLockBeforeAQuarantine(t *testing.T) {
	inWorld(t, func(w *world) {
		holder := w.ask(0, request("a"))
		r := waiting(time.Minute)
		w.wires[1].Set(func(wire *fencingtest.Wire) {
			wire.Message = lose
			wire.Before = on("acquire", func() error {
				if _, err := wire.Model.Do(t.Context(), r); err != nil {
					t.Error(err)
				}
				w.release(0, holder)
				wire.Model.Arrive(fencing.Arrival{Server: "S", Least: 20 * time.Second, Most: 20 * time.Second, Lost: true})
				return nil
			})
		})
		c := w.ask(1, r)
		w.waits(c)
		advance(21 * time.Second)
		w.holds(c)
	})
}
