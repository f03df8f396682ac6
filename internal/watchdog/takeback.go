package watchdog

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// maxTakeBackCalls is how many take-backs ask the store at once.
	maxTakeBackCalls = 1024

	// namesAtOnce is for how many names of a set one of them asks at once.
	namesAtOnce = 16

	// maxTakeBacks is how many take-backs wait for their next attempt, at about
	// 200 bytes each; a set is one. Beyond it a grant is left to its TTL, a place to
	// its hand-off, and a provisional lease to the heartbeat that tells of it.
	// docs/operations.md tells operators.
	maxTakeBacks = 1 << 16

	// takeBackPatience is how long a store that can't be reached is asked again: a
	// place that is left behind would be handed the lock when the store is back.
	takeBackPatience = time.Hour

	// stopPatience is how long Stop begins last attempts: a store that is out of
	// reach must not keep the process for minutes.
	stopPatience = 10 * time.Second
)

// takeBack is what a request has got, grants or places, on its way back.
type takeBack struct {
	fencing.TakeBackRequest                // on Name, or if there are any on names
	names                   []fencing.Name // of a set
	done                    int            // how many of them this attempt's predecessors have dealt with
	second                  bool           // the store has answered the first attempt
	last                    bool           // shutting down: no attempt follows
	due                     time.Time
	giveUp                  time.Time
	backoff                 time.Duration
}

// TakeBackLater undoes what a request has got, a grant or a place in the queue, in
// the background: it is tried until the store has answered, and once more after
// the skew guard's span, for the acquire it is to undo may still be on its way. It
// returns at once. What can't be taken back (store out of reach for an hour, too
// many at once) ends with its TTL or, while it is provisional or a place, once
// this gateway is told of it again or counts as dead.
func (w *Watchdog) TakeBackLater(r fencing.TakeBackRequest) {
	w.takeBackLater(&takeBack{TakeBackRequest: r})
}

// TakeBackAll is TakeBackLater for what a request has got on several names.
func (w *Watchdog) TakeBackAll(names []fencing.Name, lease fencing.LeaseID, stamp fencing.Stamp) {
	w.takeBackLater(&takeBack{TakeBackRequest: fencing.TakeBackRequest{Lease: lease, Stamp: stamp}, names: names})
}

func (w *Watchdog) takeBackLater(t *takeBack) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		w.leave(t, "shutting down", nil)
		return
	}
	t.restart(time.Now())
	select {
	case w.calls <- struct{}{}:
		w.work.Go(func() { w.attempt(t) })
	default:
		w.later(t)
	}
}

// takeBackFor returns what undoes a request.
func takeBackFor(r *fencing.AcquireRequest) *takeBack {
	return &takeBack{TakeBackRequest: takeBackOf(r)}
}

// takeBack undoes what a request may have got that was refused with err, if any. If
// that is because too few replicas have it, the store has answered, once, when it
// returns, or can't be asked: a client that is told so finds nothing left that it could
// renew, nor has a renewal that crossed its acquire kept it.
func (w *Watchdog) takeBack(t *takeBack, err error) {
	if !unreplicated(err) {
		w.takeBackLater(t)
		return
	}
	w.mu.Lock()
	if w.stopped {
		w.leave(t, "shutting down", nil)
		w.mu.Unlock()
		return
	}
	t.Refused = true
	t.restart(time.Now())
	done := make(chan struct{})
	w.work.Go(func() {
		defer close(done)
		w.calls <- struct{}{} // a call ends after callTimeout at the latest
		w.attempt(t)
	})
	w.mu.Unlock()
	<-done
}

// restart makes t due at the given time, with all its patience.
func (t *takeBack) restart(due time.Time) {
	t.due, t.giveUp, t.backoff = due, due.Add(takeBackPatience), minBackoff
}

