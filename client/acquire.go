package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// waitPerRequest is how long one request waits in the queue. Then it is sent again and
	// goes on at its place. A gateway that is stopped is so noticed while the place is
	// kept, 14 s after the gateway's last sign of life. See beginWait.
	waitPerRequest = 8 * time.Second

	// longestAttachedWait is the longest wait_ms of an attached lease.
	longestAttachedWait = 24 * time.Hour

	// undoTimeout bounds how long it is tried to release what an acquire that was given up
	// may have been granted.
	undoTimeout = 3 * time.Second

	// mostOver is how many grants in a row may be over before they are known: then answers take longer than the TTL.
	mostOver = 3
)

// acquisition is what Options of an acquire say.
type acquisition struct {
	acquireRequest
	leaseID  string
	named    bool // Owner is of this acquire
	wait     time.Duration
	bounded  bool // wait says for how long
	waits    bool
	permit   bool // Limit is given
	several  bool // Permits is given
	found    bool // leaseID is given
	attached bool
	unkept   bool
	margin   time.Duration
	least    time.Duration // of AtLeast
	also     []string
	announce func(public string)
	noticed  func(Notice)
	failing  func(error)
}

// Option changes what is acquired. Without any it is an exclusive lease with the gateway's
// default TTL, which this client renews. One that is out of its range is refused with
// CodeInvalidRequest, before anything is sent; so is what the gateway's settings don't allow,
// by the gateway.
type Option func(*acquisition)

// TTL is how long the lease lives without a renewal: 100 ms to 24 h, as far as the
// gateway's settings allow; rounded up to milliseconds. 0 is the default. It bounds how long others wait should
// this process die.
func TTL(d time.Duration) Option { return func(a *acquisition) { a.TTL = upMillis(d) } }

// Wait is how long Acquire and Do wait for others at most; without it until their context
// ends. With 0 or less they don't wait, as TryAcquire doesn't.
func Wait(d time.Duration) Option { return func(a *acquisition) { a.wait, a.bounded = d, true } }

// Also acquires further names under the same lease, all or none; with the first 64 at most.
func Also(names ...string) Option {
	return func(a *acquisition) { a.also = append(a.also, names...) }
}

// Shared is a lease that tolerates any number of other shared ones: a reader.
func Shared() Option { return func(a *acquisition) { a.Mode = "shared" } }

// Permit is one of so many shared leases, 1 to 10,000: a place in a semaphore. See
// Lease.Slot.
func Permit(of int) Option {
	return func(a *acquisition) { a.Mode, a.Limit, a.permit = "shared", of, true }
}

// Permits is several of so many permits, n of 1 to 10,000, all in one step: n places in a
// semaphore, 1 at least. See Lease.Slots, Lease.KeepPermits and Lease.SetLimit.
func Permits(n, of int) Option {
	return func(a *acquisition) {
		a.Mode, a.Limit, a.permit = "shared", of, true
		a.Permits, a.several = n, true
	}
}

// Owner is a label for people in place of Options.Owner.
func Owner(label string) Option { return func(a *acquisition) { a.Owner, a.named = label, true } }

// Metadata is for the people who look at the lock; at most 16 entries with keys of up to
// 64 bytes and values of up to 256.
func Metadata(m map[string]string) Option { return func(a *acquisition) { a.Metadata = m } }

// MaxHold ends the lease that long after its grant, however often it is renewed: from the
// TTL to 30 days; 0: never. Its context ends with ErrMaxHold before that.
func MaxHold(d time.Duration) Option { return func(a *acquisition) { a.MaxHold = upMillis(d) } }

// LockDelay keeps everybody from the names for so long after the lease, if it expires or is broken, at
// most a minute: what was sent under it has time to arrive. A release delays nothing, nor does the end of an
// Attached lease's connection without Linger. For resources that can't check tokens; a fence is better,
// for no time is long enough for certain. CodeUnsupportedByStore at a quorum.
func LockDelay(d time.Duration) Option { return func(a *acquisition) { a.LockDelay = upMillis(d) } }

