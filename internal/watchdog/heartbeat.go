package watchdog

import (
	"context"
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// beat has heartbeats run. The caller holds the lot's mutex, and the lot is not
// draining.
func (w *Watchdog) beat() {
	if !w.lot.beating {
		w.lot.beating = true
		w.work.Go(w.heartbeats)
	}
}

// heartbeats tells the store every HeartbeatInterval that this gateway lives, as
// long as requests wait, sets are incomplete, or the store has told of a provisional
// lease that no request here knows of; and once more, for what a request that has
// just gone has left behind. A heartbeat that fails is not
// tried again: the next one is soon enough.
func (w *Watchdog) heartbeats() {
	ticker := time.NewTicker(fencing.HeartbeatInterval)
	defer ticker.Stop()
	failed := false
	for {
		select {
		case <-ticker.C:
		case <-w.stop:
			return
		}
		names, on := w.lot.names() // of its own: a call that has timed out may still read it
		if !on {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), fencing.HeartbeatInterval)
		w.pulsing.Store(true)
		err := w.Store.Heartbeat(ctx, names)
		w.pulsing.Store(false)
		cancel()
		switch {
		case err != nil && !failed:
			w.log.Warn("the store does not hear the heartbeat; requests that wait may lose their places", "waiting_for", len(names), "error", err)
		case err == nil && failed:
			w.log.Info("the store hears the heartbeat again")
		}
		failed = err != nil
	}
}

// names returns the names of all lines, and reports whether heartbeats goes on.
func (l *lot) names() ([]fencing.Name, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.forget(now)
	maps.DeleteFunc(l.strangers, func(_ key, since time.Time) bool { return now.Sub(since) > strangerTTL })
	l.quiet++
	if len(l.lines)+len(l.strangers) > 0 {
		l.quiet = 0
	}
	l.beating = l.quiet <= 1
	return slices.Collect(maps.Keys(l.lines)), l.beating
}
