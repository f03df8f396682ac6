package watchdog

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

const (
	// maxCheckers is how many names are rechecked at once.
	maxCheckers = 32

	// messageTime is how long a message may take before the grant it tells of
	// counts as found by the heartbeat.
	messageTime = fencing.HeartbeatInterval / 10
)

// listener is the watchdog as its store sees it.
type listener struct{ *Watchdog }

var _ fencing.Listener = listener{}

// listen tells the store who hears of this gateway's waiters, once.
func (w *Watchdog) listen() {
	w.listening.Do(func() { w.Store.Listen(listener{w}) })
}

// Granted hands a grant to the request it is for. One that has gone for good gets
// it taken back. A grant nobody knows of is a message told twice, unless heartbeats
// go on telling of it: then it is the place of a request that is long forgotten.
func (l listener) Granted(g fencing.Grant, now fencing.Instant, asked time.Time) {
	w, lot := l.Watchdog, &l.lot
	n := &news{holder: g.Holder, now: now}
	if !g.Holder.Provisional {
		n.asked = asked
	}
	k := key{g.Name, g.Stamp}
	lot.mu.Lock()
	if t := lot.waiters[k]; t != nil {
		fresh := t.offer(n)
		lot.mu.Unlock()
		if fresh && g.Holder.Provisional && w.pulsing.Load() && now.Sub(g.Holder.AcquiredAt) >= messageTime {
			w.observer.FoundLost()
		}
		return
	}
	d := lot.gone[k]
	if _, held := lot.held[k]; d == nil && !held && g.Holder.Provisional && w.stranger(k) {
		lot.mu.Unlock()
		w.observer.TakenBack()
		w.TakeBackLater(fencing.TakeBackRequest{Name: g.Name, Lease: fencing.HashedLeaseID(g.Holder.Lease, g.Secret), Stamp: g.Stamp, Provisional: true})
		return
	}
	if d == nil || d.counted && time.Since(d.last) < callTimeout {
		lot.mu.Unlock()
		return
	}
	lease, counted := d.lease, d.counted
	d.counted, d.last = true, time.Now()
	lot.mu.Unlock()
	if !counted {
		w.observer.TakenBack()
	}
	w.TakeBackLater(fencing.TakeBackRequest{Name: g.Name, Lease: lease, Stamp: g.Stamp})
}

// Replaced ends a request whose lease id another one has taken over.
func (l listener) Replaced(name fencing.Name, stamp fencing.Stamp) {
	l.lot.mu.Lock()
	defer l.lot.mu.Unlock()
	if t := l.lot.waiters[key{name, stamp}]; t != nil {
		t.err = errReplaced()
		t.tell()
	}
	if a := l.lot.attached[key{name, stamp}]; a != nil {
		select {
		case a.replaced <- struct{}{}:
		default: // told already
		}
	}
}

// Recheck has the waiters on names acquire again, in goroutines of its own.
func (l listener) Recheck(names []fencing.Name) {
	w, lot := l.Watchdog, &l.lot
	lot.mu.Lock()
	defer lot.mu.Unlock()
	if names == nil {
		for name, n := range lot.lines {
			n.whole = true
			lot.soil(name, n)
		}
	}
	for _, name := range names {
		if n := lot.lines[name]; n != nil {
			lot.soil(name, n)
		}
	}
	w.startCheckers()
}

// soil puts a line on the list of what is to be rechecked. The caller holds mu.
func (l *lot) soil(name fencing.Name, n *line) {
	switch {
	case n.checking:
		n.again = true
	case !n.queued:
		n.queued = true
		l.dirty = append(l.dirty, name)
	}
}

// startCheckers has a goroutine for every line to recheck, within bounds. The
// caller holds the lot's mutex.
func (w *Watchdog) startCheckers() {
	for n := len(w.lot.dirty); n > 0 && w.lot.checkers < maxCheckers && !w.lot.draining; n-- {
		w.lot.checkers++
		w.work.Go(w.checkLines)
	}
}

