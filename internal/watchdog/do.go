package watchdog

import (
	"context"

	"fencepost/internal/fencing"
)

// Do passes on to the store, and notes what an answer says of leases that come due and of names
// that are free. An acquire waits as its Wait says. Views show who waits here, if the store
// has no queue.
func (w *Watchdog) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	if r, ok := op.(fencing.AcquireRequest); ok {
		return w.acquire(ctx, r)
	}
	out, err := w.Store.Do(ctx, op)
	switch r := op.(type) {
	case fencing.RenewRequest:
		w.renewed(&r, &out, err)
	case fencing.ReleaseRequest:
		w.released(&r, &out, err)
	case fencing.BreakRequest:
		w.broken(&r, &out, err)
	case fencing.InspectRequest:
		w.requests.show(out.Lock, true)
	case fencing.HistoryRequest:
		w.requests.show(out.Lock, false)
	}
	return out, err
}

// acquire asks for a lease and waits for it: Join, then Wait.
func (w *Watchdog) acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	out, waiter, err := w.Join(ctx, r)
	if waiter == nil {
		return out, err
	}
	granted, err := waiter.Wait(ctx)
	if err != nil {
		return fencing.Outcome{}, err
	}
	return *granted, nil
}

// renewed notes when the lease is due. Who keeps the lease alive at this gateway goes on from a
// renewal that is not its own, which may have shortened the lease.
func (w *Watchdog) renewed(r *fencing.RenewRequest, out *fencing.Outcome, err error) {
	if err != nil {
		return
	}
	w.DueIn(out.Holder.ExpiresAt.Sub(out.Now))
	if r.Stamp == "" {
		kept := *out // out itself stays on the stack
		w.keeper().Renewed(r.Name, r.Lease.Public(), &kept)
	}
}

// released notes when a lease is due that lingers.
func (w *Watchdog) released(r *fencing.ReleaseRequest, out *fencing.Outcome, err error) {
	switch {
	case err != nil:
	case out.Holder.Token == 0:
		w.freed(r.Name)
	case r.Linger > 0:
		w.DueIn(out.Holder.ExpiresAt.Sub(out.Now))
	}
}

// broken notes when a lock delay is over that a break has begun. A lease that was given notice is
// not over.
func (w *Watchdog) broken(r *fencing.BreakRequest, out *fencing.Outcome, err error) {
	if err != nil {
		w.requests.show(fencing.AsError(err).Lock, false)
		return
	}
	if out.Holder.Token == 0 {
		w.freed(r.Name)
	}
	for i := range out.Ended {
		if delay := out.Ended[i].Holder.LockDelay; delay > 0 {
			w.DueIn(delay)
		}
	}
}

// List passes on to the store. Those who wait at a store without a queue are those of this gateway.
func (w *Watchdog) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	page, err := w.Store.List(ctx, r)
	for i := range page.Locks {
		w.requests.show(&page.Locks[i], false)
	}
	return page, err
}
