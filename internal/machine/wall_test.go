package machine

import (
	"bytes"
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

// Who opens a log goes on from its last instant, by as much as the wall clock says has passed since then where that may be right.
func TestWhereALogGoesOn(t *testing.T) {
	at := func(year int) fencing.Instant {
		return fencing.InstantOf(time.Date(year, 11, 28, 0, 0, 0, 0, time.UTC))
	}
	now := at(2026)
	for _, c := range []struct {
		name       string
		last       Last
		wall, want fencing.Instant // 0: it is refused
	}{
		{"a new store", Last{}, now, now},
		{"a new store, first start with the clock of 2010", Last{}, at(2010), at(2010)},
		{"a new store with a clock that no machine has", Last{}, at(2150), 0},
		{"the clocks agree", Last{now, now}, now.Add(time.Minute), now.Add(time.Minute)},
		{"the log was without a leader for an hour", Last{now.Add(-time.Hour), now}, now.Add(time.Minute), now.Add(time.Minute - time.Hour)},
		{"the wall clock was set forward while it ran", Last{now, now.Add(time.Hour)}, now.Add(time.Hour + time.Second), now.Add(time.Second)},
		{"the wall clock was set back while it ran", Last{now, now.Add(-time.Hour)}, now.Add(time.Second - time.Hour), now.Add(time.Second)},
		{"the wall clock was set back since", Last{now, now}, now.Add(-time.Hour), now},
		{"it was two days ahead once", Last{now.Add(48 * time.Hour), now}, now.Add(12 * time.Hour), now.Add(60 * time.Hour)},
		{"the clock of 2010 was set right while it ran", Last{at(2010), now}, now.Add(time.Second), at(2010).Add(time.Second)},
		{"the clock of 2010 was set right since", Last{at(2010), at(2010)}, now, at(2010)},
		{"the clock is that of 2010 now", Last{now, now}, at(2010), now},
		{"the clock was that of 2150", Last{now, at(2150)}, now, now},
		{"nine years later", Last{now, now}, at(2035), at(2035)},
		{"eleven years later", Last{now, now}, at(2037), 0},
		{"eleven years later than its own time, not than its clock", Last{at(2015), now}, now.Add(time.Second), at(2015).Add(time.Second)},
	} {
		is, err := c.last.GoOnAt(c.wall)
		if is != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: it goes on at %s, %v, want %s", c.name, is.Time(), err, c.want.Time())
		}
	}
}

// What the last entry says of the wall clock is known exactly from the log; a snapshot alone says no earlier a time, and
// hardly a later one.
func TestTheLastEntryOfASnapshot(t *testing.T) {
	now := fencing.InstantOf(time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC))
	m := testMachine(t)
	var last *Decoded
	for i, ahead := range []time.Duration{time.Hour, time.Hour + LeastWallStep/2} {
		e := Entry{Now: int64(now), Wall: int64(now.Add(ahead)), Batches: []Batch{{Ops: []Op{Tick()}}}}
		var err error
		if last, err = Decode(must(e.Encode())); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Apply(uint64(i+1), last, &Telling{}, false); err != nil {
			t.Fatal(err)
		}
	}
	exact := Last{now, now.Add(time.Hour + LeastWallStep/2)}
	if m.Last() != exact {
		t.Errorf("the log says %v, want %v", m.Last(), exact)
	}
	again := anew(t, bytes.NewReader(encoded(t, m)))
	if late := again.Last().Wall.Sub(exact.Wall); late < 0 || late > 2*LeastWallStep {
		t.Errorf("a snapshot says it %s late", late)
	}
	if again.Covered(last); again.Last() != exact {
		t.Errorf("with its last entry it says %v, want %v", again.Last(), exact)
	}
}
