package http

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// attachment is the stream of an attached lease.
type attachment struct {
	*call
	stream
	req    *acquire
	ctx    context.Context // ends when the client leaves
	cancel context.CancelCauseFunc
}

// attachLock answers a POST with a stream, unless it has to be refused at once.
func attachLock(c *call, req *acquire) {
	if err := c.enter(allowedStreams); err != nil {
		c.writeError(c.countOutcome(outcomeOf(err), err))
		return
	}
	out, waiter, err := c.join(req)
	if err != nil {
		c.writeError(err)
		return
	}
	conn := connectionOf(c.r)
	ctx, cancel := context.WithCancelCause(c.r.Context())
	defer cancel(nil)
	ctx, done := c.s.leavers.watch(ctx, conn, nil)
	defer done()
	if c.r.ProtoMajor < 2 { // there the connection is for others, too; what is not acknowledged is not renewed either way
		conn.limitSilence(req.TTL)
	}
	c.Header()["Connection"] = []string{"close"} // its timeouts are those of this lease: it serves nothing else

	a := &attachment{call: c, stream: stream{c}, req: req, ctx: ctx, cancel: cancel}
	if waiter != nil {
		if out, err = a.await(waiter, out.Lock); err != nil {
			a.refuse(err)
			return
		}
	}
	a.hold(out)
}

// await waits in the queue, and says so. lock is as it was when the request joined; nil if it
// had been handed the lock by then.
func (a *attachment) await(waiter *watchdog.Waiter, lock *fencing.Lock) (*fencing.Outcome, error) {
	a.park()
	defer a.unpark()
	type result struct {
		out   *fencing.Outcome
		err   error
		panic any
	}
	results := make(chan result, 1)
	waiting, over := context.WithCancel(a.ctx)
	go func() {
		var r result
		defer func() {
			r.panic = recover() // it is the call's to answer
			results <- r
			over()
		}()
		r.out, r.err = a.wait(a.ctx, waiter, a.req)
	}()

	place, began := waiter.Place(), a.elapsed()
	at := standing{position: place.Position}
	err := a.startStream("attached")
	if err == nil {
		if lock != nil {
			pace := a.s.paces.of(waiting, a.req.Name) // which keeps no grant waiting
			at.estimate = pace.Wait(lock, cmp.Or(place.Mode, fencing.ModeExclusive), place.Permits, at.position)
		}
		err = a.queued(at)
	}
	told := at.estimate
	defer a.s.places.enter(a.req.Name)()
	beats := a.heartbeats()
	defer beats.Stop()
	var refused error
	for {
		if err != nil {
			a.cancel(err)
		}
		select {
		case r := <-results:
			switch {
			case r.panic != nil:
				panic(r.panic)
			case refused != nil:
				a.gone, a.hasGrant = false, r.err == nil && r.out.Fresh
				return nil, refused
			}
			if r.err == nil && told > 0 {
				a.s.metrics.estimated(a.elapsed()-began, told)
			}
			return r.out, a.recheck(r.err == nil && r.out.Fresh, r.err)
		case <-beats.C:
			if refused != nil {
				continue // its place is being given up
			}
			if refused = a.stillPermitted(); refused != nil {
				err = refused
				continue
			}
			if now := a.s.places.of(a.ctx, a.req.Name, a.req.Lease.Public()); now.position != 0 && now.position != at.position {
				at = now
				err = a.queued(at)
			} else {
				err = a.comment()
			}
		}
	}
}

func (a *attachment) queued(at standing) error {
	return a.event("queued", "", func(b []byte) []byte {
		b = append(b, `{"name":`...)
		b = appendString(b, string(a.req.Name))
		b = appendStringMember(b, "lease", string(a.req.Lease.Public()))
		b = appendIntMember(b, "position", int64(at.position))
		b = appendEstimate(b, at.estimate)
		b = appendIntMember(b, "elapsed_ms", a.elapsed().Milliseconds())
		return append(b, '}')
	})
}

// refuse ends a request that did not get its lease.
func (a *attachment) refuse(err error) {
	if a.status == 0 {
		a.Header().Del("Connection")
		a.writeError(err)
		return
	}
	a.problem("refused", err)
}

// problem sends an event that ends the stream.
func (a *attachment) problem(event string, err error) {
	e := problemOf(err)
	if e.Code == fencing.CodeDraining {
		event = "draining"
	}
	a.event(event, "", func(b []byte) []byte {
		b = a.appendProblem(b, e)
		b = appendIntMember(b, "elapsed_ms", a.elapsed().Milliseconds())
		return append(b, '}')
	})
}

// hold tells of the lease, and keeps it until the client leaves.
func (a *attachment) hold(out *fencing.Outcome) {
	lease, err := a.call.granted(a.req, out)
	if err != nil {
		a.refuse(err)
		return
	}
	if a.status == 0 {
		lease.renewed.setHeader(a.Header())
		if a.startStream("attached") != nil {
			return
		}
	}
	if a.event("granted", "", func(b []byte) []byte {
		b = appendIntMember(lease.appendMembers(b), "elapsed_ms", lease.elapsed.Milliseconds())
		return append(b, '}')
	}) != nil {
		return
	}
	a.hasGrant = false // told
	a.keep(out, lease.left)
}

