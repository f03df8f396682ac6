package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"
)

// Release lets go of the names of a lease id, whoever acquired them. nil means that the lease was held until now, or was
// released with this lease id before; an *Error with CodeLeaseLost that it was lost. It asks one gateway after the other
// until one has done it or says why not (400, 409, 412), the context ends, or Options.Patience is over: ErrUnreachable,
// or what a gateway refused it for. After the context's end it asks for another two seconds at most, also where the
// context had ended before: so a deferred release works. Of a Lease of this client the names are gone as soon as it is
// asked: those that are left stay held, and with the last one its context ends, with ErrReleased. What no gateway has
// released Lease.Release asks for once more.
func (c *Client) Release(ctx context.Context, leaseID string, names ...string) error {
	ours := c.own(leaseID, names)
	had := make([][]string, len(ours))
	for i, l := range ours { // before it is asked: whether it was carried out may stay unknown
		had[i] = l.held()
		l.givesUp(names)
	}
	err := outlive(ctx, func(ctx context.Context, patience time.Duration) error {
		return c.release(ctx, patience, leaseID, names)
	})
	if err != nil && !errors.Is(err, CodeLeaseLost) {
		for i, l := range ours {
			l.owes(slices.DeleteFunc(slices.Clone(had[i]), func(name string) bool { return !slices.Contains(names, name) }))
		}
	}
	return err
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
	if err := c.made(); err != nil {
		return 0, err
	}
	ours, sets := c.own(leaseID, names), change.TTL > 0
	for _, l := range ours {
		if ttl := l.renewsFor(); !sets && (change.TTL == 0 || ttl < change.TTL) {
			change.TTL = ttl
		}
	}
	r := c.leases.renews(leaseID, names, change.TTL, c.now())
	body := renewRequest{TTL: upMillis(change.TTL), Limit: change.Limit, Permits: change.Permits, Owner: change.Owner, Metadata: change.Metadata}
	if len(ours) == 1 && ours[0].hasAll(names) {
		body.TTL = ours[0].ttlToSend(change.TTL)
	}
	unknown := false
	gone := func(doubtful bool) {
		if doubtful {
			unknown = true
			c.leases.abandoned(leaseID, r)
		}
	}
	g, n, err := c.renewNames(ctx, leaseID, names, body, gone)
	if e := refusal(err); e != nil && len(names) > 1 && (e.Name != "" || len(e.Lost) > 0) {
		gone(true) // of one name: others may have been renewed
	}
	for _, one := range c.leases.renewed(leaseID, r, err == nil, c.now()) {
		one.of.changed(one, sets, err != nil && !unknown, names, g, n, err)
		if change.Permits > 0 && (err == nil || unknown) {
			one.of.keepSlots(change.Permits, names)
		}
	}
	if err != nil {
		for _, l := range ours {
			l.isLost(names, err)
		}
		return 0, err
	}
	return n.remaining(c.now()), nil
}

// Renew renews the names of a lease id once, whoever acquired them, and returns how long they can be counted on from now
// on. ttl 0 is the TTL that they were granted with. A Lease of this client with the lease id counts on what was answered
// from then on, and is renewed with ttl where it is renewed at all; on no more than a shorter ttl as soon as it is asked
// for, and then if no answer comes; on a longer one once all of its names have it. It never counts on more than a
// request has asked for that was not answered: that may be carried out late. As long as it is Attached it counts on no
// more than what the gateway of its stream may renew it for: the TTL of the grant, or a shorter one that was asked for
// since. So Lease.Remaining may be less than what is returned. A renewal that is refused, or was never sent, changes
// nothing. Other processes are told nothing. Errors are as those of Release.
func (c *Client) Renew(ctx context.Context, leaseID string, ttl time.Duration, names ...string) (time.Duration, error) {
	if ours := c.own(leaseID, names); ttl == 0 && len(ours) > 0 {
		ttl = ours[0].granted
	}
	return c.Change(ctx, leaseID, Change{TTL: ttl}, names...)
}

// renewNames asks until a gateway has renewed the names, or refuses. gone is told of each attempt, as that of call is.
func (c *Client) renewNames(ctx context.Context, leaseID string, names []string, body renewRequest, gone func(doubtful bool)) (g granted, n news, err error) {
	r, err := renewalCall(&g, leaseID, names, body)
	if err != nil {
		return g, n, err
	}
	r.gone = gone
	a, err := c.insist(ctx, r)
	if err != nil {
		return g, n, unheard(err)
	}
	return g, c.answered(g, a.sent), nil
}

// changing is a renewal by lease id that is under way.
type changing struct {
	of        *Lease
	ttl       time.Duration
	was, made news // what was said of the lease, and what was made of that because the TTL is shorter; equal if it is not
}

