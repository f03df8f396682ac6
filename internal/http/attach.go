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

// attachment is the stream of an attached lease, or of several under one lease id.
type attachment struct {
	*call
	stream
	req    *acquire
	leases *watchdog.Stream
	ctx    context.Context // ends when the client leaves
	cancel context.CancelCauseFunc
	held   []watchdog.Attached // as the client was told last

	notices map[fencing.Name]fencing.Holder // those that the client was told of
}

// attachLock answers a POST for one name with a stream, unless it has to be refused at once.
func attachLock(c *call, req *acquire) {
	leases, err := c.openLeases(req, req.Name)
	if err != nil {
		c.writeError(err)
		return
	}
	defer leases.Close()
	out, waiter, err := c.join(req)
	if err != nil {
		c.writeError(err)
		return
	}
	a, done := c.attach(req, leases)
	defer done()
	if waiter != nil {
		waits := make(chan waitsFor, 1)
		waits <- waitsFor{req.Name, waiter.Place(), out.Lock}
		if err = a.await(waits, func() (bool, error) {
			got, err := a.wait(a.ctx, waiter, req)
			out = got
			return err == nil && got.Fresh, err
		}); err != nil {
			a.refuse(err)
			return
		}
	}
	lease, err := c.granted(req, out)
	if err = a.stillNewest(err); err != nil {
		a.refuse(err)
		return
	}
	if a.status == 0 {
		lease.renewed.setHeader(a.Header())
	}
	a.keep([]watchdog.Attached{{Name: req.Name, Outcome: *out}}, lease.elapsed, lease.appendMembers)
}

// stillNewest returns err, or why the client is not told of what was granted: a newer request has it.
func (a *attachment) stillNewest(err error) error {
	if err == nil && a.leases.Replaced() {
		return fencing.ReplacedError()
	}
	return err
}

// openLeases begins an acquire whose leases are to hang on this request. It is known to the
// watchdog before the store is asked, and the store is not asked for a client that has gone: that
// would take the leases from a newer request of the same client.
func (c *call) openLeases(req *acquire, names ...fencing.Name) (*watchdog.Stream, error) {
	if err := c.enter(allowedStreams); err != nil {
		return nil, c.countOutcome(outcomeOf(err), err)
	}
	if c.clientLeft() {
		c.gone = true
		return nil, c.countOutcome(string(codeLeft), errClientLeft)
	}
	if err := c.begin(req); err != nil {
		return nil, err
	}
	leases, err := c.s.dog.OpenStream(req.Lease, req.Stamp, req.linger, names...)
	if err != nil {
		c.hasGrant = false
		return nil, c.countOutcome(outcomeOf(err), err)
	}
	return leases, nil
}

// attach makes a request the stream of leases; done ends it.
func (c *call) attach(req *acquire, leases *watchdog.Stream) (a *attachment, done func()) {
	conn := connectionOf(c.r)
	ctx, cancel := context.WithCancelCause(c.r.Context())
	ctx, forget := c.s.leavers.watch(ctx, conn, nil)
	if c.r.ProtoMajor < 2 { // there the connection is for others, too; what is not acknowledged is not renewed either way
		conn.limitSilence(req.TTL)
	}
	c.Header()["Connection"] = []string{"close"} // its timeouts are those of this lease: it serves nothing else
	return &attachment{call: c, stream: stream{c}, req: req, leases: leases, ctx: ctx, cancel: cancel}, func() {
		forget()
		cancel(nil)
	}
}

// waitsFor is a name that a request waits for, where it stood as it joined, and the lock as it was then;
// nil if it had been handed the lock by then.
type waitsFor struct {
	name  fencing.Name
	place fencing.Waiter
	lock  *fencing.Lock
}

