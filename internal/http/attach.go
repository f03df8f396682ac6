package http

import (
	"cmp"
	"context"
	"slices"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/session"
)

// attachment is a stream that leases hang on: one, or several under one lease id.
type attachment struct {
	*call
	stream
	req    *acquire
	ctx    context.Context // ends when the client leaves
	cancel context.CancelCauseFunc
	held   []session.Lease // as the client was told last

	notices map[fencing.Name]fencing.Holder // those that the client was told of
}

// serveAttached answers a POST for leases with a stream, unless it has to be refused at once.
func serveAttached(c *call, req *acquire) {
	if err := c.begin(req); err != nil {
		c.writeError(err)
		return
	}
	a, done := c.attach(req)
	defer done()
	defer c.endSession() // before done: it may wait for the client to leave
	outs, err := a.await()
	if err != nil {
		a.refuse(err)
		return
	}
	told, err := c.granted(req, outs)
	if err != nil {
		a.refuse(err)
		return
	}
	if one, is := told.(*granted); is && a.status == 0 {
		one.renewed.setHeader(a.Header())
	}
	a.held = c.session.Leases()
	a.keep(told)
}

// attach makes a request a stream; done ends it.
func (c *call) attach(req *acquire) (a *attachment, done func()) {
	ctx, cancel := context.WithCancelCause(c.r.Context())
	ctx, forget := c.s.leavers.watch(ctx, connectionOf(c.r), nil)
	return &attachment{call: c, stream: stream{c}, req: req, ctx: ctx, cancel: cancel}, func() {
		forget()
		cancel(nil)
	}
}

// open sends the header of the stream.
func (a *attachment) open() error {
	a.limitSilence(a.req.TTL)
	a.Header()["Connection"] = []string{"close"} // its timeouts are those of this lease: it serves nothing else
	return a.startStream("attached")
}

// limitSilence has the connection end when its client is not heard of for half the TTL of a lease. Over HTTP/2 it is for others, too:
// what is not acknowledged is not renewed either way.
func (a *attachment) limitSilence(ttl time.Duration) {
	if a.r.ProtoMajor < 2 {
		connectionOf(a.r).limitSilence(ttl)
	}
}

// waitsFor is a name that a request waits for, where it stood as it joined, and the lock as it was then;
// nil if it had been handed the lock by then.
type waitsFor struct {
	name  fencing.Name
	place fencing.Waiter
	lock  *fencing.Lock
}