// changes notes that a renewal by lease id is being asked for with ttl. The lease is renewed with no more until changed
// is told what came of that, and may live for no longer from now on.
func (l *Lease) changes(ttl time.Duration) *changing {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, before := l.said(), l.renewsWith()
	one := &changing{l, ttl, l.news, l.news}
	if ttl < before {
		now := l.c.now() // what was asked before says nothing any more
		l.due = min(l.due-now.since(l.news.sent), ttl/3)
		l.news = news{sent: now, read: now, left: min(was.remaining(now), ttl), ttl: ttl, quiet: l.news.quiet + l.news.left - l.news.remaining(now)}
		one.made = l.news
		l.hurry()
	}
	l.changing = append(l.changing, one)
	return one
}

// changed notes what has become of a renewal by lease id, and whether it sets the TTL of those that follow. One that
// was refused, or never sent, changes nothing: the lease is renewed as before it.
func (l *Lease) changed(one *changing, sets, refused bool, names []string, g granted, n news, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, had, ttl := l.renewsWith(), l.ttl, one.ttl
	i := slices.Index(l.changing, one)
	l.changing = slices.Delete(l.changing, i, i+1)
	if refused {
		l.takeBack(one)
	}
	ofAll := containsAll(names, l.names)
	if err == nil {
		l.isTold(ttl)
	}
	switch {
	case refused || !sets:
	case err != nil || !ofAll:
		l.ttl = min(l.ttl, ttl)
	case !n.sent.t.Before(l.changedAt.t):
		l.ttl, l.changedAt = ttl, n.sent
	}
	if l.renewsWith() != before || l.ttl != had { // its gateway may go on with the one before
		if l.hangs != nil && l.hangs.least < min(l.renewsWith(), l.granted) {
			l.detached.Store(true) // another stream's gateway knows of none
		}
		l.hurry()
	}
	if err == nil && ofAll {
		l.take(g, n)
	}
}

// isLost ends the lease if a renewal of names by its lease id, which began when it had it, was refused for the loss of
// one that it has. One of several that was released is no loss of the others, but for what dropReleased says.
func (l *Lease) isLost(names []string, err error) {
	if !errors.Is(err, CodeLeaseLost) {
		return
	}
	e := refusal(err)
	if len(names) > 1 {
		names = e.Lost
	}
	dropped := len(names) > 0 && e.Reason == ReasonReleased && l.claim.stream && l.dropReleased(names[0])
	if !dropped && share(names, l.held()) {
		l.finish(err)
	}
}

// hasAll reports whether the lease has all of the names.
func (l *Lease) hasAll(names []string) bool { return containsAll(l.held(), names) }

func containsAll(all, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(all, name) })
}

// takeBack forgets that the lease was to live for less. The caller holds mu.
func (l *Lease) takeBack(one *changing) {
	if one.was == one.made {
		return
	}
	back := one.made
	back.left, back.ttl = one.was.remaining(back.sent), one.was.ttl
	if l.news == one.made {
		l.news, l.due = back, 0
	}
	for _, other := range l.changing {
		if other.was == one.made {
			other.was = back
		}
	}
}

// givesUp notes that names are being released by this client. With all of them the lease is over.
func (l *Lease) givesUp(names []string) {
	if containsAll(names, l.held()) {
		l.finish(ErrReleased)
		return
	}
	for _, name := range names {
		l.drop(name)
	}
}

// owes notes that the release of names that it had has failed, for Release to ask for it again.
func (l *Lease) owes(names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owed = append(l.owed, slices.DeleteFunc(names, func(name string) bool { return slices.Contains(l.names, name) || slices.Contains(l.owed, name) })...)
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

// asking notes that an attempt to renew the lease with ttl is made, and returns what notes its end.
func (l *Lease) asking(ttl time.Duration) (gone func(doubtful bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, ttl)
	l.noteLate()
	return func(doubtful bool) {
		l.abandons(ttl, doubtful)
		l.mu.Lock()
		defer l.mu.Unlock()
		if i := slices.Index(l.open, ttl); i >= 0 {
			l.open = slices.Delete(l.open, i, i+1)
		}
		l.noteLate()
	}
}

// abandons notes the end of an attempt to renew the lease with ttl, and whether it may still be carried out.
func (l *Lease) abandons(ttl time.Duration, doubtful bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if doubtful && (l.abandoned == 0 || ttl < l.abandoned) {
		l.abandoned = ttl
		l.noteLate()
	}
}

// late is the shortest TTL of a Lease's own renewals that are under way, or may be carried out late: for the other
// Leases of its client with its lease id, which read it under no lock of this one.
type late struct {
	ttl     atomic.Int64 // 0: there are none
	settled atomic.Bool  // it does not change any more
}

// noteLate notes that for others. The caller holds mu.
func (l *Lease) noteLate() {
	ttl := l.abandoned
	for _, open := range l.open {
		ttl = shorter(ttl, open)
	}
	l.late.ttl.Store(int64(ttl))
	l.late.settled.Store(l.over != nil && len(l.open) == 0)
}

// heeds has the lease be counted on for no more than what others with its lease id have asked for.
func (l *Lease) heeds(others ...*late) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, other := range others {
		if other != l.late && !slices.Contains(l.others, other) {
			l.others = append(l.others, other)
		}
	}
	l.others = slices.DeleteFunc(l.others, func(other *late) bool {
		if !other.settled.Load() {
			return false
		}
		l.abandoned = shorter(l.abandoned, time.Duration(other.ttl.Load()))
		return true
	})
	l.noteLate()
}

