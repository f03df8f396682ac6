package watchdog

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

const (
	// maxTakeBackCalls is how many take-backs ask the store at once.
	maxTakeBackCalls = 1024

	// maxTakeBacks is how many take-backs are known, at about 300 bytes each. Beyond it a
	// grant is left to its TTL, and what is provisional or a place to the next heartbeat.
	// docs/reference.md tells operators. A queue in this process has no such bound: its
	// heartbeats tell nothing, what is to be taken back is in the same memory, and
	// there is always an answer.
	maxTakeBacks = 1 << 16

	// takeBackPause is how long a take-back rests that the store has not answered.
	takeBackPause = 250 * time.Millisecond

	// stopPatience is how long Stop begins last attempts: a store that is out of
	// reach must not keep the process for minutes.
	stopPatience = 10 * time.Second
)

// takeBack is what a request may have got, a grant or a place, that its client was not
// told of. It is known until the store has answered. The watchdog's mutex guards it.
type takeBack struct {
	fencing.TakeBackRequest
	due        time.Time // the next attempt
	calls      int       // attempts under way
	askedAgain bool      // it was asked for again: attempts under way may have come before what it is to undo
	final      bool      // no repeat after the skew guard's span is to come: the next answer ends it
	counted    bool      // as a grant whose request had gone
}

// TakeBackLater undoes what a request has got, a grant or a place in the queue, in
// the background: it is tried until the store has answered, and once more after
// the skew guard's span, for the acquire it is to undo may still be on its way. It
// returns at once. What can't be taken back because there is too much ends with its TTL or,
// while it is provisional or a place, when a heartbeat tells of it or this gateway counts
// as dead.
func (w *Watchdog) TakeBackLater(r fencing.TakeBackRequest) { w.undo(r, false, false) }

// TakeBackNow is TakeBackLater that returns once the store has answered, or can't be asked.
func (w *Watchdog) TakeBackNow(r fencing.TakeBackRequest) { w.undo(r, true, r.Refused) }

// takeBack undoes what a request may have got that was refused with err, if any. If
// that is because too few replicas have it, the store has answered, once, when it
// returns, or can't be asked: a client that is told so finds nothing left that it could
// renew, nor has a renewal that crossed its acquire kept it.
func (w *Watchdog) takeBack(r fencing.TakeBackRequest, err error, counted bool) {
	r.Refused = fencing.NotReplicated(err)
	w.undo(r, r.Refused, counted)
}

// takeBackUnknown takes back what the store has for a request that is not known here.
func (w *Watchdog) takeBackUnknown(e *fencing.Entry) {
	if w.takeBackAgain(key{e.Name, e.Stamp}, e.Provisional) {
		return
	}
	if e.Provisional {
		w.observer.TakenBack()
	}
	w.undo(fencing.TakeBackRequest{
		Name: e.Name, Lease: fencing.HashedLeaseID(e.Lease, fencing.SecretHash{}), Stamp: e.Stamp, Unknown: true,
	}, false, e.Provisional)
}

// takeBackAgain begins anew what is being taken back, for the store has just had something
// of it, and reports whether it was.
func (w *Watchdog) takeBackAgain(k key, isGrant bool) bool {
	w.mu.Lock()
	t := w.takeBacks[k]
	if t == nil {
		w.mu.Unlock()
		return false
	}
	r, counts := t.TakeBackRequest, isGrant && !t.counted
	t.counted = t.counted || isGrant
	w.mu.Unlock()
	if counts {
		w.observer.TakenBack()
	}
	w.TakeBackLater(r)
	return true
}

