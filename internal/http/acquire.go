package http

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"fencepost/internal/fencing"
	"fencepost/internal/session"
)

// acquire is a POST with what the answer depends on.
type acquire struct {
	session.Request                 // with Attach the answer is to be a stream
	ownID           bool            // the client made the lease id
	noRoom          error           // why the request may not wait, though it would
	place           *fencing.Waiter // in the queue of one name, once it has waited
}

// acquireFields are those of a POST, for the errors.
const acquireFields = "ttl_ms, wait_ms, linger_ms, lock_delay_ms, owner, mode, limit, permits, hold, max_hold_ms and metadata"

// decodeAcquire reads a POST for one name. All fields are optional.
func decodeAcquire(c *call) (*acquire, error) {
	name, err := c.lockName()
	if err != nil {
		return nil, err
	}
	req := &acquire{}
	req.Name = name
	return req, c.readAcquire(req, acquireFields, func(field string, d *jsontext.Decoder, bounds *fencing.Bounds) error {
		return req.setField(field, d, bounds)
	})
}

// readAcquire reads what POSTs have in common.
func (c *call) readAcquire(req *acquire, known string, set func(string, *jsontext.Decoder, *fencing.Bounds) error) error {
	bounds := c.s.bounds
	if req.Attach = c.wantsStream(); req.Attach {
		bounds.MaxWait = fencing.LongestAttachedWait
	}
	req.Stamp, req.Hold, req.TTL = c.requestID(), 1, bounds.DefaultTTL
	req.MaxWaiters = bounds.MaxWaiters
	var err error
	if req.Lease, err = c.leaseID(); err != nil {
		return err
	}
	req.ownID = !req.Lease.IsZero()
	req.Keep = req.ownID
	if err = c.refuseIfMatch(); err != nil {
		return err
	}
	body, err := c.readBody()
	if err != nil {
		return err
	}
	if err := decodeObject(body, known, func(name string, d *jsontext.Decoder) error { return set(name, d, &bounds) }); err != nil {
		return err
	}
	if err := bounds.CheckAcquire(&req.AcquireRequest); err != nil {
		return err
	}
	return req.checkLinger()
}

// checkLinger refuses a linger that is out of range, or of a lease without a stream.
func (r *acquire) checkLinger() error {
	switch {
	case r.Linger > 0 && !r.Attach:
		return invalid("linger_ms", "is only for a lease that is attached to a stream: send Accept: text/event-stream too")
	case r.Linger > r.TTL:
		return invalid("linger_ms", "is %d; it must be from 0 to ttl_ms, %d", r.Linger.Milliseconds(), r.TTL.Milliseconds())
	}
	return nil
}

// setField reads one field. A field that is given is checked here against the
// bounds it is documented with: 0 is then no "absent".
func (r *acquire) setField(name string, d *jsontext.Decoder, bounds *fencing.Bounds) (err error) {
	var n int64
	switch name {
	case "ttl_ms":
		r.TTL, err = readMillis(d, name, bounds.MinTTL, bounds.MaxTTL)
	case "wait_ms":
		r.Wait, err = readMillis(d, name, 0, bounds.MaxWait)
	case "linger_ms":
		r.Linger, err = readMillis(d, name, 0, bounds.MaxTTL)
	case "lock_delay_ms":
		r.LockDelay, err = readMillis(d, name, 0, fencing.MaxLockDelay)
	case "max_hold_ms":
		r.MaxHold, err = readMillis(d, name, 0, fencing.MaxMaxHold)
	case "limit":
		n, err = readInt(d, name, 1, fencing.MaxLimit, "")
		r.Limit = int(n)
	case "permits":
		n, err = readInt(d, name, 1, fencing.MaxLimit, "")
		r.Permits = int(n)
	case "hold":
		n, err = readInt(d, name, 1, fencing.MaxHoldDepth, "")
		r.Hold = int(n)
	case "owner":
		r.Owner, err = readString(d, name)
	case "mode":
		var mode string
		if mode, err = readString(d, name); err == nil && mode == "" {
			return invalid(name, `is empty; it must be "exclusive" or "shared"`)
		}
		r.Mode = fencing.Mode(mode)
	case "metadata":
		r.Metadata, err = readStrings(d, name)
	default:
		return errUnknownField
	}
	return err
}

// serveAcquire answers a POST for one name.
func serveAcquire(c *call) { c.serveLeases(decodeAcquire(c)) }

// serveAcquireSet answers a POST for several names.
func serveAcquireSet(c *call) { c.serveLeases(decodeAcquireSet(c)) }

