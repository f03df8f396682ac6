package watchdog

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

// Waiter is a request that waits in the queue of a name. Wait is to be called,
// once: until it returns, the request keeps its place.
type Waiter struct {
	dog      *Watchdog
	ask      fencing.AcquireRequest
	deadline time.Time      // when its patience ends
	began    time.Duration  // when it was parked, since dog.origin
	stood    fencing.Waiter // as it joined, or took over
	waited   time.Duration  // when it joined: by earlier requests for the place
	wake     chan struct{}  // holds one when Wait is to look at what follows
	timer    *time.Timer

	// The registry's mutex guards what follows.
	state      state
	queue      *queue
	linked     bool          // it is in it, without a grant
	missing    bool          // it is in queue.missing, to ask again
	lostGrant  bool          // the store told of a lease for it, which it has not heard of and is to ask for
	timedOut   bool          // its patience has ended
	asks       bool          // it is to ask again when it is parked
	busy       bool          // Wait is dealing with a grant, or leaving
	asked      time.Duration // when it last asked again, since dog.origin
	known      time.Duration // when the store was last known to have its place, or asked for it, since dog.origin
	prev, next *Waiter
	joinedAt   fencing.Instant
	grant      *granted // for Wait to deal with
	err        error    // why it waits no longer
	end        ending   // of a request with stateDelivered
	unsure     bool     // a question may have left something in a store without a queue
}

// state is where a request is on its way.
type state uint8

const (
	stateJoining   state = iota // the store is being asked
	stateParked                 // it waits
	stateDelivered              // it has its lease
	stateGone                   // it has left, been refused or been drained
)

// granted is a grant for a request that waits.
type granted struct {
	holder fencing.Holder
	now    fencing.Instant
	asked  time.Time // of a provisional one, the zero time
}

// ending is what was delivered, and when.
type ending struct {
	token fencing.Token
	now   fencing.Instant
}

// park makes the request wait. The caller holds the registry's mutex.
func (t *Waiter) park(out *fencing.Outcome) {
	t.state, t.began = stateParked, time.Since(t.dog.origin)
	t.timer = time.AfterFunc(time.Until(t.deadline), t.onTimeout)
	if out.Place != nil {
		t.stood, t.waited = *out.Place, out.Place.Waiting
	} else { // it was handed the lock, and has to confirm that
		t.stood = fencing.Waiter{
			Lease: t.ask.Lease.Public(), Owner: t.ask.Owner, Mode: t.ask.Mode, Limit: t.ask.Limit, Permits: max(1, t.ask.Permits), Position: 1,
		}
	}
	if t.grant == nil {
		t.dog.requests.link(t, out.Now.Add(-t.waited))
	}
}

// Place returns where the request stood when it joined, with what its place has: of one that the
// request has taken over that may be more than it names.
func (t *Waiter) Place() fencing.Waiter { return t.stood }

// Wait returns the grant, which is firm and has time left; what is left counts
// from Outcome.Asked. CodeWaitTimeout: the wait ran out; Error.Lock and Position
// show the lock as it was. CodeReplaced: another request with the lease id has
// taken over. CodeDraining: the gateway is shutting down. CodeLeaseLost: the lease
// was granted and has ended. CodeTooManyRequests: its place was lost, and as many
// wait as may. CodeUnavailable, CodeClockSkew: not known; what there was is taken
// back in the background, as it is when ctx ends. It is to be called once.
func (t *Waiter) Wait(ctx context.Context) (*fencing.Outcome, error) {
	out, err := t.wait(ctx)
	outcome := WaitedGranted
	if err != nil {
		outcome = string(fencing.CodeOf(err))
		if ctx.Err() != nil {
			outcome = WaitedLeft
		}
	}
	t.dog.observer.Waited(time.Since(t.dog.origin)-t.began, outcome)
	t.dog.observer.Waiting(-1)
	return out, err
}

