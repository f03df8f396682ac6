package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Release lets go of the names of a lease id, whoever acquired them. nil means that the
// lease was held until now, or was released with this lease id before; an *Error with
// CodeLeaseLost that it was lost. It asks one gateway after the other until one has done it or says why not (400, 409, 412),
// the context ends, or Options.Patience is over: ErrUnreachable, or what a gateway refused it for. After the context's end it asks for another two
// seconds at most, also where the context had ended before: so a deferred release works. Of a
// Lease of this client the names are gone from then on, as far as others are left: those stay held.
func (c *Client) Release(ctx context.Context, leaseID string, names ...string) error {
	if found, ours := c.leases.Load(leaseID); ours {
		for _, name := range names { // before it is asked: whether it was carried out may stay unknown
			found.(*Lease).drop(name)
		}
	}
	return outlive(ctx, func(ctx context.Context, patience time.Duration) error {
		return c.release(ctx, patience, leaseID, names)
	})
}

// outlive has a release tried again if the context's end has kept it from being heard.
func outlive(ctx context.Context, release func(ctx context.Context, patience time.Duration) error) error {
	err := release(ctx, 0)
	if toRelease.fate(err) == final || ctx.Err() == nil {
		return err
	}
	if err = release(context.WithoutCancel(ctx), endedReleaseTimeout); toRelease.fate(err) != final {
		return ended(ctx, err)
	}
	return err
}

// release is Release until the context ends; patience 0 is that of the options.
func (c *Client) release(ctx context.Context, patience time.Duration, leaseID string, names []string) error {
	path, err := pathOfNames(names)
	if err != nil {
		return err
	}
	if len(names) > 1 {
		path += "?" + url.Values{"name": names}.Encode()
	}
	if _, err = c.insist(ctx, call{kind: toRelease, method: http.MethodDelete, path: path, leaseID: leaseID, patience: patience, read: done}); err != nil {
		return unheard(err)
	}
	return nil
}

// Change is what a renewal changes.
type Change struct {
	TTL     time.Duration // from now on; 0: that of Client.Renew for a Lease of this client, else that of the grant
	Limit   int           // of each name: how many permits there are from now on; 0: as it is. See SetLimit
	Permits int           // of each name: how many are left, those with the lowest slots; 0: all
	Labels
}

// Change renews the names of a lease id once, whoever acquired them, and changes what is named:
// all in one step for each name. It returns what Renew does, and may be repeated.
func (c *Client) Change(ctx context.Context, leaseID string, change Change, names ...string) (time.Duration, error) {
	if err := change.check(); err != nil {
		return 0, err
	}
	body := renewRequest{TTL: upMillis(change.TTL), Limit: change.Limit, Permits: change.Permits, Owner: change.Owner, Metadata: change.Metadata}
	found, ours := c.leases.Load(leaseID)
	switch {
	case ours && change.TTL > 0:
		found.(*Lease).shorten(change.TTL) // before it is asked: whether it was carried out may stay unknown
	case ours && change.TTL == 0:
		body.TTL = upMillis(found.(*Lease).renewsWith())
	}
	left, err := c.renewNames(ctx, leaseID, names, body)
	if ours && err == nil && change.Permits > 0 {
		found.(*Lease).keepSlots(change.Permits)
	}
	return left, err
}

// Renew renews the names of a lease id once, whoever acquired them, and returns how long
// they can be counted on from now on. ttl 0 is the TTL that they were granted with. A Lease
// of this client with the lease id counts on no more than ttl from then on, and is renewed
// with it where it is renewed at all; other processes are told nothing. Errors are as those of Release.
func (c *Client) Renew(ctx context.Context, leaseID string, ttl time.Duration, names ...string) (time.Duration, error) {
	if ttl == 0 {
		return c.renewNames(ctx, leaseID, names, renewRequest{})
	}
	return c.Change(ctx, leaseID, Change{TTL: ttl}, names...)
}

// renewNames asks until a gateway has renewed the names, or refuses.
func (c *Client) renewNames(ctx context.Context, leaseID string, names []string, body renewRequest) (time.Duration, error) {
	var g granted
	r, err := renewalCall(&g, leaseID, names, body)
	if err != nil {
		return 0, err
	}
	a, err := c.insist(ctx, r)
	if err != nil {
		return 0, unheard(err)
	}
	return g.life() - c.now().since(a.sent), nil
}

// unheard has an error say that no gateway could be told, where none could.
func unheard(err error) error {
	if untold(err) && !errors.Is(err, ErrUnreachable) {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

// KeepPermits gives permits back, so that n are left of each name: those with the highest
// slots go, and others may have them. It is Client.KeepPermits with what the lease has.
func (l *Lease) KeepPermits(ctx context.Context, n int) error {
	_, err := l.c.KeepPermits(ctx, l.id, n, l.held()...)
	return err
}

// KeepPermits renews the names of a lease id, whoever acquired them, and has each of them
// keep n permits, those with the lowest slots. It returns what Renew does. More than the lease has is an *Error
// with CodeInvalidRequest. After ErrUnreachable they may or may not have been given back.
func (c *Client) KeepPermits(ctx context.Context, leaseID string, n int, names ...string) (time.Duration, error) {
	if n < 1 {
		return 0, noPermits(n)
	}
	return c.Change(ctx, leaseID, Change{Permits: n}, names...)
}

func noPermits(n int) error {
	return invalid("permits", "is %d; it must be from 1 to %d", n, maxPermits)
}

// SetLimit says anew how many permits there are in all, for each name. It is Client.SetLimit with
// what the lease has.
func (l *Lease) SetLimit(ctx context.Context, of int) error {
	_, err := l.c.SetLimit(ctx, l.id, of, l.held()...)
	return err
}

// SetLimit renews the names of a lease id, whoever acquired them, and has each of them tolerate so
// many permits in all from now on, 1 to 10,000: what Permit or Permits said before. The least that
// any holder has said counts, so a pool has grown once all have said so; those who fit
// are let in by the same step. A lower limit ends nobody, and nobody is let in until there is room
// below it. It returns what Renew does, and may be repeated. Fewer than the permits that the lease
// has, and a lease that is no permit, are an *Error with CodeInvalidRequest; of several names Error.Name
// refuses, and others may have been changed. Like any renewal it sets the time that is left: see Change.TTL.
//
// After ErrUnreachable it may or may not have been changed. An older call that was given up, or an attempt
// of it, may still come: Client.Inspect tells the limit that counts. Who waits can't change its limit with this client.
func (c *Client) SetLimit(ctx context.Context, leaseID string, of int, names ...string) (time.Duration, error) {
	if of < 1 {
		return 0, noLimit(of)
	}
	return c.Change(ctx, leaseID, Change{Limit: of}, names...)
}

func noLimit(of int) error {
	return invalid("limit", "is %d; it must be from 1 to %d", of, maxPermits)
}

// renewsWith returns the TTL to renew with; 0: that which it was granted with.
func (l *Lease) renewsWith() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

func (l *Lease) keepSlots(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.grants {
		g := &l.grants[i]
		g.Slots = g.Slots[:min(n, len(g.Slots))]
	}
}

// renewalCall is the request of a renewal, whose answer g is to have.
func renewalCall(g *granted, id string, names []string, body renewRequest) (r call, err error) {
	r = call{kind: toRelease, method: http.MethodPut, leaseID: id, read: g.lease(names)}
	if r.path, err = pathOfNames(names); err != nil {
		return r, err
	}
	if len(names) > 1 {
		body.Names = names
	}
	r.body = body
	return r, nil
}
