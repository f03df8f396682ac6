package watchdog

import (
	"context"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

const (
	// minReadyPoll is how often a connection that is not ready is looked at, at most.
	minReadyPoll = 50 * time.Millisecond

	// longestReserve bounds by how much the end of a lease that could not be renewed
	// is told before it comes: its holder has to hear of it.
	longestReserve = 500 * time.Millisecond
)

// AttachRequest says which lease to keep alive.
type AttachRequest struct {
	Name    fencing.Name
	Lease   fencing.LeaseID
	Stamp   fencing.Stamp   // of the request that acquired it, with AcquireRequest.Attach
	Granted fencing.Outcome // as it was acquired, with Asked

	// Ready false postpones a renewal: what was written to the holder before has not
	// been acknowledged. nil is always.
	Ready func() bool
}

// Update is what became of an attached lease: a renewal, or why there will be
// none. CodeReplaced: a newer request has the lease. CodeLeaseLost: it has definitely ended, or its MaxHold or notice is over.
// CodeUnavailable, CodeClockSkew and the like: it could not be renewed and is about
// to run out. CodeDraining: the gateway is shutting down; the lease stays.
type Update struct {
	Outcome fencing.Outcome
	Err     error
}

// Attach renews a lease when Holder.RenewIn says so until ctx ends or the lease does.
// When the store tells of the lease's end, or that it was given notice, it is asked at
// once what came of it.
// What is not read is overwritten by what comes next: the newest update, and the
// last one with its Err, can always be read. The channel is then closed. Attach
// never releases.
func (w *Watchdog) Attach(ctx context.Context, r AttachRequest) <-chan Update {
	a := &attachment{dog: w, AttachRequest: r, updates: make(chan Update, 1), replaced: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	a.take(r.Granted)
	w.listen()
	w.hub.enter()
	if !w.requests.attach(a) {
		w.hub.leave()
		a.updates <- Update{Err: errDraining()}
		close(a.updates)
		return a.updates
	}
	w.work.Go(func() { a.run(ctx) })
	return a.updates
}

func (a *attachment) key() key { return key{a.Name, a.Stamp} }

// attach makes an attachment known, unless the gateway is draining.
func (l *registry) attach(a *attachment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining {
		return false
	}
	l.attached[a.key()] = a
	l.kept[a.kept()] = append(l.kept[a.kept()], a)
	return true
}

func (a *attachment) kept() leaseOn { return leaseOn{a.Name, a.Lease.Public()} }

// changed has an attachment ask the store if an event says that its lease has ended, or was
// given notice.
func (l *registry) changed(e fencing.Event) {
	switch e.Kind {
	case fencing.EventBroken, fencing.EventReleased, fencing.EventExpired, fencing.EventNotice:
	default:
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.kept[leaseOn{e.Name, e.Lease}] {
		select {
		case a.changed <- struct{}{}:
		default: // told already
		}
	}
}

// attachment is a lease that is kept alive.
type attachment struct {
	AttachRequest
	dog     *Watchdog
	updates chan Update

	replaced chan struct{} // holds one when a newer request has the lease
	changed  chan struct{} // holds one when an event said that the lease has ended, or was given notice

	life   time.Duration // that the last grant or renewal gave it: the TTL, or less
	renews time.Time     // when it is to be renewed
	end    time.Time     // when the lease ends, or a little before (P9)
	capped error         // how it ends if no renewal moves the end, by MaxHold or a notice; else nil
}

// take notes what a grant or renewal came to.
func (a *attachment) take(out fencing.Outcome) {
	h := &out.Holder
	a.life = h.ExpiresAt.Sub(out.Now)
	a.renews, a.end = out.Asked.Add(h.RenewIn(a.life)), out.Asked.Add(a.life)
	switch {
	case h.BreaksAtEnd():
		broken := fencing.LostError(fencing.ReasonBroken)
		broken.BreakReason = h.BreakReason
		a.capped = broken
	case h.MaxHold > 0 && h.ExpiresAt >= h.AcquiredAt.Add(h.MaxHold):
		a.capped = errMaxHold
	default:
		a.capped = nil
	}
}

var errMaxHold = &fencing.Error{
	Code: fencing.CodeLeaseLost, Reason: fencing.ReasonExpired, Detail: "the lease has been held for as long as its max_hold_ms allows",
}

// giveUpAt is when to give up on a lease that could not be renewed.
func (a *attachment) giveUpAt() time.Time {
	return a.end.Add(-min(a.life/20, longestReserve))
}

func (a *attachment) run(ctx context.Context) {
	defer close(a.updates)
	defer a.forget()
	for {
		out, err := a.next(ctx)
		if ctx.Err() != nil {
			return
		}
		a.publish(Update{out, err})
		if err != nil {
			return
		}
		a.take(out)
	}
}

func (a *attachment) forget() {
	defer a.dog.hub.leave()
	l := &a.dog.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.attached[a.key()] == a {
		delete(l.attached, a.key())
	}
	rest := slices.DeleteFunc(l.kept[a.kept()], func(other *attachment) bool { return other == a })
	if l.kept[a.kept()] = rest; len(rest) == 0 {
		delete(l.kept, a.kept())
	}
}

// publish replaces what has not been read: it never blocks.
func (a *attachment) publish(u Update) {
	select {
	case <-a.updates:
	default:
	}
	a.updates <- u
}

// next returns the next renewal, or why there is none.
func (a *attachment) next(ctx context.Context) (fencing.Outcome, error) {
	next := a.renews
	if a.capped != nil {
		next = a.end
	}
	if err := a.until(ctx, next); err != nil {
		return fencing.Outcome{}, err
	}
	if a.capped != nil && !time.Now().Before(a.giveUpAt()) {
		if err := a.until(ctx, a.end); err != nil {
			return fencing.Outcome{}, err
		}
		return fencing.Outcome{}, a.capped
	}
	var last error
	for backoff := minBackoff; time.Now().Before(a.giveUpAt()); {
		wait := backoff
		if a.Ready != nil && !a.Ready() {
			wait = max(a.life/20, minReadyPoll)
			last = &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the connection has not acknowledged what was sent before, so the lease was not renewed"}
		} else {
			out, err := a.renew(ctx)
			if err == nil || !uncertain(err) {
				return out, err
			}
			last, backoff = err, min(2*backoff, maxBackoff, max(a.life/10, minBackoff/5))
		}
		if err := a.until(ctx, earlier(time.Now().Add(wait), a.giveUpAt())); err != nil {
			return fencing.Outcome{}, err
		}
	}
	if last == nil {
		last = &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the lease was about to end before it could be renewed"}
	}
	return fencing.Outcome{}, last
}

// renew asks once, as long as the lease lives.
func (a *attachment) renew(ctx context.Context) (fencing.Outcome, error) {
	ctx, cancel := context.WithDeadline(ctx, earlier(time.Now().Add(callTimeout), a.giveUpAt()))
	defer cancel()
	out, err := a.dog.Renew(ctx, fencing.RenewRequest{Name: a.Name, Lease: a.Lease, Stamp: a.Stamp})
	if err == nil && left(&out) <= 0 {
		return fencing.Outcome{}, &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the renewal had run out before it was answered"}
	}
	return out, err
}

// until sleeps, less long if the store tells of the lease, and returns why there
// is nothing to do any more.
func (a *attachment) until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-a.changed:
		return nil
	case <-ctx.Done():
		return fencing.Unavailable(ctx.Err())
	case <-a.replaced:
		return fencing.ReplacedError()
	case <-a.dog.drained:
		return errDraining()
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
