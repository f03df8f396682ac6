package watchdog

import (
	"context"

	"fencepost/internal/fencing"
)

// acquireHeld is Join for a name of a set without a wait: it too hangs on the
// heartbeat until the set is complete.
func (w *Watchdog) acquireHeld(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	w.listen()
	l, k := &w.requests, key{r.Name, r.Stamp}
	l.mu.Lock()
	if l.draining {
		l.mu.Unlock()
		return fencing.Outcome{}, fencing.DrainingError()
	}
	l.held[k] = struct{}{}
	l.addMember(r.Name)
	w.beat()
	l.mu.Unlock()
	out, err := w.Store.Do(ctx, r)
	if err == nil && out.Holder.Provisional {
		return out, nil
	}
	w.Settle(r.Name, r.Stamp)
	switch {
	case err == nil:
		w.DueIn(out.Holder.ExpiresAt.Sub(out.Now))
	case fencing.Unsettled(err):
		w.takeBack(takeBackOf(&r), err, true)
	}
	return out, err
}

// Settle forgets a provisional lease of a request: it is firm by now, or is being taken back.
func (w *Watchdog) Settle(name fencing.Name, stamp fencing.Stamp) {
	l, k := &w.requests, key{name, stamp}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, held := l.held[k]; held {
		delete(l.held, k)
		l.drop(name)
	}
}