// await calls get, which waits and reports whether it was granted something afresh, and
// meanwhile says what for: each name comes by waits.
func (a *attachment) await(waits <-chan waitsFor, get func() (fresh bool, err error)) error {
	defer a.leave(allowedWaiters)
	type result struct {
		fresh bool
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
		r.fresh, r.err = get()
	}()

	var at standing
	var told, began time.Duration // the estimate of the whole wait, and when it was made
	var beats <-chan time.Time
	leave := func() {}
	defer func() { leave() }()
	var name fencing.Name
	var err, refused error
	for {
		if err != nil {
			a.cancel(err)
			err = nil
		}
		select {
		case r := <-results:
			if len(waits) > 0 { // that comes first
				results <- r
				continue
			}
			if name != "" {
				a.unpark()
			}
			switch {
			case r.panic != nil:
				panic(r.panic)
			case refused != nil:
				a.gone = false
				a.owes(r.err == nil && r.fresh)
				return refused
			case r.err == nil && told > 0:
				a.s.metrics.estimated(a.elapsed()-began, told)
			}
			return a.recheck(r.err == nil && r.fresh, r.err)
		case w := <-waits:
			if name == "" {
				a.park()
				ticker := a.heartbeats()
				defer ticker.Stop()
				beats, err = ticker.C, a.startStream("attached")
			}
			leave()
			name, leave = w.name, a.s.places.enter(w.name)
			if at = (standing{position: w.place.Position}); err != nil {
				continue
			}
			if began = a.elapsed(); w.lock != nil && a.req.names == nil {
				pace := a.s.paces.of(waiting, name) // which keeps no grant waiting
				at.estimate = pace.Wait(w.lock, cmp.Or(w.place.Mode, fencing.ModeExclusive), w.place.Limit, w.place.Permits, at.position)
				told = at.estimate
			}
			err = a.queued(name, at)
		case <-beats:
			if refused != nil {
				continue // its place is being given up
			}
			if refused = a.stillPermitted(); refused != nil {
				err = refused
				continue
			}
			now := a.s.places.of(waiting, name, a.req.Lease.Public())
			if now.position == 0 || now.position == at.position {
				err = a.comment()
				continue
			}
			if at = now; a.req.names != nil {
				at.estimate = 0 // of one name it would be told, and the others are to come
			}
			err = a.queued(name, at)
		}
	}
}

