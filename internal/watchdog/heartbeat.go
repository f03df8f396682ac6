package watchdog

import (
	"context"
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// gapPause is the least from one heartbeat to the next after a Gap.
const gapPause = 50 * time.Millisecond

// beat has heartbeats run. The caller holds the registry's mutex, and the gateway is not
// draining.
func (w *Watchdog) beat() {
	if !w.requests.beating {
		w.requests.beating = true
		w.work.Go(w.heartbeats)
	}
}

// beatNow has a heartbeat made at once.
func (w *Watchdog) beatNow() {
	select {
	case w.gap <- struct{}{}:
	default: // it is to be made already
	}
}

// heartbeats tells the store every HeartbeatInterval that this gateway lives, and hears
// what there is for it: as long as requests wait, sets are incomplete or leases are kept, and once more for
// what the last of a name may have left behind. A heartbeat is made at once after a Gap, and
// soon where the one before it failed.
func (w *Watchdog) heartbeats() {
	var soonest time.Time
	due, failed, backoff := time.Now().Add(fencing.HeartbeatInterval), false, minBackoff
	for w.awaitBeat(soonest, due) {
		names, on := w.beginBeat() // of its own: a call that has timed out may still read it
		if !on {
			return
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), fencing.HeartbeatInterval)
		err := w.Store.Heartbeat(ctx, names)
		cancel()
		switch {
		case err != nil && !failed:
			w.log.Warn("heartbeats don't reach the store; waiting requests may lose their places, and streams learn late that they were replaced", "names", len(names), "error", err)
		case err == nil && failed:
			w.log.Info("heartbeats reach the store again")
		}
		now := time.Now()
		due = began.Add(fencing.HeartbeatInterval)
		if failed = err != nil; failed { // perhaps just for a part of the store: the others hear no less often
			due = now.Add(min(backoff, max(due.Sub(now), minBackoff)))
			soonest, backoff = due, min(2*backoff, maxBackoff)
			continue
		}
		backoff = minBackoff
		soonest = began.Add(max(gapPause, 10*now.Sub(began))) // it takes long where many wait
	}
}

// awaitBeat sleeps until the next heartbeat is due, or until the soonest after a Gap. It
// reports false if the watchdog was stopped.
func (w *Watchdog) awaitBeat(soonest, due time.Time) bool {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.gap:
		return w.sleep(time.Until(earlier(soonest, due))) // others may follow
	case <-w.stop:
		return false
	}
}

// beginBeat returns the names that a heartbeat is for, and reports whether it is to be made.
func (w *Watchdog) beginBeat() ([]fencing.Name, bool) {
	l := &w.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	about := map[fencing.Name]struct{}{}
	if l.atStore { // else the store knows nothing of those who wait
		for name := range l.queues {
			about[name] = struct{}{}
		}
	}
	for name := range l.lingering {
		about[name] = struct{}{}
	}
	if w.tells { // what is kept
		for _, name := range w.keeper().Kept() {
			about[name] = struct{}{}
		}
	}
	l.beating = len(about) > 0
	return slices.Collect(maps.Keys(about)), l.beating
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