// Attached has the gateway renew the lease as long as a connection to it lives, and
// release it when this process dies. Should the connection break off, this client takes the lease over and renews
// it from then on; so it does once the lease was given another TTL (Client.Renew).
//
// Whoever has ended the connection, its gateway may have released the lease. From when this client has read its end
// Lease.Remaining is 0 or less, and Lease.Err is ErrUnknown, until the lease was taken over: then they
// are as before. It is asked for at once; the context goes on meanwhile, for 3 s at most, and never for
// longer than it would without that end, and then ends with ErrUnknown. Only where the gateway has said that it
// shuts down it goes on for the TTL. A gateway that died is known by the end alone: choose Linger, which counts
// from the last event, a third of the TTL ago at most, so that the
// lease outlives a restart.
//
// A request for a connection that this client had no answer to may come to its gateway late, and its end, which this
// client does not see, may release the lease. So for a minute after such a request the word that the connection was
// replaced counts as its end, too; and at any time where it comes while this client takes the lease over, and has no
// answer 100 ms later. The context then goes on for 6 s at most, also with Linger, for what has replaced it may have
// none.
//
// Of several names (Also) all have one fate: when one is lost the context ends, and Error.Name of its cause says which,
// where that is known. The others are kept until Release, or their TTL's end, for the work to stop. When the connection
// breaks off, this client attaches all of them to another one. A name that is released by itself (Client.Release), by
// whomever, is no more among Lease.Grants, and no loss while others are left. But one that others have released is a
// loss where the end of a connection without Linger may have done so: while the lease is taken over, be it after such an
// end, after an event was missed or for another TTL, and in the minute after a request for a connection that this client
// had no answer to. CodeUnsupportedByStore at a quorum.
//
// Where something between the two fails so that only the gateway sees the connection end, it releases the lease while
// the context lives on. The client asks when it misses an event of the gateway's, which is 3/8 of the TTL after the
// last one (for TTLs below 2.4 s a third of it and 100 ms), and has an answer within 3 s or goes on asking until the
// context's end is due. No deadline of the client's can be sooner than that release: the gateway may see the end right
// after its last event. Where a gateway comes late to a request, and the lease hangs on no connection any more, nobody
// tells this client: it learns of the release with its next renewal, a third of the TTL later, and 3 s, at most. Fence
// the writes, or do without Attached where that is too long.
func Attached() Option { return func(a *acquisition) { a.attached = true } }

// Linger has the gateway keep an attached lease for so long after its connection has ended, at most the
// TTL: this client then goes on with it, and what Attached says of a connection whose end only the
// gateway sees counts from then. After an end that this client has read it counts on the lease for so long since the
// gateway's last event or answer, or less, until it was taken over. Others wait for so long when this process dies.
func Linger(d time.Duration) Option { return func(a *acquisition) { a.Linger = upMillis(d) } }

// NotRenewed leaves the lease without renewals: it ends by its TTL, or by Client.Renew and
// Client.Release, perhaps of another process.
func NotRenewed() Option { return func(a *acquisition) { a.unkept = true } }

// StopEarly is how long before the lease's deadline its context is cancelled: as long as
// it takes to stop the work. At most half the TTL; the default is a tenth of the TTL, a
// second at most.
func StopEarly(d time.Duration) Option { return func(a *acquisition) { a.margin = d } }

// LeaseID is the lease id to acquire with, of the form of NewLeaseID, for those who have to find their lease again:
// with one that holds the names already, that lease is returned, with the same token, whatever owner it has unless
// Owner names another one (CodeConflict). An acquire that fails then releases nothing. Where less than a third of the
// TTL is left it is returned once it was renewed, for which an acquire waits for 3 s at most, unless NotRenewed says
// that nobody does; with Attached where it might be over before the gateway of its stream has renewed it, for 3 s or
// until that is due. Without a stream, a Client.Release meanwhile leaves a Lease that is over.
//
// With Attached the new Lease has it, for the TTL of its grant: one that was attached before ends with CodeReplaced, in
// whatever process, and so does any of this client with the lease id. But in the minute after a request for a
// connection that its client had no answer to, that one takes this for that request, once for each, and the lease back,
// and so it does at any time while it takes the lease over from a connection of its own: then the new one ends with
// CodeReplaced. Where such an acquire fails after a gateway may have heard it, the end of its stream releases what that
// had by then, and those of this client end as well. A Lease of another process that is not attached is told nothing.
//
// Don't acquire with a lease id for which a release was asked, whatever came of that: it may be carried out late, and
// end the new Lease unseen. Nor with that of a Lease that is over, and of which a Renew was not answered: that may
// shorten the new one.
func LeaseID(id string) Option { return func(a *acquisition) { a.leaseID, a.found = id, true } }

