package watchdog

import "fencepost/internal/fencing"

// Drain answers all requests that wait with CodeDraining and takes their places
// back in the background, ends streams and subscriptions with CodeDraining,
// and refuses new ones. Leases stay. It may be called twice; Stop calls it too.
func (w *Watchdog) Drain() {
	l := &w.requests
	l.mu.Lock()
	if l.draining {
		l.mu.Unlock()
		return
	}
	l.draining = true
	close(w.drained)
	var places []fencing.TakeBackRequest
	for _, t := range l.waiters {
		if t.state != stateParked || t.grant != nil {
			continue // the answer of the store, or the grant, comes first
		}
		t.err = fencing.DrainingError()
		t.signal()
		if !t.busy {
			l.exit(t, stateGone)
			if l.atStore || t.unsure {
				places = append(places, takeBackOf(&t.ask))
			}
			w.observer.Dropped(DroppedDraining)
		}
	}
	l.mu.Unlock()
	for _, r := range places {
		w.TakeBackLater(r)
	}
	w.hub.drain()
}

// Drained is closed by Drain.
func (w *Watchdog) Drained() <-chan struct{} { return w.drained }