func (t *Waiter) wait(ctx context.Context) (out *fencing.Outcome, err error) {
	for done := false; ; {
		grant, over, ended := t.takeDue()
		switch {
		case grant != nil:
			out, done, err = t.accept(ctx, grant)
		case ended != nil:
			return nil, t.ended(ended)
		case over && !t.dog.requests.atStore:
			return nil, t.timeout()
		case over:
			out, done, err = t.leave(ctx)
		default:
			if gone := t.idle(ctx); gone != nil {
				return nil, t.abandon(fencing.Unavailable(gone))
			}
		}
		if done {
			return out, err
		}
	}
}

// takeDue takes what there is to deal with.
func (t *Waiter) takeDue() (grant *granted, over bool, err error) {
	l := &t.dog.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	grant, t.grant = t.grant, nil
	t.busy = grant != nil || t.err == nil && t.timedOut
	return grant, t.timedOut, t.err
}

// accept delivers a grant; a provisional one is confirmed first, and an old one asked for
// again. It reports whether that was the end of the wait.
func (t *Waiter) accept(ctx context.Context, n *granted) (_ *fencing.Outcome, done bool, err error) {
	out := &fencing.Outcome{Now: n.now, Holder: n.holder, Fresh: true, Asked: n.asked}
	if n.holder.Provisional && t.ask.Set == "" {
		patience := time.Now().Add(callTimeout)
		if patience.Before(t.deadline) {
			patience = t.deadline
		}
		*out, err = t.dog.ConfirmGrant(ctx, t.ask, patience)
		switch {
		case err == nil:
		case fencing.CodeOf(err) == fencing.CodeReplaced:
			return nil, true, t.refused(err)
		case fencing.TakenForDead(err):
			t.waitOn()
			return nil, false, nil
		case fencing.Uncertain(err), fencing.CodeOf(err) == fencing.CodeDraining, fencing.AsError(err).Futile:
			return nil, true, t.abandonGrant(err)
		default:
			return nil, true, t.refused(err)
		}
	} else if !n.holder.Provisional && t.dog.Doubts(n.asked) && out.Remaining(time.Now()) > 0 {
		t.waitOn()
		return nil, false, nil
	}
	switch {
	case ctx.Err() != nil:
		return nil, true, t.abandonGrant(fencing.Unavailable(ctx.Err()))
	case !out.Holder.Provisional && out.Remaining(time.Now()) <= 0:
		return nil, true, t.abandonGrant(&fencing.Error{
			Code: fencing.CodeUnavailable, Detail: "the lease expired before it could be delivered; repeat the request",
		})
	}
	l := &t.dog.requests
	l.mu.Lock()
	if t.grant != nil && t.grant.holder.Token > out.Holder.Token { // this one has been taken back meanwhile
		l.mu.Unlock()
		return nil, false, nil
	}
	t.deliver(out)
	l.mu.Unlock()
	if !out.Asked.IsZero() {
		t.dog.observer.HandedOver(max(0, out.Now.Sub(n.holder.AcquiredAt)+time.Since(out.Asked)))
	}
	return out, true, nil
}

// deliver ends the request with a grant; one of an incomplete set stays known.
// The caller holds the registry's mutex.
func (t *Waiter) deliver(out *fencing.Outcome) {
	l := &t.dog.requests
	if out.Holder.Provisional {
		l.held[t.key()] = struct{}{}
		l.addMember(t.ask.Name)
	} else {
		t.dog.DueIn(out.Holder.ExpiresAt.Sub(out.Now))
	}
	t.end = ending{token: out.Holder.Token, now: out.Now}
	l.exit(t, stateDelivered)
}

// waitOn has the request wait again whose lease was taken back, for the gateway had counted
// as dead, or may have been forgotten. The next heartbeat finds that the store does not have
// its place.
func (t *Waiter) waitOn() {
	l := &t.dog.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	t.busy = false
	if t.state == stateParked && t.grant == nil {
		l.link(t, t.joinedAt)
	}
	t.dog.beatNow()
}