// OnLeaseID calls f with the public part of the lease id before it is first asked with, so
// that f's owner finds itself among Lock.Waiters. f is called again should another lease
// id be needed.
func OnLeaseID(f func(public string)) Option { return func(a *acquisition) { a.announce = f } }

// OnNotice calls f when the lease is given notice of a break, or the end of the notice is
// brought forward: it is time to finish. The client learns of it with the next renewal,
// after a third of the TTL at most; with Attached at once. f runs in a goroutine of its own, for which
// Close waits, and must not call Close. The lease's context is not ended by it: see Lease.Notice.
func OnNotice(f func(Notice)) Option { return func(a *acquisition) { a.noticed = f } }

// OnRenewalsFail calls f when every gateway was asked to renew the lease, and none has, with what the last one said;
// not again until one has renewed it. The lease is not lost by that: it is asked for until its deadline. f must not
// block, nor call Release or Close: renewals wait for it, and so do Release and Close. It may be called before the
// acquire has returned.
func OnRenewalsFail(f func(err error)) Option { return func(a *acquisition) { a.failing = f } }

// Acquire waits in the queue for a lease until it is granted, the context ends, or what Wait allows is over
// (CodeWaitTimeout). It gives up with ErrExpired after three grants in a row that were over when they came: the TTL is
// too short for how long answers take. What one gateway does not serve the others are asked for; when none has served
// it for as long as Options.Patience it gives up with ErrUnreachable, or with what a gateway refused it for. A lease
// has to be released: the end of the context ends the wait, and not the lease (Do ends with its context). What a failed
// acquire may have been granted is released meanwhile, and before Client.Close returns.
func (c *Client) Acquire(ctx context.Context, name string, options ...Option) (*Lease, error) {
	return c.acquire(ctx, context.WithoutCancel(ctx), name, true, options)
}

// TryAcquire is Acquire without waiting for others: if somebody holds the lock, or waits
// for it, it returns an *Error with CodeLocked, which says who. Gateways that don't answer
// are asked again all the same; what all refuse is returned.
func (c *Client) TryAcquire(ctx context.Context, name string, options ...Option) (*Lease, error) {
	return c.acquire(ctx, context.WithoutCancel(ctx), name, false, options)
}

// Do acquires a lease, as Acquire does, calls do with it, and releases it (but see AtLeast). The context of
// do ends with ctx, and before the lease can be gone. While do runs the lease is renewed,
// whatever becomes of ctx: Do can't end do, only ask it to end.
//
// It returns the error of do. If the lease could not be counted on to the end of do, or a
// gateway says that it was lost, the error also wraps why. That the end could not be told
// to any gateway is no error: the lease ends by its TTL.
func (c *Client) Do(ctx context.Context, name string, do func(ctx context.Context, lease *Lease) error, options ...Option) error {
	l, err := c.acquire(ctx, ctx, name, true, options)
	if err != nil {
		return err
	}
	end := l.ReleaseNow
	release := sync.OnceValue(func() error { return end(context.WithoutCancel(ctx)) })
	defer release() // if do panics
	err = do(l.Context(), l)
	lost := l.settled()
	if err == nil && lost == nil {
		end = l.Release
	}
	if released := release(); lost == nil && (errors.Is(released, CodeLeaseLost) || errors.Is(released, CodeInvalidRequest)) {
		lost = released
	}
	switch {
	case lost == nil || errors.Is(err, lost):
		return err
	case err == nil:
		return lost
	}
	return fmt.Errorf("%w: %w", err, lost)
}

// acquire gets a lease whose context is made from parent.
func (c *Client) acquire(ctx, parent context.Context, name string, waits bool, options []Option) (*Lease, error) {
	o := acquisition{waits: waits}
	o.Owner = c.options.Owner
	for _, option := range options {
		option(&o)
	}
	o.waits = o.waits && !(o.bounded && o.wait <= 0)
	names := append([]string{name}, o.also...)
	r, err := o.call(names)
	if err != nil {
		return nil, err
	}
	if err := c.made(); err != nil {
		return nil, err
	}
	if !c.begin() {
		return nil, ErrClosed
	}
	defer c.running.Done()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })()
	q := &acquiring{c: c, acquisition: o, names: names, call: r, begun: c.now(), retry: c.newRetry()}
	if o.leaseID != "" {
		c.leases.begins(q)
		defer c.leases.ends(q)
	}
	q.identify(cmp.Or(o.leaseID, NewLeaseID()))
	l, err := q.run(ctx, parent)
	if err != nil && q.uncertain && o.leaseID == "" {
		c.undo(ctx, q.call.leaseID, names)
	}
	return l, err
}

