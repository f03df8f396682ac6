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

// Release passes on to the store.
func (w *Watchdog) Release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	out, err := w.Store.Release(ctx, r)
	if err == nil && out.Holder.Token == 0 {
		w.freed(r.Name)
	}
	return out, err
}

// Break passes on to the store.
func (w *Watchdog) Break(ctx context.Context, r fencing.BreakRequest) (fencing.Outcome, error) {
	out, err := w.Store.Break(ctx, r)
	if err != nil {
		w.requests.show(asError(err).Lock, false)
		return out, err
	}
	w.freed(r.Name)
	return out, nil
}
