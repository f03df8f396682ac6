package watchdog

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// Whoever waits is granted the lock at the end of a lock delay, whichever gateway it waits at,
// and whether the lease before was broken or ran out.
func TestGrantedAtTheEndOfALockDelay(t *testing.T) {
	for gateway := range 2 {
		for _, breaks := range []bool{false, true} {
			inWorld(t, func(w *world) {
				r := request("a")
				r.LockDelay = 5300 * time.Millisecond // no heartbeat comes then
				w.ask(0, r)
				began := r.TTL
				waiter := w.ask(gateway, request("a"))
				advance(time.Second)
				if breaks {
					if _, err := w.dogs[0].Do(w.t.Context(), fencing.BreakRequest{Name: "a", Token: w.holder("a").Token}); err != nil {
						w.t.Fatal(err)
					}
					began = time.Second
				}
				advance(began + r.LockDelay - time.Second - time.Millisecond)
				w.waits(waiter)
				advance(100 * time.Millisecond)
				w.holds(waiter)
			})
		}
	}
}

// Who comes while nobody holds the lock for a lock delay is granted it at its end.
func TestGrantedAtTheEndOfALockDelayThatHasBegun(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.LockDelay = 5300 * time.Millisecond // no heartbeat comes then
		w.ask(0, r)
		advance(r.TTL + time.Second)
		waiter := w.ask(0, request("a"))
		advance(r.LockDelay - time.Second - time.Millisecond)
		w.waits(waiter)
		advance(100 * time.Millisecond)
		w.holds(waiter)
	})
}