// leave gives up the place because the patience has ended, unless a grant came
// first.
func (t *Waiter) leave(ctx context.Context) (_ *fencing.Outcome, done bool, err error) {
	w, l := t.dog, &t.dog.requests
	call, cancel := context.WithTimeout(ctx, callTimeout)
	out, err := w.Store.Do(call, fencing.LeaveRequest{Name: t.ask.Name, Lease: t.ask.Lease, Stamp: t.ask.Stamp})
	cancel()
	switch {
	case err == nil && out.Holder.Token != 0:
		return t.accept(ctx, &granted{holder: out.Holder, now: out.Now, asked: out.Asked})
	case err != nil && !fencing.Uncertain(err):
		return nil, true, t.refused(err)
	case err != nil:
		l.mu.Lock()
		told := t.grant != nil
		l.mu.Unlock()
		if told && ctx.Err() == nil {
			return nil, false, nil
		}
		return nil, true, t.abandon(err)
	}
	refusal := &fencing.Error{
		Code: fencing.CodeWaitTimeout, Detail: "the lock was not granted within the wait time", Lock: out.Lock,
	}
	if out.Place != nil {
		refusal.Position = out.Place.Position
	}
	if out.Lock != nil {
		refusal.RetryAfter = out.Lock.RetryAfter()
	}
	l.mu.Lock()
	undo := t.grant != nil || t.mayStillBeGranted()
	l.mu.Unlock()
	if undo {
		return nil, true, t.abandon(refusal)
	}
	return nil, true, t.refused(refusal)
}

// mayStillBeGranted reports whether an attempt of its last question may still be on its way, and be
// granted what was given up. The caller holds the registry's mutex.
func (t *Waiter) mayStillBeGranted() bool {
	w := t.dog
	return (w.maxSkew > 0 || t.asked > 0) && time.Since(w.origin)-max(t.began, t.asked) < callTimeout+2*w.maxSkew
}

// ended ends the request for a reason that came from elsewhere.
func (t *Waiter) ended(err error) error {
	if e := fencing.AsError(err); e.Code == fencing.CodeDraining || e.Unanswered || e.Futile {
		return t.abandon(err)
	}
	return t.refused(err)
}

// refused ends the request without a lease; there is nothing to take back.
func (t *Waiter) refused(err error) error {
	l := &t.dog.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.state == stateParked { // else Drain has seen to it
		l.exit(t, stateGone)
	}
	return err
}

// abandon ends the request without a lease and takes back what it may have.
func (t *Waiter) abandon(err error) error {
	t.dog.withdraw(t, err)
	return err
}

// abandonGrant is abandon with a grant in hand.
func (t *Waiter) abandonGrant(err error) error {
	l := &t.dog.requests
	l.mu.Lock()
	t.grant = &granted{}
	l.mu.Unlock()
	return t.abandon(err)
}

// onTimeout notes that the patience has ended.
func (t *Waiter) onTimeout() {
	l := &t.dog.requests
	l.mu.Lock()
	t.timedOut = true
	t.signal()
	l.mu.Unlock()
}

// signal has Wait go on. The caller holds the registry's mutex.
func (t *Waiter) signal() {
	select {
	case t.wake <- struct{}{}:
	default: // told already
	}
}

// offer gives the request a grant, unless it knows of a newer one or of this one
// confirmed, and reports whether it took it. The caller holds the registry's mutex.
func (t *Waiter) offer(n *granted) bool {
	if g := t.grant; g != nil {
		if g.holder.Token > n.holder.Token || g.holder.Token == n.holder.Token && !g.holder.Provisional {
			return false
		}
	}
	fresh := t.grant == nil && !t.busy
	t.grant = n
	t.dog.requests.unlink(t)
	t.signal()
	return fresh
}

// withdraw ends a request with err and takes back what it may have: place or grant.
func (w *Watchdog) withdraw(t *Waiter, err error) {
	l := &w.requests
	l.mu.Lock()
	if t.state >= stateDelivered {
		l.mu.Unlock()
		return
	}
	hadGrant := t.grant != nil
	l.exit(t, stateGone)
	nothing := !l.atStore && !hadGrant && !t.unsure
	l.mu.Unlock()
	if hadGrant {
		w.observer.TakenBack()
	}
	if nothing {
		return
	}
	w.takeBack(takeBackOf(&t.ask), err, hadGrant)
}

// takeBackOf takes back what a request has got.
func takeBackOf(r *fencing.AcquireRequest) fencing.TakeBackRequest {
	return fencing.TakeBackRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp}
}