// call makes the request, and says what can't be asked.
func (a *acquisition) call(names []string) (r call, err error) {
	r = call{kind: toAsk, method: http.MethodPost, path: "/locks", stream: a.attached}
	if a.waits {
		r.kind = toWait
	}
	for _, name := range names {
		if r.path, err = pathOf("/locks/", name); err != nil {
			return r, err
		}
	}
	if len(names) > 1 {
		r.path, a.Names = "/locks", names
	}
	return r, a.check(names)
}

// acquiring is an acquire under way.
type acquiring struct {
	acquisition
	c         *Client
	names     []string
	call      call
	begun     instant
	retry     *retry
	uncertain bool            // a request may have been granted without our knowing
	doubted   int             // requests with the lease id that came to nothing that is known
	over      int             // grants in a row that were over before they were known
	unrenewed error           // why the last of those was not renewed, if that is known
	older     []*Lease        // of this client with its lease id, when it last asked, and before
	expected  []*Lease        // of these, those whose requests doubted has
	lingers   []time.Duration // of those requests
	late      map[*Lease]int  // how many of these are of the last request

	overtaken bool          // see ownLeases.add, whose mu guards this and the next two
	beside    []*renewal    // by its lease id, that were under way since it last asked
	abandoned time.Duration // the shortest TTL of those that may be carried out late; 0: none
}

// identify sets the lease id to ask with. A late request with an older one replaces nothing of it.
func (q *acquiring) identify(id string) {
	q.doubted, q.unrenewed = 0, nil
	if q.call.leaseID = id; q.announce != nil {
		q.announce(PublicPart(id))
	}
}

// run asks until there is a lease, or a reason to give up.
func (q *acquiring) run(ctx, parent context.Context) (*Lease, error) {
	var before error // what the last request came to
	for perRequest := waitPerRequest; ; {
		wait, within := q.retry.beginWait(q.waits)
		l, err := q.once(ctx, parent, min(perRequest, wait, q.remaining(ctx)), within)
		if err == nil {
			return l, nil
		}
		q.doubts(err)
		if outcomeOf(err) == heldLock {
			q.over, q.unrenewed = 0, nil
		}
		if ctx.Err() != nil {
			return nil, q.retry.ended(ctx, err)
		}
		pause, next := q.retry.after(q.call.kind, err), q.call.kind.fate(err)
		e := refusal(err)
		switch {
		case errors.Is(err, CodeReplaced) && q.leaseID != "" && q.doubted > 0:
			q.doubted-- // by its own request, which its gateway came to late
		case errors.Is(err, ErrExpired), errors.Is(err, CodeReplaced) && q.leaseID == "":
			// It stood still between asking and being answered, or a gateway did that had
			// an earlier request of this acquire: only that has the same lease id.
			if q.waits && q.remaining(ctx) <= 0 || q.over >= mostOver {
				return nil, q.explained(err)
			}
		case errors.Is(err, ErrEvicted):
			return nil, err
		case e != nil && e.Code == CodeConflict && e.Field == "owner" && !q.named && q.Owner != "":
			q.Owner, pause = "", 0 // that of the lease stays
		case e != nil && e.Code == CodeLeaseLost && q.leaseID == "":
			q.identify(NewLeaseID())                       // granted, and ended before we knew
			if pause = 0; !errors.Is(before, ErrExpired) { // nor was that counted
				q.over++
			}
			if q.over >= mostOver {
				return nil, fmt.Errorf("%w: %w", ErrExpired, err)
			}
		case e != nil && e.Code == CodeInvalidRequest && e.Field == "wait_ms" && perRequest > time.Second:
			perRequest, pause = perRequest/2, 0
		case next.patient():
			if pause = min(pause, q.retry.left()); q.waits && q.remaining(ctx) <= 0 {
				return nil, q.retry.givenUp(err)
			}
		case next == final || q.remaining(ctx) <= 0:
			return nil, q.explained(err)
		case e.Code == CodeWaitTimeout:
			q.retry.answered()
			pause = 0 // the place is kept
		}
		if q.waits {
			pause = min(pause, q.remaining(ctx))
		}
		if !sleep(ctx, pause) {
			return nil, q.retry.ended(ctx, err)
		}
		if err := q.retry.exhausted(err); err != nil {
			return nil, err
		}
		before = err
	}
}