// serveLeases answers a POST for leases, with a stream if so asked.
func (c *call) serveLeases(req *acquire, err error) {
	switch {
	case err != nil:
		c.writeError(err)
	case req.Attach:
		serveAttached(c, req)
	default:
		respond(c, req, acquireLeases)
	}
}

// acquireLeases takes leases, or none, and waits for them if it may.
func acquireLeases(c *call, req *acquire) (grant, error) {
	if err := c.begin(req); err != nil {
		return nil, err
	}
	ctx, done := c.r.Context(), func() {}
	defer func() { done() }()
	outs, err := c.session.Acquire(ctx, func(_ fencing.Name, place fencing.Waiter, _ *fencing.Lock) context.Context {
		if !c.parked {
			ctx, done = c.s.leavers.watch(ctx, connectionOf(c.r), c.mayWait())
			c.park()
		}
		req.place = &place
		return ctx
	})
	if err = c.acquired(ctx, req, err); err != nil {
		return nil, err
	}
	return c.granted(req, outs)
}

// begin is what stands before every acquire: it makes the request known. The store is not asked for a
// stream whose client has gone: that would take the leases from a newer request of the same client.
func (c *call) begin(req *acquire) error {
	if c.s.draining.Load() {
		return &fencing.Error{Code: fencing.CodeDraining, Detail: "this gateway grants no new leases: it is shutting down"}
	}
	if req.Attach {
		if err := c.enter(allowedStreams); err != nil {
			return c.countOutcome(outcomeOf(err), err)
		}
		if c.clientLeft() {
			c.gone = true
			return c.countOutcome(string(codeLeft), errClientLeft)
		}
	}
	if err := c.s.dog.Refusal(); err != nil {
		return c.countOutcome(string(fencing.CodeUnavailable), err)
	}
	if req.Wait > 0 {
		if err := c.enter(allowedWaiters); err != nil {
			req.noRoom, req.Wait = err, 0 // what is free can be had without waiting
		}
	}
	if !req.ownID {
		req.Lease = fencing.NewLeaseID(c.s.now())
		c.lease = req.Lease.Public()
	}
	var err error
	c.session, err = c.s.sessions.Begin(&req.Request)
	if err != nil {
		return c.countOutcome(outcomeOf(err), err)
	}
	return nil
}

// acquired notes how an acquire has ended, and returns what to tell, nil if it has its leases.
func (c *call) acquired(ctx context.Context, req *acquire, err error) error {
	if c.parked {
		c.unpark()
	}
	c.leave(allowedWaiters)
	if err != nil {
		err = c.refused(ctx, req, err)
	}
	if !c.parked && err != errWithdrawn || c.gone {
		return err
	}
	if withdrawn := c.stillPermitted(); withdrawn != nil { // it may not have the leases any more
		return c.countOutcome(outcomeOf(withdrawn), withdrawn)
	}
	if err == errWithdrawn { // and was given back since
		return c.countOutcome(outcomeOf(err), c.refuseAccess(err))
	}
	return err
}

// refused notes what a failed acquire came to, and returns what to tell of it.
func (c *call) refused(ctx context.Context, req *acquire, err error) error {
	if ctx.Err() != nil && (c.parked || outcomeOf(err) == string(fencing.CodeUnavailable)) { // the client left, the store need not be at fault
		if context.Cause(ctx) == errWithdrawn {
			return errWithdrawn
		}
		c.gone = true
		return c.countOutcome(string(codeLeft), errClientLeft)
	}
	err = req.explain(err)
	if req.noRoom != nil && outcomeOf(err) == string(fencing.CodeLocked) {
		err = req.noRoom
	}
	return c.countOutcome(outcomeOf(err), req.comeBack(c.estimate(req, err)))
}

// park gives back what a request that waits has no use for.
func (c *call) park() {
	c.parked = true
	c.leaveRequest()
	c.startWaitSpan()
	c.in, c.out = nil, nil
}

// unpark notes how long it was.
func (c *call) unpark() {
	c.endWaitSpan()
	c.waited = c.elapsed()
}

// grant is what a POST that has its leases is told.
type grant interface {
	answer

	// appendGrant appends the answer without its last brace.
	appendGrant([]byte, wallClock) []byte

	// since returns the time from the request's arrival to the instant that what is left counts from.
	since() time.Duration
}

func (a *granted) since() time.Duration    { return a.elapsed }
func (a *grantedSet) since() time.Duration { return a.elapsed }

