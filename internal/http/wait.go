package http

import (
	"context"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// join asks the store for a lease; there is a waiter if the request has to wait
// for it. What may have been granted is the call's from here on.
func (c *call) join(req *acquire) (*fencing.Outcome, *watchdog.Waiter, error) {
	if err := c.begin(req); err != nil {
		return nil, nil, err
	}
	out, waiter, err := c.s.dog.Join(c.r.Context(), req.AcquireRequest)
	if waiter == nil {
		c.leave(allowedWaiters)
	}
	if err != nil {
		return nil, nil, c.refused(req, err)
	}
	return &out, waiter, nil
}

// begin is what stands before every acquire.
func (c *call) begin(req *acquire) error {
	if c.s.draining.Load() {
		return &fencing.Error{Code: fencing.CodeDraining, Detail: "this gateway grants no new leases: it is shutting down"}
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
	c.grant = fencing.TakeBackRequest{Name: req.Name, Lease: req.Lease, Stamp: req.Stamp}
	c.names = req.names
	c.hasGrant = true // until the store says otherwise, even if it panics
	return nil
}

// refused notes what a failed acquire came to, and returns what to tell of it.
// The watchdog undoes by itself what would have waited, and sets.
func (c *call) refused(req *acquire, err error) error {
	c.hasGrant = req.Wait == 0 && req.names == nil && c.mayHaveGrant(req, err)
	if c.r.Context().Err() != nil && outcomeOf(err) == string(fencing.CodeUnavailable) { // the client left, the store need not be at fault
		c.gone = true
		return c.countOutcome(string(codeLeft), errClientLeft)
	}
	err = req.explain(err)
	if req.noRoom != nil && outcomeOf(err) == string(fencing.CodeLocked) {
		err = req.noRoom
	}
	return c.countOutcome(outcomeOf(err), err)
}

// await waits in the queue until the request has its lease or has lost its place.
// It is not to be called for a stream, which has something to say meanwhile.
func (c *call) await(waiter *watchdog.Waiter, req *acquire) (*fencing.Outcome, error) {
	ctx, done := c.s.leavers.watch(c.r.Context(), connectionOf(c.r))
	defer done()
	c.park()
	defer c.unpark()
	return c.wait(ctx, waiter, req)
}

// wait returns when a request that had to wait has its lease or has lost its
// place. When ctx ends the client has left; the watchdog sees to what is still to
// be undone.
func (c *call) wait(ctx context.Context, waiter *watchdog.Waiter, req *acquire) (*fencing.Outcome, error) {
	out, err := waiter.Wait(ctx)
	if err != nil {
		err = c.ended(ctx, req, err)
	}
	return out, err
}

// ended notes why a wait has ended without a lease, and returns what to tell.
func (c *call) ended(ctx context.Context, req *acquire, err error) error {
	if ctx.Err() != nil {
		c.gone, c.hasGrant = true, false
		return c.countOutcome(string(codeLeft), errClientLeft)
	}
	return c.refused(req, err)
}

// park gives back what a request that waits has no use for.
func (c *call) park() {
	c.parked = true
	c.in, c.out = nil, nil
}

// unpark notes how long it was.
func (c *call) unpark() {
	c.waited = c.elapsed()
	c.leave(allowedWaiters)
}