// attempt asks the store once, and gives back its place among the calls before
// anything is waited for.
func (w *Watchdog) attempt(t *takeBack) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	err := w.askBack(ctx, t)
	cancel()
	<-w.calls

	if err == nil && (t.second || t.last || w.maxSkew == 0) {
		names := t.names
		if names == nil {
			names = []fencing.Name{t.Name}
		}
		w.lot.returned(names, t.Stamp)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		// The guard lets a command through while it is within the skew of the
		// store's clock. If the gateway's is ahead by the skew, that is for twice
		// the skew after it was sent.
		t.second, t.done = true, 0
		t.restart(now.Add(2 * w.maxSkew))
		w.later(t)
	case t.last || now.After(t.giveUp):
		w.leave(t, "the store could not be asked", err)
	default:
		t.due, t.backoff = now.Add(t.backoff), min(2*t.backoff, maxBackoff)
		w.later(t)
	}
}

// askBack asks the store for each name that no attempt before has dealt with, for
// namesAtOnce of them at a time: where replicas are waited for in vain, each takes long.
func (w *Watchdog) askBack(ctx context.Context, t *takeBack) error {
	if t.names == nil {
		_, err := w.Store.TakeBack(ctx, t.TakeBackRequest)
		if err == nil {
			w.freed(t.Name)
		}
		return err
	}
	for t.done < len(t.names) {
		names := t.names[t.done:min(t.done+namesAtOnce, len(t.names))]
		errs := make([]error, len(names))
		var calls sync.WaitGroup
		for i, name := range names {
			calls.Go(func() {
				r := t.TakeBackRequest
				r.Name = name
				_, errs[i] = w.Store.TakeBack(ctx, r)
			})
		}
		calls.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		t.done += len(names)
	}
	return nil
}

// later puts t on the list of what is due some time. The caller holds mu and, if
// the watchdog is stopped, a place in work.
func (w *Watchdog) later(t *takeBack) {
	if len(w.pending) >= maxTakeBacks {
		w.leave(t, "too many at once", nil)
		return
	}
	heap.Push(&w.pending, t)
	if !w.dispatching {
		w.dispatching = true
		w.work.Go(w.dispatch)
		return
	}
	if w.pending[0] == t {
		select {
		case w.earlier <- struct{}{}:
		default:
		}
	}
}

// dispatch makes the attempts of the list when they are due, or at once when the
// watchdog is stopped, until the list is empty.
func (w *Watchdog) dispatch() {
	for {
		t, wait := w.nextDue()
		switch {
		case t != nil:
			w.calls <- struct{}{} // a call ends after callTimeout at the latest
			w.work.Go(func() { w.attempt(t) })
		case wait == 0:
			return
		default:
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-w.earlier:
			case <-w.stop:
			}
			timer.Stop()
		}
	}
}

// nextDue takes the next attempt off the list if it is due, or says how long
// until then; neither if the list is empty.
func (w *Watchdog) nextDue() (t *takeBack, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.stopped && now.After(w.stopBy) {
		for _, t := range w.pending {
			w.leave(t, "shutting down", nil)
		}
		w.pending = nil
	}
	if len(w.pending) == 0 {
		w.dispatching = false
		return nil, 0
	}
	if wait := w.pending[0].due.Sub(now); wait > 0 && !w.stopped {
		return nil, wait
	}
	t = heap.Pop(&w.pending).(*takeBack)
	t.last = w.stopped
	return t, 0
}

// leave logs that a take-back is given up.
func (w *Watchdog) leave(t *takeBack, why string, err error) {
	what := "a grant or place that could not be delivered is left to its TTL"
	if t.second {
		what = "a grant or place was taken back, but not again for a late acquire: should there be one, it is left to its TTL"
	}
	attrs := []any{"why", why, "lease", t.Lease}
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	w.log.Warn(what, attrs...)
}

// takeBacks is a heap of what is due first.
type takeBacks []*takeBack

func (l takeBacks) Len() int           { return len(l) }
func (l takeBacks) Less(i, j int) bool { return l[i].due.Before(l[j].due) }
func (l takeBacks) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *takeBacks) Push(t any)        { *l = append(*l, t.(*takeBack)) }
func (l *takeBacks) Pop() any {
	last := len(*l) - 1
	t := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return t
}
