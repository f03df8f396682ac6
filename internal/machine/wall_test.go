package machine

import (
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// Of more changes of the wall clock than are kept the smallest are forgotten.
func TestWallStepsAreBounded(t *testing.T) {
	var w WallSteps
	now := fencing.InstantOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	at := map[fencing.Instant]time.Time{}
	ahead := time.Duration(0)
	for i := range 4 * MostWallSteps {
		now = now.Add(time.Minute)
		if ahead += time.Second; i%8 == 0 {
			ahead += time.Hour
			at[now] = now.Add(ahead).Time()
		}
		if i%16 == 15 { // smaller than all that are kept
			ahead += LeastWallStep - 2*time.Second
		}
		w = w.noted(now, now.Add(ahead))
		if w.Differs(now, now.Add(ahead)) || w.Time(now) != now.Add(ahead).Time() {
			t.Fatalf("change %d: the time of now is shown as %s, want %s", i, w.Time(now), now.Add(ahead).Time())
		}
		if n := len(w); n > MostWallSteps {
			t.Fatalf("%d are kept", n)
		}
	}
	if !slices.IsSortedFunc(w, func(a, b WallStep) int { return int(a.From - b.From) }) {
		t.Error("they are in no order")
	}
	for at, want := range at {
		if got := w.Time(at); got.Sub(want).Abs() > time.Minute {
			t.Errorf("a time is shown %s late", want.Sub(got))
		}
	}
}
