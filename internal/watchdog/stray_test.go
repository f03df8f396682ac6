package watchdog

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// TestAskingAgainLateLeavesNothing: of a request that asked again, was sent twice and answered once,
// the other attempt reaches the store when the request has given up its place.
func TestAskingAgainLateLeavesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.TTL = time.Hour
		holder := w.ask(0, r)
		w.holds(holder)
		r = request("a")
		r.TTL = time.Hour
		r.Wait = 10 * time.Second
		waiter := w.ask(0, r)
		advance(r.Wait - time.Second)
		w.asksAgain(0, waiter)
		advance(time.Second)
		w.refused(waiter, fencing.CodeWaitTimeout)
		r.Again = true
		if out, err := w.wires[0].Model.Do(t.Context(), r); err != nil || !out.Waits() {
			t.Fatalf("%+v, %v", out, err)
		}
		w.release(0, holder)
		advance(2*time.Second + 100*time.Millisecond)
		w.free("a")
	})
}