// await takes the leases, and meanwhile says what the request waits for.
func (a *attachment) await() ([]fencing.Outcome, error) {
	type result struct {
		outs  []fencing.Outcome
		err   error
		panic any
	}
	results, waits := make(chan result, 1), make(chan waitsFor, max(1, len(a.req.Names)))
	waiting, over := context.WithCancel(a.ctx)
	go func() {
		var r result
		defer func() {
			r.panic = recover() // it is the call's to answer
			results <- r
			over()
		}()
		r.outs, r.err = a.session.Acquire(a.ctx, func(name fencing.Name, place fencing.Waiter, lock *fencing.Lock) context.Context {
			waits <- waitsFor{name, place, lock}
			return a.ctx
		})
	}()

	ended := false
	defer func() {
		if !ended { // a panic: the session is closed by one goroutine
			a.cancel(errClientLeft)
			<-results
		}
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
			ended = true
			switch {
			case r.panic != nil:
				panic(r.panic)
			case r.err == nil && told > 0 && refused == nil:
				a.s.metrics.estimated(a.elapsed()-began, told)
			}
			err := a.acquired(a.ctx, a.req, r.err)
			if refused != nil {
				a.gone, err = false, refused
			}
			return r.outs, err
		case w := <-waits:
			if name == "" {
				a.park()
				ticker := a.heartbeats()
				defer ticker.Stop()
				beats, err = ticker.C, a.open()
			}
			leave()
			name, leave = w.name, a.s.places.enter(w.name)
			if at = (standing{position: w.place.Position}); err != nil {
				continue
			}
			a.req.place = &w.place
			if began = a.elapsed(); w.lock != nil && a.req.Names == nil {
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
			if at = now; a.req.Names != nil {
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
	err = a.event(event, "", func(b []byte) []byte {
		b = a.appendProblem(b, e)
		if name != "" {
			b = appendStringMember(b, "name", string(name))
		}
		b = appendIntMember(b, "elapsed_ms", a.elapsed().Milliseconds())
		return append(b, '}')
	})
	if err != nil {
		a.session.Unheard()
	}
}

// sendGranted tells of what was granted.
func (a *attachment) sendGranted(told grant) error {
	if a.status == 0 {
		if err := a.open(); err != nil {
			return err
		}
	}
	ttl := a.held[0].Outcome.Holder.TTL // of those that were found it may be another than was asked for
	for i := range a.held {
		ttl = min(ttl, a.held[i].Outcome.Holder.TTL)
	}
	a.limitSilence(ttl)
	return a.event("granted", "", func(b []byte) []byte {
		return append(appendIntMember(told.appendGrant(b, a.s.wall), "elapsed_ms", told.since().Milliseconds()), '}')
	})
}

// keep tells of what was granted, and passes on what becomes of the leases until the client leaves.
func (a *attachment) keep(told grant) {
	if a.sendGranted(told) != nil {
		return
	}
	for i := range a.held {
		if a.held[i].Outcome.Holder.BreakAt != 0 {
			a.noteNotice(&a.held[i]) // the grant has told
		}
	}
	updates := a.session.Keep(a.ctx, connectionOf(a.r).heard())
	beats := a.heartbeats()
	defer beats.Stop()
	for {
		var err error
		select {
		case update, open := <-updates:
			switch {
			case !open:
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
			a.session.Forsake()
			return
		}
		if err != nil {
			a.cancel(err) // updates ends with it
		}
	}
}

// tell tells of a renewal: of what was released meanwhile, and of notices.
func (a *attachment) tell(leases []session.Lease) error {
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

// lost ends a stream whose leases are not kept any more; of several it says which is lost, unless that is all. The others
// the client has until it leaves, or their end.
func (a *attachment) lost(update *session.Update) {
	code := problemOf(update.Err).Code
	if a.req.Names == nil || code == fencing.CodeDraining || code == fencing.CodeReplaced {
		a.problem("lost", "", update.Err)
		return
	}
	if err := a.released(update.Leases); err != nil {
		a.cancel(err)
	}
	if len(update.Leases) > 0 { // else the last one was released
		a.problem("lost", update.Name, update.Err)
	}
}

// renewed tells of a renewal.
func (a *attachment) renewed(leases []session.Lease) error {
	now := a.s.now()
	left, elapsed := leftOfAll(leases, now), now.Sub(a.start)
	if left < time.Millisecond {
		return nil // the next one, or the loss, says more
	}
	return a.event("renewed", "", func(b []byte) []byte {
		h := &leases[0].Outcome.Holder
		if a.req.Names == nil {
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
func leftOfAll(leases []session.Lease, now time.Time) time.Duration {
	left := leases[0].Outcome.Remaining(now)
	for i := range leases[1:] {
		left = min(left, leases[i+1].Outcome.Remaining(now))
	}
	return left
}

// released tells which leases of a set were released one by one: all but those that are held
// now.
func (a *attachment) released(held []session.Lease) error {
	before := a.held
	a.held = held
	if len(held) == len(before) {
		return nil
	}
	for i := range before {
		l := &before[i]
		if slices.ContainsFunc(held, func(other session.Lease) bool { return other.Name == l.Name }) {
			continue
		}
		if err := a.event("released", "", func(b []byte) []byte {
			b = append(b, `{"name":`...)
			b = appendString(b, string(l.Name))
			b = appendStringMember(b, "lease", string(l.Outcome.Holder.Lease))
			b = appendIntMember(b, "fencing_token", int64(l.Outcome.Holder.Token))
			b = appendIntMember(b, "elapsed_ms", a.elapsed().Milliseconds())
			return append(b, '}')
		}); err != nil {
			return err
		}
	}
	return nil
}
