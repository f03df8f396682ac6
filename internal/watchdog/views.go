package watchdog

import (
	"context"

	"fencepost/internal/fencing"
)

// Inspect passes on to the store. Those who wait at a store without a queue are those of
// this gateway.
func (w *Watchdog) Inspect(ctx context.Context, r fencing.InspectRequest) (fencing.Outcome, error) {
	out, err := w.Store.Inspect(ctx, r)
	w.requests.show(out.Lock, true)
	return out, err
}

// History is as Inspect.
func (w *Watchdog) History(ctx context.Context, r fencing.HistoryRequest) (fencing.Outcome, error) {
	out, err := w.Store.History(ctx, r)
	w.requests.show(out.Lock, false)
	return out, err
}

// List is as Inspect.
func (w *Watchdog) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	page, err := w.Store.List(ctx, r)
	for i := range page.Locks {
		w.requests.show(&page.Locks[i], false)
	}
	return page, err
}

// Release passes on to the store, and notes when a lease is due that lingers.
func (w *Watchdog) Release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	out, err := w.Store.Release(ctx, r)
	switch {
	case err != nil:
	case out.Holder.Token == 0:
		w.freed(r.Name)
	case r.Linger > 0:
		w.DueIn(out.Holder.ExpiresAt.Sub(out.Now))
	}
	return out, err
}

// Break passes on to the store, and notes when a lock delay is over that it has begun. A lease
// that was given notice is not over.
func (w *Watchdog) Break(ctx context.Context, r fencing.BreakRequest) (fencing.Outcome, error) {
	out, err := w.Store.Break(ctx, r)
	if err != nil {
		w.requests.show(fencing.AsError(err).Lock, false)
		return out, err
	}
	if out.Holder.Token == 0 {
		w.freed(r.Name)
	}
	for i := range out.Ended {
		if delay := out.Ended[i].Holder.LockDelay; delay > 0 {
			w.DueIn(delay)
		}
	}
	return out, nil
}