// explained adds to a loss, or to the end of what was found, why it was not renewed.
func (q *acquiring) explained(err error) error {
	if q.unrenewed != nil && (errors.Is(err, ErrExpired) || errors.Is(err, CodeLeaseLost)) {
		return fmt.Errorf("%w: %w", err, q.unrenewed)
	}
	return err
}

// doubts notes whether a request may have been granted without our knowing. A gateway that refuses to ask its store says
// nothing of the requests before.
func (q *acquiring) doubts(err error) {
	switch o := outcomeOf(err); {
	case errors.As(err, new(*untrusted)): // of which nothing was sent
	case errors.Is(err, ErrExpired): // it may live for a while
		q.uncertain = true
	case untold(err), errors.Is(err, CodeReplaced):
		q.uncertain = true
	case o == noError, o == lostLease, o == heldLock:
		q.uncertain = false
	}
}

// remaining returns how long it may wait for others from now on.
func (q *acquiring) remaining(ctx context.Context) time.Duration {
	if !q.waits {
		return 0
	}
	left := longestAttachedWait
	if q.wait > 0 {
		left = q.wait - q.c.now().since(q.begun)
	}
	if deadline, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(deadline))
	}
	return max(0, left)
}

// waitMillis is a wait as it is asked for. Of who waits it is never 0, however little is left: the refusal
// would be that of somebody who does not wait.
func (q *acquiring) waitMillis(wait time.Duration) int64 {
	if !q.waits {
		return 0
	}
	return max(1, wait.Milliseconds())
}

