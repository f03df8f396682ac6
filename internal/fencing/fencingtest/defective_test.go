package fencingtest

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

// defective is a store with something changed above its rules. Functions that are
// nil change nothing.
type defective struct {
	fencing.Store
	ask    func(*fencing.ListRequest)
	list   func(*fencing.ListPage, fencing.ListRequest)
	limit  func(int) int
	expiry func(*fencing.Expiry)
	stats  func(*fencing.Stats)
	silent bool              // Expire does not say that it failed
	err    func(error) error // of a renewal
}

func above(d defective) func(fencing.Store) fencing.Store {
	return func(store fencing.Store) fencing.Store {
		d := d
		d.Store = store
		return &d
	}
}

func (d *defective) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	if d.ask != nil {
		d.ask(&r)
	}
	page, err := d.Store.List(ctx, r)
	if d.list != nil {
		d.list(&page, r)
	}
	return page, err
}

func (d *defective) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	if d.limit != nil {
		limit = d.limit(limit)
	}
	expiry, err := d.Store.Expire(ctx, limit)
	if d.expiry != nil && err == nil {
		d.expiry(&expiry)
	}
	if d.silent && err != nil {
		return fencing.Expiry{Next: time.Minute}, nil
	}
	return expiry, err
}

func (d *defective) Stats(ctx context.Context) (fencing.Stats, error) {
	stats, err := d.Store.Stats(ctx)
	if d.stats != nil {
		d.stats(&stats)
	}
	return stats, err
}

func (d *defective) Renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, error) {
	out, err := d.Store.Renew(ctx, r)
	if d.err != nil && err != nil {
		err = d.err(err)
	}
	return out, err
}