// undo has a take-back known, and makes its first attempt; with wait it returns when that
// is done.
func (w *Watchdog) undo(r fencing.TakeBackRequest, wait, counted bool) {
	w.mu.Lock()
	k := key{r.Name, r.Stamp}
	t := w.takeBacks[k]
	switch {
	case w.stopped:
		w.logAbandoned(&r, "shutting down", nil)
		w.mu.Unlock()
		return
	case t == nil && len(w.takeBacks) >= maxTakeBacks && (w.requests.reconciles || !w.requests.atStore): // one attempt, perhaps
		if !r.Unknown {
			w.logAbandoned(&r, "too many at once", nil)
		}
		t = &takeBack{TakeBackRequest: r}
	case t == nil:
		t = &takeBack{TakeBackRequest: r}
		w.takeBacks[k] = t
		if !w.takingBack {
			w.takingBack = true
			w.work.Go(w.retryTakeBacks)
		}
	case !r.Unknown:
		r.Refused = r.Refused || t.Refused
		if t.Left {
			r.Left, r.Linger, r.Epoch = true, t.Linger, max(r.Epoch, t.Epoch)
		}
		t.TakeBackRequest = r
	}
	t.due, t.askedAgain, t.counted = time.Now(), t.calls > 0, t.counted || counted
	t.final = t.Unknown || w.maxSkew == 0
	if wait {
		done := make(chan struct{})
		t.calls++
		w.work.Go(func() {
			defer close(done)
			w.calls <- struct{}{} // a call ends after callTimeout at the latest
			w.attempt(k, t)
		})
		w.mu.Unlock()
		<-done
		return
	}
	defer w.mu.Unlock()
	if t.calls > 0 {
		return
	}
	select {
	case w.calls <- struct{}{}:
		t.calls++
		w.work.Go(func() { w.attempt(k, t) })
	default: // retryTakeBacks comes to it
	}
}

// attempt asks the store once, and gives back its place among the calls.
func (w *Watchdog) attempt(k key, t *takeBack) {
	w.mu.Lock()
	r, last := t.TakeBackRequest, w.stopped
	late := last && time.Now().After(w.stopBy)
	w.mu.Unlock()
	var err error
	if !late {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		_, err = w.Store.Do(ctx, r)
		cancel()
		if err == nil {
			w.freed(r.Name)
		}
	}
	<-w.calls

	w.mu.Lock()
	defer w.mu.Unlock()
	t.calls--
	now := time.Now()
	switch {
	case last && (late || err != nil):
		w.logAbandoned(&r, "shutting down", err)
		w.forget(k, t)
	case err != nil:
		t.due = now.Add(takeBackPause)
	case t.askedAgain:
		t.askedAgain, t.due = false, now
	case !t.final && !last:
		// The guard lets a command through while it is within the skew of the
		// store's clock. If the gateway's is ahead by the skew, that is for twice
		// the skew after it was sent.
		t.final, t.due = true, now.Add(2*w.maxSkew)
	case t.calls == 0:
		w.forget(k, t)
	}
}

// forget forgets a take-back, but not another one of the same request that became known while
// there was no room for this one. The caller holds mu.
func (w *Watchdog) forget(k key, t *takeBack) {
	if w.takeBacks[k] == t {
		delete(w.takeBacks, k)
	}
}

// retryTakeBacks makes the attempts that are due, all at once when the watchdog is stopped,
// until there are no take-backs.
func (w *Watchdog) retryTakeBacks() {
	tick, stop := time.NewTicker(takeBackPause/2), w.stop
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-stop:
			stop = nil // the attempts under way are waited for
		}
		w.mu.Lock()
		if len(w.takeBacks) == 0 {
			w.takingBack = false
			w.mu.Unlock()
			return
		}
		due, now := map[key]*takeBack{}, time.Now()
		for k, t := range w.takeBacks {
			if t.calls == 0 && (w.stopped || !t.due.After(now)) {
				t.calls++
				due[k] = t
			}
		}
		w.mu.Unlock()
		for k, t := range due {
			w.calls <- struct{}{} // a call ends after callTimeout at the latest
			w.work.Go(func() { w.attempt(k, t) })
		}
	}
}

// logAbandoned logs that a take-back is given up. The caller holds mu.
func (w *Watchdog) logAbandoned(r *fencing.TakeBackRequest, why string, err error) {
	attrs := []any{"why", why, "lease", r.Lease}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	w.log.Warn("an undelivered grant or place could not be taken back; it expires with its TTL", attrs...)
}
