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
	beat   func([]fencing.Name) (names []fencing.Name, beats bool)
	deaf   func(fencing.Listener) fencing.Listener
	event  func(fencing.Event) []fencing.Event // what is told instead
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

func (d *defective) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	out, err := d.Store.Do(ctx, op)
	if _, renews := op.(fencing.RenewRequest); renews && d.err != nil && err != nil {
		err = d.err(err)
	}
	return out, err
}

func (d *defective) Heartbeat(ctx context.Context, names []fencing.Name) error {
	if d.beat != nil {
		var beats bool
		if names, beats = d.beat(names); !beats {
			return nil
		}
	}
	return d.Store.Heartbeat(ctx, names)
}

func (d *defective) Listen(listener fencing.Listener) {
	if d.deaf != nil {
		listener = d.deaf(listener)
	}
	d.Store.Listen(listener)
}

// deaf is a listener that some messages don't reach.
type deaf struct {
	fencing.Listener
	granted  func(fencing.Grant) bool // nil: all arrive
	replaced bool                     // these don't arrive
	ask      bool                     // nor these
	entries  func([]fencing.Entry) []fencing.Entry
}

func (d deaf) Has(names []fencing.Name, since time.Time, entries []fencing.Entry) {
	if d.entries != nil {
		entries = d.entries(entries)
	}
	d.Listener.Has(names, since, entries)
}

func (d deaf) Granted(g fencing.Grant, now fencing.Instant, asked time.Time) {
	if d.granted == nil || d.granted(g) {
		d.Listener.Granted(g, now, asked)
	}
}

func (d deaf) Replaced(name fencing.Name, stamp fencing.Stamp) {
	if !d.replaced {
		d.Listener.Replaced(name, stamp)
	}
}

func (d deaf) Ask(name fencing.Name, stamp fencing.Stamp) {
	if !d.ask {
		d.Listener.Ask(name, stamp)
	}
}

func (d *defective) Watch(sink fencing.EventSink) func() {
	if d.event != nil {
		sink = retold{sink, d.event}
	}
	return d.Store.Watch(sink)
}

// retold is a sink to which events are told otherwise.
type retold struct {
	fencing.EventSink
	event func(fencing.Event) []fencing.Event
}

func (r retold) Event(e fencing.Event) {
	for _, told := range r.event(e) {
		r.EventSink.Event(told)
	}
}
