package watchdog

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

const (
	// maxTakeBacks is how many grants can be on their way back at once. Beyond
	// it a grant is left to its TTL.
	maxTakeBacks = 1024

	// takeBackPatience is how long a store that can't be reached is asked again.
	takeBackPatience = time.Minute
)

// TakeBackLater undoes a grant in the background: it is tried until the store has
// answered, and once more after the skew guard's span, for the acquire it is to
// undo may still be on its way. It returns at once. What can't be taken back
// (store out of reach for a minute, too many at once) ends with its TTL.
func (w *Watchdog) TakeBackLater(r fencing.TakeBackRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		w.log.Warn("a grant that could not be delivered is left to its TTL: shutting down", "lease", r.Lease)
		return
	}
	select {
	case w.takeBacks <- struct{}{}:
	default:
		w.log.Warn("a grant that could not be delivered is left to its TTL: too many at once", "lease", r.Lease)
		return
	}
	w.work.Go(func() {
		defer func() { <-w.takeBacks }()
		w.takeBack(r)
		w.sleep(w.maxSkew)
		w.takeBack(r)
	})
}

// takeBack asks the store until it answers, at least once.
func (w *Watchdog) takeBack(r fencing.TakeBackRequest) {
	giveUp := time.Now().Add(takeBackPatience)
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		_, err := w.Store.TakeBack(ctx, r)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(giveUp) || !w.sleep(backoff) {
			w.log.Warn("a grant that could not be delivered is left to its TTL", "lease", r.Lease, "error", err)
			return
		}
	}
}