// heeded returns what the lease heeds, and what others that follow it are to heed.
func (l *Lease) heeded() []*late {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(slices.Clone(l.others), l.late)
}

// most returns how long the lease can be counted on after whatever was said: no longer than any request asks for that may be
// carried out late, nor than its gateway may renew it for meanwhile. The caller holds mu.
func (l *Lease) most() time.Duration {
	if l.hangs != nil {
		return min(l.mostAsked(), l.hangs.least)
	}
	return l.mostAsked()
}

// mostAsked is most, whatever the lease hangs on. The caller holds mu.
func (l *Lease) mostAsked() time.Duration {
	most := l.renewsWith()
	if l.abandoned > 0 {
		most = min(most, l.abandoned)
	}
	for _, ttl := range l.open {
		most = min(most, ttl)
	}
	for _, other := range l.others {
		if ttl := time.Duration(other.ttl.Load()); ttl > 0 {
			most = min(most, ttl)
		}
	}
	return most
}

// capBy shortens what the lease is counted on for to what renewals that were under way beside the acquire may have left
// of it: they were carried out before its answer was said, or live from then on.
func (l *Lease) capBy(all []*renewal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.c.now()
	for _, r := range all {
		left := l.news.remaining(now)
		most := r.ttl - min(now.since(r.begun), l.news.left-left)
		if less := left - most; less > 0 {
			l.news.left, l.news.ttl, l.news.capped = l.news.left-less, min(l.news.ttl, r.ttl), true
			l.hurry()
		}
	}
}

// sharesTTL has the lease be renewed with no more than another one with its lease id, but for what is being asked for:
// of that it is told.
func (l *Lease) sharesTTL(other *Lease) {
	other.mu.Lock()
	ttl := other.ttl
	other.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if ttl < l.ttl {
		l.ttl = ttl
		l.hurry()
	}
}

// hangsOnStream reports whether the lease hangs on a stream, and whether only another stream can take it over from that.
func (l *Lease) hangsOnStream() (is, ofSet bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hangs != nil, l.claim.stream
}

// hangsOn has the lease hang on a stream, nil: on none. The gateway of a new one renews it with the TTL of the grant,
// unless it hears of another meanwhile. The caller holds mu.
func (l *Lease) hangsOn(s *stream) {
	l.beside = slices.DeleteFunc(l.beside, func(o *stream) bool { return s == nil || o == s || o.granted.t.Before(s.sent.t) })
	if l.hangs = s; s != nil {
		s.least = min(l.granted, l.mostAsked())
	}
}

// isTold notes that a gateway has renewed the lease with ttl. It goes on with that, whatever another one is told later,
// if it is that of the stream on which the lease hangs. The caller holds mu.
func (l *Lease) isTold(ttl time.Duration) {
	if l.hangs != nil {
		l.hangs.least = min(l.hangs.least, ttl)
	}
}

// renewsWith returns the TTL to renew with: as long as a shorter one is being asked for, that one, for the store may
// carry it out last. The caller holds mu.
func (l *Lease) renewsWith() time.Duration {
	ttl := l.ttl
	for _, one := range l.changing {
		ttl = min(ttl, one.ttl)
	}
	return ttl
}

// ttlToSend is a TTL as a renewal asks for it: that of the grant is not named, for a gateway whose bounds are others by
// now allows no other. Of a lease that was found it is not known.
func (l *Lease) ttlToSend(ttl time.Duration) int64 {
	if ttl == l.granted && !l.found {
		return 0
	}
	return upMillis(ttl)
}

func (l *Lease) renewsFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewsWith()
}

// notRenewedWith has the lease be renewed with the TTL of its grant from now on where a gateway refuses another, which
// a Renew asked for that was not answered.
func (l *Lease) notRenewedWith(ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ttl == ttl {
		l.ttl = l.granted
	}
}

// isAsGranted reports whether it has the TTL that it was granted with, but for what is being asked for.
func (l *Lease) isAsGranted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl == l.granted
}

// hasOwnTTL reports whether it is counted on for another time than that for which its gateway renews it.
func (l *Lease) hasOwnTTL() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewsWith() != l.granted || l.most() < l.granted
}

func (l *Lease) keepSlots(n int, names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.grants {
		if g := &l.grants[i]; slices.Contains(names, g.Name) {
			g.Slots = g.Slots[:min(n, len(g.Slots))]
		}
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
