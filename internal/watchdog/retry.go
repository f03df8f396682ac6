package watchdog

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// A store without a queue (fencing.Capabilities) refuses whoever can't be granted now. So
// those who wait stand here, in order of arrival, and the first of each name asks again,
// at random moments: gateways are not to meet each other time and again.

const (
	// minRetry and maxRetry bound the pause before the next question about a name, which
	// lasts half as long to one and a half times as long. It grows while the answer stays
	// the same, and begins anew when a lease of the name has ended here.
	minRetry = 50 * time.Millisecond
	maxRetry = time.Second

	// maxAsking is how many names are asked about again at once.
	maxAsking = 64
)

// retries is what is known for the next question about a name.
type retries struct {
	lock  *fencing.Lock // as the last answer showed it; nil if none did
	pause time.Duration
	due   time.Time
}

// later puts the next question off.
func (r *retries) later(pause time.Duration) {
	r.pause, r.due = pause, time.Now().Add(pause/2+rand.N(pause+1))
}

// refused puts the next question off by what a refusal says.
func (r *retries) refused(err *fencing.Error) {
	if err.Lock != nil {
		r.lock = err.Lock
	}
	pause := min(max(r.pause, minRetry)*3/2, maxRetry)
	if left := err.RetryAfter; err.Code == fencing.CodeLocked && left > 0 {
		pause = min(pause, max(left, minRetry))
	}
	r.later(pause)
}

// retried reports whether waiting may help against a refusal.
func retried(err error) bool {
	code := fencing.CodeOf(err)
	return code == fencing.CodeLocked || code == fencing.CodeQuarantined
}

// ask asks a store without a queue.
func (w *Watchdog) ask(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	out, err := w.Store.Do(ctx, r)
	if err != nil {
		w.requests.show(fencing.AsError(err).Lock, false)
	}
	return out, err
}

// askOnce asks a store for a request that does not wait. It does not overtake those who do:
// if they wait here, it gets what it has already.
func (w *Watchdog) askOnce(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	l := &w.requests
	if l.atStore {
		return w.Store.Do(ctx, r)
	}
	l.mu.Lock()
	_, refusal := l.replace(&r)
	n := l.queues[r.Name]
	r.Behind = n != nil && n.parked > 0
	l.mu.Unlock()
	if refusal != nil {
		return fencing.Outcome{Err: refusal}.Result()
	}
	return w.ask(ctx, r)
}