// once asks one gateway, which may wait so long, and has so much time for its answer beside.
func (q *acquiring) once(ctx, parent context.Context, wait, within time.Duration) (*Lease, error) {
	if q.attached {
		return q.attach(ctx, parent, within)
	}
	body := q.acquireRequest
	body.Wait = q.waitMillis(wait)
	q.c.leases.asks(q)
	var g granted
	q.call.body, q.call.read = body, func(status int, body []byte) error {
		q.found = q.found && status != http.StatusCreated
		if err := g.lease(q.names)(status, body); err != nil {
			return err
		}
		return g.isOf(q.call.leaseID)
	}
	a, err := q.c.ask(ctx, q.retry.turn, q.call, wait+within)
	if err != nil {
		return nil, err
	}
	if err := q.tooEarly(ctx, g); err != nil {
		return nil, err
	}
	l := q.lease(parent, g, q.c.answered(g, a.sent), nil)
	first, near := l.dueAfter(), q.isNear(l)
	if near {
		first = 0
	} else if l.left() <= 0 {
		if l.Remaining() <= 0 || !q.waits {
			q.over++
		}
		q.unrenewed = nil
		l.finish(ErrExpired)
		return nil, ErrExpired
	}
	keep := func() {
		t := l.attempts()
		defer t.close()
		l.renew(t, first)
	}
	if q.unkept {
		keep = func() {}
	}
	switch err = q.start(l, keep); {
	case err == errOvertaken:
		return q.once(ctx, parent, wait, within)
	case err == nil && near:
		err = q.isKept(ctx, l)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// isNear reports whether so little is left of a new Lease without a stream that it is to be renewed before anybody has
// it: it was found near its end, or the answer took long.
func (q *acquiring) isNear(l *Lease) bool {
	if q.unkept || l.Remaining() <= 0 || l.left() >= l.renewsFor()/3 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.c.now()
	l.unproven = &now
	return true
}

// isKept waits until a Lease that is near its end was renewed, for maxDoubt at most, and ends one that can't be counted
// on then.
func (q *acquiring) isKept(ctx context.Context, l *Lease) error {
	for begun, pause := l.c.now(), minLook; ; pause = min(2*pause, 8*minLook) {
		in, counted := l.look(l.c.now())
		l.mu.Lock()
		cause, enough, why := l.over, counted && l.unproven == nil, l.last
		l.mu.Unlock()
		patience := maxDoubt - l.c.now().since(begun)
		if in > 0 && !enough && patience > 0 && sleep(ctx, min(pause, patience)) {
			continue
		}
		if counted || errors.Is(cause, ErrReleased) { // by its lease id: it is not asked for again
			l.mu.Lock()
			l.unproven = nil
			l.mu.Unlock()
			return nil
		}
		if cause == nil || errors.Is(cause, ErrUnknown) || errors.Is(cause, ErrMaxHold) || errors.Is(cause, ErrNoticeOver) {
			cause, q.unrenewed = ErrExpired, why
			q.over++
		}
		l.finish(cause)
		q.uncertain, q.older = true, append(q.older, l) // its renewals may be carried out late
		if q.leaseID == "" && len(q.names) > 1 && errors.Is(cause, CodeLeaseLost) {
			q.c.undo(ctx, q.call.leaseID, q.names) // the others: it asks with another lease id from now on
		}
		return cause
	}
}

// tooEarly refuses a grant whose TTL is too short for StopEarly, and gives it back.
func (q *acquiring) tooEarly(ctx context.Context, g granted) error {
	err := q.checkMargin(g.ttl())
	if err != nil && q.leaseID == "" {
		q.c.undo(ctx, q.call.leaseID, q.names)
	}
	return err
}

// lease makes what was granted; hangs is the stream that it hangs on, nil if there is none.
func (q *acquiring) lease(parent context.Context, g granted, n news, hangs *stream) *Lease {
	l := q.c.newLease(parent, q.call.leaseID, q.names, g, n, hangs, q.acquisition)
	if q.attached && q.doubted > 0 { // a stream that comes late is renewed with the TTL of the grant
		l.abandons(l.granted, true)
	}
	q.knows(l)
	return l
}

// knows has a Lease know of the renewals by its lease id that were under way beside the acquire.
func (q *acquiring) knows(l *Lease) {
	beside, abandoned := q.c.leases.beside(q)
	l.capBy(beside)
	l.abandons(abandoned, abandoned > 0)
}

// follows has a new Lease know of the renewals and of the other Leases of its client that have its lease id, and
// settles what becomes of these. One ends if its names are known to hang on the new one now, or if it has another
// token. Any other lives beside the new one, and both are renewed with the shorter of their TTLs.
func (q *acquiring) follows(l *Lease) {
	q.knows(l)
	for _, other := range slices.DeleteFunc(q.c.own(l.id, l.names), func(other *Lease) bool { return other == l }) {
		streams, ofSet := other.hangsOnStream()
		replaced := l.attached
		if streams { // the order in which answers are read is not that of the store
			replaced = slices.Contains(q.older, other) && (l.attached || !ofSet)
		}
		switch {
		case other.isBefore(l):
			other.finish(forgotten())
		case l.isBefore(other):
			l.finish(forgotten())
		case replaced:
			n, linger := other.mayReplace()
			l.expects(n-q.late[other], linger) // those it expects already
			other.finish(replacedHere())
		case !l.attached && !streams:
			l.sharesTTL(other)
			other.sharesTTL(l)
		}
		l.heeds(other.heeded()...)
		other.heeds(l.late)
	}
	for _, older := range q.older { // also those that are over by now
		l.heeds(older.heeded()...)
	}
	l.mu.Lock()
	l.isTold(l.mostAsked())
	l.mu.Unlock()
}

// endsOlder ends the Leases of this client after a stream was asked for with their lease id in vain that a gateway may
// have granted: its end releases them. One that is newer and hangs on a stream hears it from there if that is so.
func (q *acquiring) endsOlder() {
	q.c.leases.overtaken(q)
	for _, older := range q.older {
		older.finish(replacedHere())
	}
	for _, l := range q.c.own(q.call.leaseID, q.names) {
		if streams, _ := l.hangsOnStream(); !streams {
			l.finish(replacedHere())
		}
	}
}

// undo releases what may have been granted to an acquire that was given up. It outlives the
// caller's context and, for closeTimeout, the client's own. Who calls it is waited for by Close.
func (c *Client) undo(caller context.Context, leaseID string, names []string) {
	c.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), c.undoes)
		defer cancel()
		defer context.AfterFunc(c.ctx, func() {
			sleep(ctx, c.closes)
			cancel()
		})()
		_ = c.release(ctx, 0, leaseID, names)
	})
}