// keep passes on what becomes of the lease, and releases it when the client
// leaves. left is its life from now on.
func (a *attachment) keep(out *fencing.Outcome, left time.Duration) {
	end, told := time.Now().Add(left), out.Holder
	updates := a.s.dog.Attach(a.ctx, watchdog.AttachRequest{
		Name: a.req.Name, Lease: a.req.Lease, Stamp: a.req.Stamp, Granted: *out, Ready: connectionOf(a.r).heard(),
	})
	beats := a.heartbeats()
	defer beats.Stop()
	for {
		var err error
		select {
		case update, open := <-updates:
			switch {
			case !open:
				a.release(end)
				return
			case update.Err != nil:
				a.problem("lost", update.Err)
				switch a.code {
				case fencing.CodeDraining, fencing.CodeLeaseLost, fencing.CodeReplaced:
				default: // nobody counts on it any more; one that would linger ends by its TTL
					if a.req.linger == 0 {
						a.release(end)
					}
				}
				return
			}
			left, err = a.renewed(&update.Outcome)
			end = time.Now().Add(left)
			if h := &update.Outcome.Holder; err == nil && givesNotice(h, &told) {
				told, err = *h, a.noticed(&update.Outcome)
			}
		case <-beats.C:
			err = a.comment()
		}
		if refused := a.stillPermitted(); refused != nil {
			a.problem("lost", refused) // nothing renews the lease any more; its holder may believe in it until its end
			return
		}
		if err != nil {
			a.cancel(err) // updates ends with it
		}
	}
}

// renewed tells of a renewal, and returns how long the lease has to live.
func (a *attachment) renewed(out *fencing.Outcome) (time.Duration, error) {
	now := a.s.now()
	left, elapsed := leftOf(out, now), now.Sub(a.start)
	if left < time.Millisecond {
		return left, nil // the next one, or the loss, says more
	}
	return left, a.event("renewed", "", func(b []byte) []byte {
		b = append(b, `{"name":`...)
		b = appendString(b, string(a.req.Name))
		b = appendStringMember(b, "lease", string(out.Holder.Lease))
		b = appendIntMember(b, "fencing_token", int64(out.Holder.Token))
		b = appendIntMember(b, "expires_in_ms", left.Milliseconds())
		b = appendIntMember(b, "elapsed_ms", elapsed.Milliseconds())
		return append(b, '}')
	})
}

// noticeSlack is how much sooner a lease has to be broken than was told for that to be another
// notice: a store of several clocks tells the end of one a little differently each time, and of
// none while those are silent that know of it.
const noticeSlack = time.Second

// givesNotice reports whether a lease has a notice that differs from what was told.
func givesNotice(is, told *fencing.Holder) bool {
	if is.BreakAt == 0 {
		return false
	}
	return told.BreakAt == 0 || is.BreakAt < told.BreakAt.Add(-noticeSlack) || is.BreakReason != told.BreakReason
}

// noticed tells that the lease is to be broken.
func (a *attachment) noticed(out *fencing.Outcome) error {
	now := a.s.now()
	left, elapsed := leftOf(out, now), now.Sub(a.start)
	return a.event("notice", "", func(b []byte) []byte {
		b = append(b, `{"name":`...)
		b = appendString(b, string(a.req.Name))
		b = appendStringMember(b, "lease", string(out.Holder.Lease))
		b = appendIntMember(b, "fencing_token", int64(out.Holder.Token))
		b = appendBreak(b, &out.Holder, left)
		b = appendIntMember(b, "elapsed_ms", elapsed.Milliseconds())
		return append(b, '}')
	})
}

const (
	releaseTimeout    = 3 * time.Second // of one attempt
	minReleaseBackoff = 50 * time.Millisecond
	maxReleaseBackoff = time.Second
)

// release lets go of a lease whose client has left, or has it linger, trying again until its
// end. It does nothing where a newer request has the lease.
func (a *attachment) release(end time.Time) {
	for backoff := minReleaseBackoff; ; backoff = min(2*backoff, maxReleaseBackoff) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.r.Context()), releaseTimeout)
		_, err := a.s.dog.Release(ctx, fencing.ReleaseRequest{
			Name: a.req.Name, Lease: a.req.Lease, Stamp: a.req.Stamp, Linger: a.req.linger,
		})
		cancel()
		var e *fencing.Error
		if err == nil || errors.As(err, &e) && e.Code == fencing.CodeLeaseLost {
			return
		}
		if time.Now().Add(backoff).After(end) {
			a.s.log.Warn("an attached lease whose client has left could not be released; it ends with its TTL",
				slog.String("request_id", string(a.requestID())), slog.String("lease", string(a.lease)), slog.String("error", err.Error()))
			return
		}
		time.Sleep(backoff)
	}
}