func (a *attachment) queued(name fencing.Name, at standing) error {
	return a.event("queued", "", func(b []byte) []byte {
		b = append(b, `{"name":`...)
		b = appendString(b, string(name))
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
	a.problem("refused", "", err)
}

// problem sends an event that ends the stream; of several names about one of them, unless it
// is empty.
func (a *attachment) problem(event string, name fencing.Name, err error) {
	e := problemOf(err)
	if e.Code == fencing.CodeDraining {
		event = "draining"
	}
	a.event(event, "", func(b []byte) []byte {
		b = a.appendProblem(b, e)
		if name != "" {
			b = appendStringMember(b, "name", string(name))
		}
		b = appendIntMember(b, "elapsed_ms", a.elapsed().Milliseconds())
		return append(b, '}')
	})
}

// sendGranted tells of what was granted.
func (a *attachment) sendGranted(elapsed time.Duration, members func([]byte, wallClock) []byte) error {
	if a.status == 0 {
		if err := a.startStream("attached"); err != nil {
			return err
		}
	}
	err := a.event("granted", "", func(b []byte) []byte {
		return append(appendIntMember(members(b, a.s.wall), "elapsed_ms", elapsed.Milliseconds()), '}')
	})
	if err == nil {
		a.hasGrant = false // told
	}
	return err
}

// keep tells of what was granted, passes on what becomes of the leases, and releases them when
// the client leaves.
func (a *attachment) keep(leases []watchdog.Attached, elapsed time.Duration, members func([]byte, wallClock) []byte) {
	if a.sendGranted(elapsed, members) != nil {
		return
	}
	a.held = leases
	for i := range leases {
		if leases[i].Outcome.Holder.BreakAt != 0 {
			a.noteNotice(&leases[i]) // the grant has told
		}
	}
	updates := a.leases.Keep(a.ctx, leases, connectionOf(a.r).heard())
	beats := a.heartbeats()
	defer beats.Stop()
	for {
		var err error
		select {
		case update, open := <-updates:
			switch {
			case !open:
				a.release()
				return
			case update.Err != nil:
				a.lost(&update)
				return
			}
			err = a.tell(update.Leases)
		case <-beats.C:
			err = a.comment()
		}
		if refused := a.stillPermitted(); refused != nil {
			a.problem("lost", "", refused) // nothing renews the lease any more; its holder may believe in it until its end
			return
		}
		if err != nil {
			a.cancel(err) // updates ends with it
		}
	}
}

// tell tells of a renewal: of what was released meanwhile, and of notices.
func (a *attachment) tell(leases []watchdog.Attached) error {
	err := a.released(leases)
	if err == nil {
		err = a.renewed(leases)
	}
	for i := range leases {
		if err == nil {
			err = a.noticed(&leases[i])
		}
	}
	return err
}

// lost ends a stream that has lost its lease.
func (a *attachment) lost(update *watchdog.Update) {
	if a.req.names != nil {
		a.lostOne(update)
		return
	}
	a.problem("lost", "", update.Err)
	switch a.code {
	case fencing.CodeDraining, fencing.CodeLeaseLost, fencing.CodeReplaced:
		return
	}
	if a.req.linger == 0 { // one that would linger ends by its TTL
		a.releaseAfter()
	}
}

// releaseAfter releases what is held once the client, which was told of a loss, has left: until
// then it may believe in it.
func (a *attachment) releaseAfter() {
	timer := time.NewTimer(time.Until(endOfAll(a.held)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.s.dog.Drained():
		if a.ctx.Err() == nil {
			return
		}
	case <-a.ctx.Done():
	}
	a.release()
}

// renewed tells of a renewal.
func (a *attachment) renewed(leases []watchdog.Attached) error {
	now := a.s.now()
	left, elapsed := leftOfAll(leases, now), now.Sub(a.start)
	if left < time.Millisecond {
		return nil // the next one, or the loss, says more
	}
	return a.event("renewed", "", func(b []byte) []byte {
		h := &leases[0].Outcome.Holder
		if a.req.names == nil {
			b = append(b, `{"name":`...)
			b = appendString(b, string(a.req.Name))
			b = appendStringMember(b, "lease", string(h.Lease))
			b = appendIntMember(b, "fencing_token", int64(h.Token))
		} else {
			b = append(b, `{"lease":`...)
			b = appendString(b, string(h.Lease))
		}
		b = appendIntMember(b, "expires_in_ms", left.Milliseconds())
		b = appendIntMember(b, "elapsed_ms", elapsed.Milliseconds())
		return append(b, '}')
	})
}

// leftOfAll returns how long leases live together.
func leftOfAll(leases []watchdog.Attached, now time.Time) time.Duration {
	left := leases[0].Outcome.Remaining(now)
	for i := range leases[1:] {
		left = min(left, leases[i+1].Outcome.Remaining(now))
	}
	return left
}

const (
	releaseTimeout    = 3 * time.Second // of one attempt
	minReleaseBackoff = 50 * time.Millisecond
	maxReleaseBackoff = time.Second
)

// release lets go of leases whose client has left, or has them linger, trying again until their
// end. It does nothing where a newer request has them.
func (a *attachment) release() {
	names := make([]fencing.Name, len(a.held))
	for i := range a.held {
		names[i] = a.held[i].Name
	}
	end := endOfAll(a.held)
	for backoff := minReleaseBackoff; ; backoff = min(2*backoff, maxReleaseBackoff) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.r.Context()), releaseTimeout)
		errs := a.leases.Release(ctx, names)
		cancel()
		var rest []fencing.Name
		var last error
		for i, err := range errs {
			var e *fencing.Error
			if err != nil && !(errors.As(err, &e) && e.Code == fencing.CodeLeaseLost) {
				rest, last = append(rest, names[i]), err
			}
		}
		if len(rest) == 0 {
			return
		}
		if names = rest; time.Now().Add(backoff).After(end) {
			a.s.log.Warn("an attached lease whose client has left could not be released; it ends with its TTL",
				slog.String("request_id", string(a.requestID())), slog.String("lease", string(a.lease)), slog.String("error", last.Error()))
			return
		}
		time.Sleep(backoff)
	}
}

// endOfAll returns when the last of leases ends.
func endOfAll(leases []watchdog.Attached) time.Time {
	var end time.Time
	for i := range leases {
		out := &leases[i].Outcome
		if ends := out.Asked.Add(out.Holder.ExpiresAt.Sub(out.Now)); ends.After(end) {
			end = ends
		}
	}
	return end
}
