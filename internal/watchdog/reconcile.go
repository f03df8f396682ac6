package watchdog

import (
	"cmp"
	"context"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// The whole of recovery: a heartbeat tells what the store has for this gateway, and what is
// there and not here is taken back, what is here and not there asks again. So it does not
// matter which message or answer was lost, nor what the store has forgotten.

const (
	// maxAskers is for how many names requests that are missing ask again at once, and
	// besides, how many do that have a lease which they have not heard of.
	maxAskers = 32

	// maxMissing is how many requests of a name are found missing at a time: the next
	// heartbeat finds the others.
	maxMissing = 1 << 12
)

// listener is the watchdog as its store sees it.
type listener struct{ *Watchdog }

var _ fencing.Listener = listener{}

// listen tells the store who hears of this gateway's waiters, once.
func (w *Watchdog) listen() {
	w.listening.Do(func() { w.Store.Listen(listener{w}) })
}

// Granted hands a grant to the request it is for. If that has gone, the grant is taken
// back: a provisional one that nobody here knows of by the heartbeat that tells of it,
// unless it was confirmed by then.
func (l listener) Granted(g fencing.Grant, now fencing.Instant, asked time.Time) {
	w, r, k := l.Watchdog, &l.requests, key{g.Name, g.Stamp}
	n := &granted{holder: g.Holder, now: now}
	if !g.Holder.Provisional {
		n.asked = asked
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.waiters[k]; t != nil {
		t.offer(n)
		return
	}
	if _, held := r.held[k]; held || w.takeBackAgain(k, true) || !g.Holder.Provisional || r.draining {
		return
	}
	w.beat()
	r.linger(g.Name)
}

// Replaced has a request that waits ask whether another one has its lease id, for the message may be late: the store may
// have carried out its question again since. It tells who keeps leases alive.
func (l listener) Replaced(name fencing.Name, stamp fencing.Stamp) {
	l.Ask(name, stamp)
	l.keeper().Replaced(name, stamp)
}

// Ask has a request that waits ask again. One that has not heard yet that it waits does so
// when it has.
func (l listener) Ask(name fencing.Name, stamp fencing.Stamp) {
	r := &l.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	switch t := r.waiters[key{name, stamp}]; {
	case t == nil, !r.atStore: // there those who wait are known here alone
	case t.state == stateJoining:
		t.asks = true
	case t.linked && !t.missing:
		l.askNow(t)
	}
}

// askNow has a parked request ask again. The caller holds the registry's mutex.
func (w *Watchdog) askNow(t *Waiter) {
	w.requests.addMissing(t.queue, t)
	w.goOnAsking()
}

// Gap has a heartbeat made at once.
func (l listener) Gap() { l.beatNow() }

// Has compares what the store has with what is known here, and acts on the difference in
// goroutines of its own.
func (l listener) Has(names []fencing.Name, since time.Time, entries []fencing.Entry) {
	w := l.Watchdog
	unknown := w.compare(names, since, entries)
	for i := range unknown {
		w.takeBackUnknown(&unknown[i])
	}
	w.keeper().Has(names, since, slices.DeleteFunc(entries, func(e fencing.Entry) bool { return !e.Attached }))
}

// compare notes what the store has, has those who are missing asked for, and returns what
// is not known here. It takes as long as there are entries, names and missing ones.
func (w *Watchdog) compare(names []fencing.Name, since time.Time, entries []fencing.Entry) (unknown []fencing.Entry) {
	r := &w.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range entries {
		if e := &entries[i]; !e.Attached && !r.knows(e) {
			unknown = append(unknown, *e)
			r.linger(e.Name) // in case it can't be taken back
		}
	}
	for _, name := range names {
		if left, ok := r.lingering[name]; ok && left.Before(since) {
			delete(r.lingering, name)
		}
		if n := r.queues[name]; n != nil && r.reconciles { // else nobody but this process knows of them
			r.addMissing(n, n.missingSince(since.Sub(w.origin))...)
		}
	}
	w.goOnAsking()
	for n := len(r.lostGrants); n > 0 && r.lostGrantAskers < maxAskers && !r.draining; n-- {
		r.lostGrantAskers++
		w.work.Go(w.askLostGrants)
	}
	return unknown
}

// goOnAsking has those who are missing asked for. The caller holds the registry's mutex.
func (w *Watchdog) goOnAsking() {
	r := &w.requests
	for n := len(r.missing); n > 0 && r.askers < maxAskers && !r.draining; n-- {
		r.askers++
		w.work.Go(w.askMissing)
	}
}

// knows reports whether an entry belongs to a request that is known here, and notes that
// the store has its place. One with a lease that it has not heard of asks for it, and does
// not wait for those who are missing: the lock is with nobody meanwhile. The caller holds mu.
func (l *registry) knows(e *fencing.Entry) bool {
	k := key{e.Name, e.Stamp}
	t := l.waiters[k]
	switch {
	case t == nil:
		_, held := l.held[k]
		return held
	case !t.linked:
	case e.Provisional:
		if !t.lostGrant {
			t.lostGrant = true
			l.lostGrants = append(l.lostGrants, t)
		}
	default:
		l.link(t, t.joinedAt)
	}
	return true
}

// missingSince returns the requests in a queue whose places the store has not told of since an
// instant, in order of arrival. The caller holds the registry's mutex.
func (n *queue) missingSince(since time.Duration) (all []*Waiter) {
	for t := n.first; t != nil && t.known < since && len(n.missing)+len(all) < maxMissing; t = t.next {
		if !t.missing && !t.lostGrant {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(a, b *Waiter) int { return cmp.Compare(a.joinedAt, b.joinedAt) })
	return all
}

// addMissing has requests of a queue ask again. The caller holds mu.
func (l *registry) addMissing(n *queue, all ...*Waiter) {
	for _, t := range all {
		t.missing = true
	}
	if n.missing = append(n.missing, all...); len(n.missing) > 0 && !n.asking {
		n.asking = true
		l.missing = append(l.missing, n)
	}
}

// next takes the next request of a queue that is still missing, nil if there is none. The
// caller holds the registry's mutex.
func (n *queue) next() *Waiter {
	for len(n.missing) > 0 {
		t := n.missing[0]
		n.missing = n.missing[1:]
		missing := t.missing && t.linked && !t.busy && t.err == nil // one that was replaced must not take over again
		if t.missing = false; missing {
			return t
		}
	}
	return nil
}

// askMissing has the requests that the store does not have ask again, those of a name one
// after the other, until none is left or the store can't be asked: then a later heartbeat
// finds the rest.
func (w *Watchdog) askMissing() {
	l := &w.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.missing) > 0 && !l.draining {
		n := l.missing[0]
		l.missing = l.missing[1:]
		for t, can := n.next(), true; t != nil && !l.draining; t = n.next() {
			if can {
				l.mu.Unlock()
				can = w.again(t)
				l.mu.Lock()
			}
		}
		n.missing, n.asking = nil, false
	}
	l.askers--
}

// askLostGrants has the requests with a lease that they have not heard of ask for it, until
// none is left: a later heartbeat tells again of those that could not.
func (w *Watchdog) askLostGrants() {
	l := &w.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.lostGrants) > 0 && !l.draining {
		t := l.lostGrants[0]
		l.lostGrants = l.lostGrants[1:]
		if t.linked && !t.busy && t.err == nil {
			l.mu.Unlock()
			w.again(t)
			l.mu.Lock()
		}
		t.lostGrant = false
	}
	l.lostGrantAskers--
}

// again acquires for a request that waits, and reports whether the store could be asked.
func (w *Watchdog) again(t *Waiter) bool {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	ask := t.ask
	ask.Again = true
	out, err := w.Store.Do(ctx, ask)
	cancel()
	l := &w.requests
	l.mu.Lock()
	if t.state != stateParked {
		undo := t.toUndo(&out, err)
		l.mu.Unlock()
		if undo {
			w.TakeBackLater(takeBackOf(&t.ask))
		}
		return true
	}
	defer l.mu.Unlock()
	t.asked = time.Since(w.origin)
	switch {
	case err != nil && fencing.Uncertain(err) && !fencing.AsError(err).Futile:
		if t.linked {
			l.link(t, t.joinedAt) // perhaps
		}
		return false
	case err != nil:
		if t.grant == nil {
			t.err = err
			t.signal()
		}
		if fencing.CodeOf(err) == fencing.CodeTooManyRequests {
			w.observer.Dropped(DroppedNameFull)
		}
		return true
	case !out.Waits():
		n := &granted{holder: out.Holder, now: out.Now}
		if !out.Holder.Provisional {
			n.asked = out.Asked
		}
		if t.offer(n) && (t.lostGrant || out.Holder.AcquiredAt < out.Now) { // else it was granted just now
			w.observer.FoundLost()
		}
		return true
	case t.grant != nil || t.busy: // it was asked before the grant came
		return true
	}
	joinedAt := out.Now
	if out.Place != nil {
		joinedAt = joinedAt.Add(-out.Place.Waiting)
	}
	l.link(t, joinedAt)
	if out.Joined {
		w.observer.Dropped(DroppedLapsed)
	}
	return true
}

// toUndo reports whether the answer to a request that asked again has to be undone, for it
// ended meanwhile: with a lease, unless the answer came from before that; without
// one, whatever it says.
func (t *Waiter) toUndo(out *fencing.Outcome, err error) bool {
	if t.state != stateDelivered {
		return err == nil || fencing.Unsettled(err)
	}
	return err == nil && out.Now > t.end.now && (out.Waits() || out.Holder.Token != t.end.token)
}
