package raft

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
)

// The log's time stands still while there is no leader, and leases with it. So it falls behind the wall clock, by which
// people are shown when something was. Each entry therefore says what its leader's wall clock was, and the state has by
// how much that was ahead of the log's time from when on. No rule reckons with it.
const (
	// leastWallStep is the change that is noted: times are shown with less of an error than that.
	leastWallStep = 250 * time.Millisecond

	// mostWallSteps bounds how many changes are known. Of more the smallest one but the newest is forgotten.
	mostWallSteps = 256
)

// wallStep says by how much the wall clock is ahead of the log's time from an instant on, until the next step.
type wallStep struct {
	From  int64 `cbor:"1,keyasint"`           // an instant, in microseconds
	Ahead int64 `cbor:"2,keyasint,omitempty"` // microseconds; less than 0 if it is behind
}

// wallSteps are all steps that are known, in order. Who reads them needs no mutex.
type wallSteps struct {
	known atomic.Pointer[[]wallStep] // in the state
	shown atomic.Pointer[[]wallStep] // with those that the leader has told of behind them, whose entries are not carried out here yet

	mu sync.Mutex // held to change either
}

// load returns the steps of the state: they are not to be changed.
func (w *wallSteps) load() []wallStep { return loaded(&w.known) }

func loaded(p *atomic.Pointer[[]wallStep]) []wallStep {
	if steps := p.Load(); steps != nil {
		return *steps
	}
	return nil
}

// newest returns the instant of the last step of the state, 0 if there is none.
func (w *wallSteps) newest() int64 {
	if known := w.load(); len(known) > 0 {
		return known[len(known)-1].From
	}
	return 0
}

// last returns so many of the last steps.
func (w *wallSteps) last(n int) []wallStep {
	known := w.load()
	return known[max(0, len(known)-n):]
}

// since returns the steps behind an instant, nil if there are none.
func (w *wallSteps) since(instant int64) []wallStep { return behind(w.load(), instant) }

// behind returns those steps that are behind an instant, nil if there are none.
func behind(steps []wallStep, instant int64) []wallStep {
	for i := range steps {
		if steps[i].From > instant {
			return steps[i:]
		}
	}
	return nil
}

// set makes steps those of the state.
func (w *wallSteps) set(known []wallStep) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known.Store(&known)
	w.show(behind(loaded(&w.shown), w.newest()))
}

// hear notes steps that the leader has told of.
func (w *wallSteps) hear(told []wallStep) {
	if len(told) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ahead := append(slices.Clone(behind(loaded(&w.shown), w.newest())), behind(told, w.newest())...)
	slices.SortFunc(ahead, func(a, b wallStep) int { return cmp.Compare(a.From, b.From) })
	ahead = slices.Compact(ahead)
	w.show(ahead[max(0, len(ahead)-mostWallSteps):])
}

// show has times shown by the state and by the steps ahead of it. The caller holds the mutex.
func (w *wallSteps) show(ahead []wallStep) {
	shown := slices.Concat(w.load(), ahead)
	w.shown.Store(&shown)
}

// differs reports whether the wall clock, at an instant, is to be noted.
func (w *wallSteps) differs(now, wall fencing.Instant) bool {
	known := w.load()
	return len(known) == 0 || wall.Sub(now.Add(known[len(known)-1].ahead())).Abs() >= leastWallStep
}

// note notes the wall clock at an instant. The caller holds the machine's mutex, and calls it in the order of the log.
func (w *wallSteps) note(now, wall fencing.Instant) {
	if wall == 0 || !w.differs(now, wall) {
		return
	}
	known := slices.Clone(w.load())
	if n := len(known); n > 0 && known[n-1].From == int64(now) {
		known = known[:n-1]
	}
	known = append(known, wallStep{From: int64(now), Ahead: int64(wall - now)})
	if len(known) > mostWallSteps {
		least := 1
		for i := 2; i < len(known)-1; i++ { // the newest is what it is now
			if stepOf(known, i) < stepOf(known, least) {
				least = i
			}
		}
		known = slices.Delete(known, least, least+1)
	}
	w.set(known)
}

// stepOf returns by how much a step differs from the one before it.
func stepOf(known []wallStep, i int) time.Duration {
	return (known[i].ahead() - known[i-1].ahead()).Abs()
}

func (s *wallStep) ahead() time.Duration { return time.Duration(s.Ahead) * time.Microsecond }

// time returns what the wall clock was, or will be, at an instant.
func (w *wallSteps) time(at fencing.Instant) time.Time {
	steps := loaded(&w.shown)
	if len(steps) == 0 {
		return at.Time()
	}
	i := len(steps) - 1
	for i > 0 && steps[i].From > int64(at) {
		i--
	}
	return at.Add(steps[i].ahead()).Time()
}
