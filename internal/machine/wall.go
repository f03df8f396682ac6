package machine

import (
	"fmt"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// The log's time stands still while nobody leads or serves, and leases with it; and it goes on where a wall clock is set
// back. So it may differ from the wall clock, by which people are shown when something was. Each entry therefore says what
// its writer's wall clock was, and the state has by how much that was ahead of the log's time from when on. No rule
// reckons with it; but whoever opens the log without peers goes on by it: see Last.
const (
	// LeastWallStep is the change that is noted: times are shown with less of an error than that.
	LeastWallStep = 250 * time.Millisecond

	// MostWallSteps bounds how many changes are known. Of more the smallest one but the newest is forgotten.
	MostWallSteps = 256
)

// WallStep says by how much the wall clock is ahead of the log's time from an instant on, until the next step.
type WallStep struct {
	From  int64 `cbor:"1,keyasint"`           // an instant, in microseconds
	Ahead int64 `cbor:"2,keyasint,omitempty"` // microseconds; less than 0 if it is behind
}

// WallSteps are steps in order. They are never changed: there are others then.
type WallSteps []WallStep

// Newest returns the instant of the last step, 0 if there is none.
func (w WallSteps) Newest() int64 {
	if len(w) > 0 {
		return w[len(w)-1].From
	}
	return 0
}

// Since returns the steps behind an instant, nil if there are none.
func (w WallSteps) Since(instant int64) WallSteps {
	for i := range w {
		if w[i].From > instant {
			return w[i:]
		}
	}
	return nil
}

// Differs reports whether the wall clock, at an instant, is to be noted.
func (w WallSteps) Differs(now, wall fencing.Instant) bool {
	return len(w) == 0 || wall.Sub(now.Add(w[len(w)-1].ahead())).Abs() >= LeastWallStep
}

// noted returns the steps with the wall clock at an instant; 0 says nothing of it.
func (w WallSteps) noted(now, wall fencing.Instant) WallSteps {
	if wall == 0 || !w.Differs(now, wall) {
		return w
	}
	known := slices.Clone(w)
	if n := len(known); n > 0 && known[n-1].From == int64(now) {
		known = known[:n-1]
	}
	known = append(known, WallStep{From: int64(now), Ahead: int64(wall - now)})
	if len(known) > MostWallSteps {
		least := 1
		for i := 2; i < len(known)-1; i++ { // the newest is what it is now
			if known.stepOf(i) < known.stepOf(least) {
				least = i
			}
		}
		known = slices.Delete(known, least, least+1)
	}
	return known
}

// stepOf returns by how much a step differs from the one before it.
func (w WallSteps) stepOf(i int) time.Duration { return (w[i].ahead() - w[i-1].ahead()).Abs() }

func (s *WallStep) ahead() time.Duration { return time.Duration(s.Ahead) * time.Microsecond }

// earliest is before any version of Fencepost ran: a wall clock that shows less is wrong.
var earliest = fencing.InstantOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

// WrongClock returns an error that says so where a wall clock is known to be wrong.
func WrongClock(wall fencing.Instant) error {
	if wall < earliest {
		return fmt.Errorf("the clock of this machine shows %s: correct the clock", shown(wall))
	}
	return nil
}

// mostAway is how much later than its last entry a log is opened at most: a wall clock that says more is not believed, for
// all would be over, and tokens of such a time stay.
const mostAway = 10 * 365 * 24 * time.Hour

// Last is when the last entry of a log was made: by the time of the log, and by the wall clock. Of a log without entries it is zero.
type Last struct{ Now, Wall fencing.Instant }

// GoOnAt returns the instant at which the log goes on when it is opened, wall being the wall clock: as much behind its last one
// as has passed by the wall clock since then, and never before that. Where the wall clock of then is known to be wrong, or is ahead of
// that of now, nobody knows what has passed: nothing counts, so that nothing ends early. A log without entries begins
// with the wall clock. It fails where the wall clock of now can't be right.
func (l Last) GoOnAt(wall fencing.Instant) (fencing.Instant, error) {
	switch passed := wall.Sub(l.Wall); {
	case l.Now == 0 && wall >= fencing.Instant(fencing.MaxToken)/2:
		return 0, fmt.Errorf("the clock of this machine shows %s: correct the clock", shown(wall))
	case l.Now == 0:
		return wall, nil
	case l.Wall < earliest || passed <= 0:
		return l.Now, nil
	case passed > mostAway:
		return 0, fmt.Errorf("the clock of this machine shows %s, but the store was last used at %s: correct the clock", shown(wall), shown(l.Wall))
	default:
		return l.Now.Add(passed), nil
	}
}

func shown(wall fencing.Instant) string { return wall.Time().Format(time.RFC3339) }

// Time returns what the wall clock was, or will be, at an instant.
func (w WallSteps) Time(at fencing.Instant) time.Time {
	if len(w) == 0 {
		return at.Time()
	}
	i := len(w) - 1
	for i > 0 && w[i].From > int64(at) {
		i--
	}
	return at.Add(w[i].ahead()).Time()
}
