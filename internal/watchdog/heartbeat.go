package watchdog

import (
	"context"
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
// long as requests wait or sets are incomplete. A heartbeat that fails is not
// tried again: the next one is soon enough.
func (w *Watchdog) heartbeats() {
	ticker := time.NewTicker(fencing.HeartbeatInterval)
	defer ticker.Stop()
	failed := false
	var names []fencing.Name
	for {
		select {
		case <-ticker.C:
		case <-w.stop:
			return
		}
		if names = w.lot.names(names[:0]); len(names) == 0 {
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

// names appends the names of all lines; if there are none, heartbeats ends.
func (l *lot) names(to []fencing.Name) []fencing.Name {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(time.Now())
	l.beating = len(l.lines) > 0
	for name := range l.lines {
		to = append(to, name)
	}
	return to
}
