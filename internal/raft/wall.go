package raft

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// wallClock is by what people are shown times: what the log says of the wall clock, and what the leader has told of behind
// that, whose entries are not carried out here yet. Who reads it needs no mutex.
type wallClock struct {
	known atomic.Pointer[machine.WallSteps] // of the log
	shown atomic.Pointer[machine.WallSteps] // with those ahead of it

	mu sync.Mutex // held to change either
}

// steps returns those of the log.
func (w *wallClock) steps() machine.WallSteps { return loaded(&w.known) }

func loaded(p *atomic.Pointer[machine.WallSteps]) machine.WallSteps {
	if steps := p.Load(); steps != nil {
		return *steps
	}
	return nil
}

// last returns so many of the last steps of the log.
func (w *wallClock) last(n int) machine.WallSteps {
	known := w.steps()
	return known[max(0, len(known)-n):]
}

// follow makes steps those of the log.
func (w *wallClock) follow(known machine.WallSteps) {
	if is := w.steps(); len(is) == len(known) && is.Newest() == known.Newest() && len(is) > 0 && is[len(is)-1] == known[len(known)-1] {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known.Store(&known)
	w.show(loaded(&w.shown).Since(known.Newest()))
}

// hear notes steps that the leader has told of.
func (w *wallClock) hear(told machine.WallSteps) {
	if len(told) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	newest := w.steps().Newest()
	ahead := append(slices.Clone(loaded(&w.shown).Since(newest)), told.Since(newest)...)
	slices.SortFunc(ahead, func(a, b machine.WallStep) int { return cmp.Compare(a.From, b.From) })
	ahead = slices.Compact(ahead)
	w.show(ahead[max(0, len(ahead)-machine.MostWallSteps):])
}

// show has times shown by the log and by the steps ahead of it. The caller holds the mutex.
func (w *wallClock) show(ahead machine.WallSteps) {
	shown := slices.Concat(w.steps(), ahead)
	w.shown.Store(&shown)
}

// time returns what the wall clock was, or will be, at an instant.
func (w *wallClock) time(at fencing.Instant) time.Time { return loaded(&w.shown).Time(at) }
