package watchdog

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

// Join asks for a lease, as the store's Do does, and comes back with a Waiter if
// the request has to wait. CodeDraining: the gateway is shutting down, so nobody
// joins a queue. CodeTooManyRequests: as many wait as may, on the name or in this
// process.
//
// A request with a Wait whose outcome is not known (CodeUnavailable and the like)
// is taken back in the background, place or grant; one without is left to the
// caller. CodeNotReplicated: it has been taken back, unless the store can't be asked.
//
// With Set the name is one of several, and its grant is provisional: it stays known here, and
// hangs on the heartbeat, until Settle.
func (w *Watchdog) Join(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, *Waiter, error) {
	switch {
	case r.Wait <= 0 && r.Set != "":
		out, err := w.acquireHeld(ctx, r)
		return out, nil, err
	case r.Wait <= 0:
		out, err := w.askOnce(ctx, r)
		switch {
		case err == nil:
			w.DueIn(out.Holder.ExpiresAt.Sub(out.Now))
		case fencing.NotReplicated(err):
			w.takeBack(takeBackOf(&r), err, true)
		}
		return out, nil, err
	}
	return w.join(ctx, r, time.Now().Add(r.Wait))
}

func (w *Watchdog) join(ctx context.Context, r fencing.AcquireRequest, deadline time.Time) (out fencing.Outcome, t *Waiter, err error) {
	w.listen()
	t = &Waiter{dog: w, ask: r, deadline: deadline, wake: make(chan struct{}, 1), unsure: true}
	l := &w.requests
	l.mu.Lock()
	switch {
	case l.draining:
		l.mu.Unlock()
		w.observer.Dropped(DroppedDraining)
		return fencing.Outcome{}, nil, fencing.DrainingError()
	case w.maxWaiters > 0 && len(l.waiters) >= w.maxWaiters:
		l.mu.Unlock()
		return w.joinNot(ctx, r)
	}
	l.enter(t) // before the store knows: a message may overtake its answer
	if l.atStore {
		w.beat()
	}
	l.mu.Unlock()

	answered := false
	defer func() {
		if !answered { // a panic
			w.withdraw(t, nil)
		}
	}()
	if l.atStore {
		out, err = w.Store.Do(ctx, r)
	} else {
		out, err = w.askFirst(ctx, &t.ask)
	}
	answered = true
	return t.joined(out, err)
}

// joinNot asks for a lease that can be had at once: there is no room to wait.
func (w *Watchdog) joinNot(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, *Waiter, error) {
	r.Wait = 0
	var out fencing.Outcome
	var err error
	if r.Set != "" {
		out, err = w.acquireHeld(ctx, r)
	} else if out, _, err = w.Join(ctx, r); err != nil && fencing.Unsettled(err) && !fencing.NotReplicated(err) {
		w.TakeBackLater(takeBackOf(&r))
	}
	if e := fencing.AsError(err); e != nil && e.Code == fencing.CodeLocked {
		w.observer.Dropped(DroppedProcessFull)
		err = &fencing.Error{
			Code: fencing.CodeTooManyRequests, Detail: "this gateway has as many waiting requests as it allows (FENCEPOST_MAX_WAITERS)",
			Lock: e.Lock, RetryAfter: max(e.RetryAfter, time.Second),
		}
	}
	return out, nil, err
}

// joined deals with the store's answer to the first Acquire.
func (t *Waiter) joined(out fencing.Outcome, err error) (fencing.Outcome, *Waiter, error) {
	w, l := t.dog, &t.dog.requests
	if t.unsure = err != nil && fencing.Unsettled(err); err != nil {
		if t.unsure {
			w.withdraw(t, err)
		} else {
			l.mu.Lock()
			l.exit(t, stateGone)
			l.mu.Unlock()
		}
		if fencing.CodeOf(err) == fencing.CodeTooManyRequests {
			w.observer.Dropped(DroppedNameFull)
		}
		return out, nil, err
	}
	l.mu.Lock()
	if !out.Waits() && (t.grant == nil || t.grant.holder.Token <= out.Holder.Token) {
		if !out.Holder.Provisional || t.ask.Set != "" {
			t.deliver(&out)
			l.mu.Unlock()
			return out, nil, nil
		}
		t.grant = &granted{holder: out.Holder, now: out.Now} // to be confirmed at the end of a quarantine
	}
	if l.draining && t.grant == nil {
		l.mu.Unlock()
		w.withdraw(t, nil)
		w.observer.Dropped(DroppedDraining)
		return out, nil, fencing.DrainingError()
	}
	t.park(&out)
	if t.asks && t.linked {
		w.askNow(t)
	}
	l.mu.Unlock()
	w.observer.Waiting(1)
	if out.Lock != nil {
		for _, next := range []time.Duration{out.Lock.NextExpiry(), out.Lock.Delayed()} {
			if next > 0 {
				w.DueIn(next)
			}
		}
	}
	return out, t, nil
}
