package http

import (
	"bytes"
	"context"
	"net/http"
	"runtime/debug"
	"strings"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// join asks the store for a lease; there is a waiter if the request has to wait
// for it. What may have been granted is the call's from here on.
func (c *call) join(req *acquire) (fencing.Outcome, *watchdog.Waiter, error) {
	if err := c.begin(req); err != nil {
		return fencing.Outcome{}, nil, err
	}
	out, waiter, err := c.s.dog.Join(c.r.Context(), req.AcquireRequest)
	if waiter == nil {
		c.leave(allowedWaiters)
	}
	if err != nil {
		return out, nil, c.refused(req, err)
	}
	return out, waiter, nil
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
	if c.r.Context().Err() != nil && outcomeOf(err) == string(fencing.CodeUnavailable) { // not for want of the store
		c.gone = true
		return c.countOutcome(string(codeLeft), errClientLeft)
	}
	err = req.judge(err)
	if req.noRoom != nil && outcomeOf(err) == string(fencing.CodeLocked) {
		err = req.noRoom
	}
	return c.countOutcome(outcomeOf(err), err)
}

// await waits for the lease and answers. While it waits there is as little on its
// stack as can be.
func (c *call) await(waiter *watchdog.Waiter, req *acquire) {
	ctx, done := c.s.leavers.watch(c.r.Context(), connectionOf(c.r))
	waiter.Ready(ctx)
	w := c.wait(ctx, waiter, req)
	done()
	c.unpark()
	if w.err != nil {
		c.writeError(w.err)
		return
	}
	c.answerAcquire(req, &w.out)
}

// awaited is what a wait has come to.
type awaited struct {
	out fencing.Outcome
	err error
}

// mayWait reports whether a request may wait in a queue: it is an acquire whose
// body, which it reads, names wait_ms. Such a one is decoded on a stack of its
// own: the stack it then waits on has not grown, and is a quarter as large.
func (c *call) mayWait() bool {
	if c.r.Method != http.MethodPost || c.r.Body == nil || c.r.Body == http.NoBody ||
		!strings.HasPrefix(c.r.URL.Path, "/locks") || !c.s.hosts.allows(c.r.Host) {
		return false
	}
	body, err := c.readBody()
	return err == nil && bytes.Contains(body, []byte("wait_ms"))
}

// panicAside is a panic on another stack.
type panicAside struct {
	value any
	stack []byte
}

// aside does a part of the work on a stack of its own, and panics as it does.
func (c *call) aside(work func(*call)) {
	done := make(chan *panicAside)
	go func() {
		var panicked *panicAside
		defer func() {
			if value := recover(); value != nil {
				panicked = &panicAside{value, debug.Stack()}
			}
			done <- panicked
		}()
		work(c)
	}()
	if panicked := <-done; panicked != nil {
		if panicked.value == http.ErrAbortHandler {
			panic(http.ErrAbortHandler)
		}
		panic(panicked)
	}
}

// wait returns when a request that had to wait has its lease or has lost its
// place. When ctx ends the client has left; the watchdog sees to what is still to
// be undone.
func (c *call) wait(ctx context.Context, waiter *watchdog.Waiter, req *acquire) *awaited {
	out, err := waiter.Wait(ctx)
	if err != nil {
		err = c.ended(ctx, req, err)
	}
	return &awaited{out, err}
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
	c.in, c.out, c.body = nil, nil, body{}
}

// unpark notes how long it was.
func (c *call) unpark() {
	c.waited = c.elapsed()
	c.leave(allowedWaiters)
}