// granted makes the answer of a grant, unless there is nobody to tell, or nothing left of it.
func (c *call) granted(req *acquire, outs []fencing.Outcome) (grant, error) {
	now := c.s.now()
	fresh, elapsed, waited := anyFresh(outs), now.Sub(c.start), time.Duration(0)
	if c.parked {
		waited = elapsed
	}
	if req.Names != nil {
		a := &grantedSet{lease: req.Lease, set: makeSet(req.Names, outs, now), fresh: fresh, elapsed: elapsed}
		a.waited = waited
		return a, c.deliverable(req, fresh, a.left)
	}
	a := &granted{
		renewed: renewed{name: req.Name, holder: &outs[0].Holder, left: outs[0].Remaining(now), waited: waited, elapsed: elapsed},
		lease:   req.Lease, fresh: fresh,
	}
	return a, c.deliverable(req, fresh, a.left)
}

// deliverable counts the outcome of an acquire that got leases with so much left to
// live. It returns why the client can't be given them: nothing is left, or it has gone.
func (c *call) deliverable(req *acquire, fresh bool, left time.Duration) error {
	switch {
	case left < time.Millisecond:
		c.session.LeaveOlder()
		return c.countOutcome(outcomeUndelivered, errNothingLeft)
	case !fresh && !req.Attach:
		return c.countOutcome(outcomeRetried, nil)
	case c.clientLeft():
		c.gone = true
		return c.countOutcome(outcomeUndelivered, errClientLeft)
	case !fresh:
		return c.countOutcome(outcomeRetried, nil)
	}
	return c.countOutcome(outcomeGranted, nil)
}

// clientLeft reports whether nobody is there to be told any more.
func (c *call) clientLeft() bool {
	return c.r.Context().Err() != nil || connectionOf(c.r).left()
}

// explain returns what to tell the client of a refusal. A lease id that the gateway
// has just made can be lost only if the store granted it, lost the reply, and
// found it expired on asking again. The client has lost nothing. Who was evicted is told so.
func (r *acquire) explain(err error) error {
	var e *fencing.Error
	if errors.As(err, &e) && !r.ownID && e.Code == fencing.CodeLeaseLost && e.Reason != fencing.ReasonEvicted {
		return &fencing.Error{Code: fencing.CodeUnavailable, Err: err,
			Detail: "the lease expired before the store answered; repeat the request"}
	}
	return err
}

// Who was refused a lock is told to ask again after maxRetryAfter at the latest, for what is held may be
// released at any time before its lease ends, and no sooner than minRetryAfter for an estimate's sake.
const (
	minRetryAfter = time.Second
	maxRetryAfter = 10 * time.Second
)

// comeBack has a refusal say when to ask again.
func (r *acquire) comeBack(err error) error {
	var e *fencing.Error
	if !errors.As(err, &e) {
		return err
	}
	told := *e
	switch e.Code {
	case fencing.CodeLocked, fencing.CodeWaitTimeout, fencing.CodeTooManyRequests:
		if e.Lock == nil { // it says itself
			return err
		}
		told.RetryAfter = worthAsking(e)
	case fencing.CodeQuarantined:
		if r.Wait == 0 {
			return err
		}
	default:
		return err
	}
	if r.ownID && (e.Position > 0 || e.Code == fencing.CodeQuarantined) { // the place rests for RestTTL: come back before
		told.RetryAfter = min(told.RetryAfter, fencing.RestTTL/2)
	}
	return &told
}

// worthAsking returns after how long who was refused a lock may be granted it: when its first lease
// ends or, of a queue, when it would be its turn, whichever comes first; and after maxRetryAfter, but not before
// anybody is granted it. 0: nothing is known.
func worthAsking(e *fencing.Error) time.Duration {
	after := min(cmp.Or(e.RetryAfter, e.Lock.RetryAfter()), maxRetryAfter)
	if e.EstimatedWait > 0 {
		after = min(after, max(e.EstimatedWait, minRetryAfter))
	}
	return max(after, e.Lock.Delayed())
}

// The outcomes of an acquire beside the codes.
const (
	outcomeGranted     = "granted"
	outcomeRetried     = "retried"
	outcomeUndelivered = "undelivered"
)

func outcomeOf(err error) string {
	var e *fencing.Error
	if errors.As(err, &e) {
		return string(e.Code)
	}
	return string(fencing.CodeUnavailable)
}

func (c *call) countOutcome(outcome string, err error) error {
	c.s.metrics.outcomes.WithLabelValues(outcome).Inc()
	return err
}