// checkLines rechecks lines until none is left to do.
func (w *Watchdog) checkLines() {
	l := &w.lot
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.dirty) > 0 && !l.draining {
		name := l.dirty[0]
		l.dirty = l.dirty[1:]
		n := l.lines[name]
		if n == nil || !n.queued {
			continue
		}
		n.queued, n.checking = false, true
		l.mu.Unlock()
		for backoff := minBackoff; !w.checkLine(name) && w.sleep(backoff); {
			backoff = min(2*backoff, maxBackoff)
		}
		l.mu.Lock()
		n.checking = false
		if n.again {
			n.again = false
			if l.lines[name] == n {
				l.soil(name, n)
			}
		}
	}
	l.checkers--
}

// checkLine makes one pass: the requests that wait for a name acquire again in
// order of arrival, until one has still had its place. Those behind it can't have
// been granted anything; whether they have their places is asked where the store may
// have forgotten the last arrivals, after it was out of reach. It reports false if the store can't be asked.
func (w *Watchdog) checkLine(name fencing.Name) bool {
	l := &w.lot
	l.mu.Lock()
	l.passes++
	pass, whole := l.passes, false
	if n := l.lines[name]; n != nil {
		whole, n.whole = n.whole, false
	}
	l.mu.Unlock()
	for waits, since := false, fencing.Instant(0); ; {
		t := l.nextToCheck(name, pass)
		if t == nil || waits && !whole && t.joinedAt > since { // of one instant, the order is not known here
			return true
		}
		joinedAt := t.joinedAt // only passes change it, and this is the one of the name
		switch w.again(t, true) {
		case checkFailed:
			l.mu.Lock()
			if n := l.lines[name]; n != nil {
				n.whole = n.whole || whole
			}
			l.mu.Unlock()
			return false
		case checkWaits:
			waits, since = true, joinedAt
		}
	}
}

// nextToCheck returns the first request in the line that a pass has not asked for.
func (l *lot) nextToCheck(name fencing.Name, pass uint) *Waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.lines[name]
	if n == nil || l.draining {
		return nil
	}
	for t := n.first; t != nil; t = t.next {
		if t.pass != pass && !t.busy && t.err == nil { // one that was replaced must not take over again
			t.pass = pass
			return t
		}
	}
	return nil
}

// check is what asking again for a request came to.
type check uint8

const (
	checkFailed check = iota // the store can't be asked
	checkWaits               // it has its place, as before
	checkMoved               // anything else
)

// again acquires for a request that waits; lost says that a grant found so had
// been lost on its way.
func (w *Watchdog) again(t *Waiter, lost bool) check {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	ask := t.ask
	ask.Again = true
	out, err := w.Store.Acquire(ctx, ask)
	cancel()
	l := &w.lot
	l.mu.Lock()
	if t.state != stateParked {
		strays := t.strays(&out, err)
		l.mu.Unlock()
		if strays {
			w.TakeBackLater(takeBackOf(&t.ask))
		}
		return checkMoved
	}
	defer l.mu.Unlock()
	t.asked = time.Since(w.origin)
	t.crossed = t.crossed || t.busy || err != nil && unsettled(err)
	switch {
	case err != nil && uncertain(err):
		return checkFailed
	case err != nil:
		if t.grant == nil {
			t.err = err
			t.tell()
		}
		if codeOf(err) == fencing.CodeTooManyRequests {
			w.observer.Dropped(DroppedNameFull)
		}
		return checkMoved
	case !out.Waits():
		n := &news{holder: out.Holder, now: out.Now}
		if !out.Holder.Provisional {
			n.asked = out.Asked
		}
		if t.offer(n) && lost {
			w.observer.FoundLost()
		}
		return checkMoved
	case t.grant != nil || t.busy: // it was asked before the grant came
		return checkMoved
	}
	joinedAt := out.Now
	if out.Place != nil {
		joinedAt = joinedAt.Add(-out.Place.Waiting)
	}
	l.link(t, joinedAt)
	if out.Joined {
		w.observer.Dropped(DroppedLapsed)
		return checkMoved
	}
	return checkWaits
}

// strays reports whether the answer to a recheck has to be undone, for its request
// ended meanwhile: with a lease, unless the answer came from before that; without
// one, whatever it says.
func (t *Waiter) strays(out *fencing.Outcome, err error) bool {
	if t.state != stateDelivered {
		return err == nil || unsettled(err)
	}
	return err == nil && out.Now > t.end.now && (out.Waits() || out.Holder.Token != t.end.token)
}
