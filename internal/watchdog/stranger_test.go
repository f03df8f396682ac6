package watchdog

import (
	"testing"
	"testing/synctest"
	"time"
)

// A place whose request nobody remembers, as a join leaves behind that arrives after
// its request has gone, is handed the lock in its turn: heartbeats tell of it, and
// the gateway gives it back, so that who waits behind it is served (P5, P6).
func TestAGrantToNobodyIsTakenBack(t *testing.T) {
	inWorld(t, func(w *world) {
		holder := w.ask(1, request("a"))
		w.holds(holder)
		if out, err := w.wires[0].Acquire(t.Context(), request("a")); err != nil || !out.Waits() {
			t.Fatalf("%+v, %v", out, err)
		}
		behind := w.ask(0, request("a"))
		w.waits(behind)
		w.release(1, holder) // hands it to gateway 0, provisionally
		for range 3 {
			advance(time.Second)
			synctest.Wait()
		}
		w.holds(behind)
		w.want("grants taken back", w.seen[0].of("takenBack"), 1)
	})
}