// askFirst is ask for a request that has just come, and may wait: then its outcome is that
// of a store with a queue.
func (w *Watchdog) askFirst(ctx context.Context, r *fencing.AcquireRequest) (fencing.Outcome, error) {
	l, now := &w.requests, fencing.InstantOf(time.Now())
	l.mu.Lock()
	place, refusal := l.replace(r)
	n, ask := l.queues[r.Name], *r
	ask.Behind = n.parked > 0
	l.mu.Unlock()
	joined := place == nil && refusal == nil
	if joined {
		out, err := w.ask(ctx, ask)
		if err == nil || !retried(err) {
			return out, err
		}
		place, refusal = l.arrive(n, r, fencing.AsError(err), now)
	}
	if refusal != nil {
		return fencing.Outcome{Err: refusal}.Result()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return fencing.Outcome{Now: now, Place: place, Lock: l.view(r.Name, now), Joined: joined}, nil
}

// arrive notes what the first answer to a request has shown, and returns the place that
// it has from then on, if it may wait.
func (l *registry) arrive(n *queue, r *fencing.AcquireRequest, answer *fencing.Error, now fencing.Instant) (*fencing.Waiter, *fencing.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.parked == 0 {
		n.retries = retries{}
		n.refused(answer)
	} else if answer.Lock != nil {
		n.lock = answer.Lock
	}
	if r.MaxWaiters > 0 && n.parked >= r.MaxWaiters {
		return nil, fencing.LockedError(fencing.CodeTooManyRequests, l.view(r.Name, now))
	}
	return &fencing.Waiter{Lease: r.Lease.Public(), Owner: r.Owner, Mode: cmp.Or(r.Mode, fencing.ModeExclusive), Permits: max(1, r.Permits), Position: n.parked + 1}, nil
}

// replace has a request take the place of an older one with the same lease id, which it
// returns; nil if there is none. It asks for what the older one did; if it contradicts
// that, it is refused. The caller holds mu.
func (l *registry) replace(r *fencing.AcquireRequest) (*fencing.Waiter, *fencing.Error) {
	older := l.places[leaseOn{r.Name, r.Lease.Public()}]
	if older == nil || !older.ask.Lease.Hash().Equal(r.Lease.Hash()) {
		return nil, nil
	}
	place := older.place(fencing.InstantOf(time.Now()))
	if err := r.Contradicts(place.Mode, older.ask.Limit, place.Permits, older.ask.Owner); err != nil {
		return nil, err
	}
	ask := older.ask
	ask.Stamp, ask.Attach, ask.Wait, ask.Keep = r.Stamp, r.Attach, r.Wait, r.Keep
	*r = ask
	l.unlink(older)
	older.err = fencing.ReplacedError()
	older.signal()
	return &place, nil
}

// place is the public view of a parked request.
func (t *Waiter) place(now fencing.Instant) fencing.Waiter {
	position := 1
	for before := t.prev; before != nil; before = before.prev {
		position++
	}
	return fencing.Waiter{
		Lease: t.ask.Lease.Public(), Owner: t.ask.Owner, Mode: cmp.Or(t.ask.Mode, fencing.ModeExclusive), Permits: max(1, t.ask.Permits),
		Position: position, Waiting: now.Sub(t.joinedAt),
	}
}

// idle waits until there is something to look at, or it is the request's turn to ask
// again, which it then does. It fails if ctx ends first.
func (t *Waiter) idle(ctx context.Context) error {
	var turn <-chan time.Time
	if due, first := t.turn(); first {
		timer := time.NewTimer(time.Until(due))
		defer timer.Stop()
		turn = timer.C
	}
	select {
	case <-t.wake:
	case <-turn:
		return t.askAgain(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// turn returns when the request is to ask again, if it is for this one to do so.
func (t *Waiter) turn() (due time.Time, first bool) {
	l := &t.dog.requests
	if l.atStore {
		return due, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.queues[t.ask.Name]
	if n == nil || n.first != t {
		return due, false
	}
	return n.due, true
}

// askAgain asks for the first request of a name.
func (t *Waiter) askAgain(ctx context.Context) error {
	w, l := t.dog, &t.dog.requests
	select {
	case w.asking <- struct{}{}: // a question ends after callTimeout at the latest
		defer func() { <-w.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	n := l.queues[t.ask.Name]
	if !t.linked || n.first != t || t.timedOut || t.err != nil {
		l.mu.Unlock()
		return nil
	}
	t.busy = true
	ask := t.ask
	ask.Intent = 2 * min(2*n.pause, maxRetry) // until it asks again
	l.mu.Unlock()

	call, cancel := context.WithTimeout(ctx, callTimeout)
	out, err := w.Store.Do(call, ask)
	cancel()

	l.mu.Lock()
	defer l.mu.Unlock()
	t.busy = false
	t.unsure = t.unsure || err != nil && fencing.Unsettled(err)
	switch {
	case err == nil:
		n.lock = &fencing.Lock{Name: ask.Name, Holders: []fencing.Holder{out.Holder}, HolderCount: 1, LastToken: out.Holder.Token}
		n.later(minRetry)
		if out.Holder.Mode == fencing.ModeShared { // whoever is next may fit as well
			n.due = time.Now()
		}
		out.Holder.Waited = fencing.InstantOf(time.Now()).Sub(t.joinedAt)
		t.offer(&granted{holder: out.Holder, now: out.Now, asked: out.Asked})
	case retried(err), fencing.Uncertain(err):
		n.refused(fencing.AsError(err))
	case t.err == nil: // it can't be had by waiting
		t.err = err
	}
	return nil
}

// timeout ends a request at a store without a queue whose patience has ended.
func (t *Waiter) timeout() error {
	l := &t.dog.requests
	now := fencing.InstantOf(time.Now())
	l.mu.Lock()
	refusal := &fencing.Error{
		Code: fencing.CodeWaitTimeout, Detail: "the lock was not granted within the wait time",
		Position: t.place(now).Position, Lock: l.view(t.ask.Name, now),
	}
	refusal.RetryAfter = refusal.Lock.RetryAfter()
	unsure := t.unsure
	l.mu.Unlock()
	if unsure {
		return t.abandon(refusal)
	}
	return t.refused(refusal)
}

// freed has the first request of a name ask at once: a lease has ended.
func (w *Watchdog) freed(name fencing.Name) {
	l := &w.requests
	if l.atStore {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.queues[name]; n != nil && n.first != nil {
		n.pause, n.due = minRetry, time.Now()
		n.first.signal()
	}
}

// view is the lock of a name as it was seen last, with those who wait here. The caller
// holds mu.
func (l *registry) view(name fencing.Name, now fencing.Instant) *fencing.Lock {
	lock := &fencing.Lock{Name: name, Now: now}
	n := l.queues[name]
	if n == nil {
		return lock
	}
	if n.lock != nil {
		*lock = *n.lock
		lock.Now = now
		lock.Holders = slices.DeleteFunc(slices.Clone(lock.Holders), func(h fencing.Holder) bool { return !h.Live(now) })
		lock.HolderCount -= len(n.lock.Holders) - len(lock.Holders)
	}
	lock.Waiting = n.parked
	return lock
}

// show puts how many wait here into the view of a store without a queue, and who they are
// with waiters; nil is none.
func (l *registry) show(lock *fencing.Lock, waiters bool) {
	if lock == nil || l.atStore {
		return
	}
	now := fencing.InstantOf(time.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.queues[lock.Name]
	if n == nil {
		return
	}
	lock.Waiting = n.parked
	for t := n.first; waiters && t != nil && len(lock.Waiters) < fencing.MaxWaitersShown; t = t.next {
		lock.Waiters = append(lock.Waiters, t.place(now))
	}
}
