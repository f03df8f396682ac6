package machine

import (
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// The log's time stands still while nobody leads or serves, and leases with it; and it goes on where a wall clock is set
// back. So it may differ from the wall clock, by which people are shown when something was. Each entry therefore says what
// its writer's wall clock was, and the state has by how much that was ahead of the log's time from when on. No rule
// reckons with it.
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
