package quorum

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// line is the requests that wait here for a name, in order of arrival. Only the
// first tries: the others would be in its way.
type line struct {
	waiters []*waiter
	lock    *fencing.Lock // as the last try found it
	wake    chan struct{} // a lease of the name has just ended here
}

// waiter is a request that waits.
type waiter struct {
	ask    fencing.AcquireRequest
	joined time.Time
	left   bool          // it is not in the line any more
	trying chan struct{} // closed when the try under way is over; nil if there is none
	stop   context.CancelFunc
}

// refusal is why a request waits no longer, for when it asks.
type refusal struct {
	stamp fencing.Stamp
	err   *fencing.Error
}

func (w *waiter) place(position int, now time.Time) fencing.Waiter {
	return fencing.Waiter{
		Lease: w.ask.Lease.Public(), Owner: w.ask.Owner, Mode: w.ask.Mode, Position: position, Waiting: now.Sub(w.joined),
	}
}

// Listen implements fencing.Store.
func (s *Store) Listen(l fencing.Listener) { s.listener.Store(&l) }

func (s *Store) tell(do func(fencing.Listener)) {
	if l := s.listener.Load(); l != nil {
		do(*l)
	}
}

// waiting returns how many requests wait here for a name.
func (s *Store) waiting(name fencing.Name) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[name]; l != nil {
		return len(l.waiters)
	}
	return 0
}

// waiters returns the public view of those who wait here.
func (s *Store) waiters(name fencing.Name) []fencing.Waiter {
	now := s.options.Clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[name]
	if l == nil {
		return nil
	}
	var list []fencing.Waiter
	for i, w := range l.waiters[:min(len(l.waiters), fencing.MaxWaitersShown)] {
		list = append(list, w.place(i+1, now))
	}
	return list
}

// find returns the waiter with a lease id. The caller holds mu.
func (l *line) find(lease fencing.LeasePublic) int {
	if l == nil {
		return -1
	}
	return slices.IndexFunc(l.waiters, func(w *waiter) bool { return w.ask.Lease.Public() == lease })
}

// seemsToHold reports whether a request has the lock, as far as the line of its name
// knows: it does not wait for itself then.
func (s *Store) seemsToHold(r *fencing.AcquireRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[r.Name]
	return l != nil && slices.ContainsFunc(l.lock.Holders, func(h fencing.Holder) bool { return h.Lease == r.Lease.Public() })
}

// resume gives the place of an older request with the same lease id to a newer one.
// One that does not wait takes the place out of the line, and goes on on its own. One
// that contradicts the older one changes nothing.
func (s *Store) resume(r *fencing.AcquireRequest) (out fencing.Outcome, err *fencing.Error, waits bool) {
	now := s.options.Clock()
	s.mu.Lock()
	l := s.lines[r.Name]
	i := l.find(r.Lease.Public())
	if i < 0 || !l.waiters[i].ask.Lease.Hash().Equal(r.Lease.Hash()) {
		s.mu.Unlock()
		return out, nil, false
	}
	w := l.waiters[i]
	if err := r.Contradicts(w.ask.Mode, w.ask.Limit, w.ask.Owner); err != nil {
		s.mu.Unlock()
		return out, err, true
	}
	old := w.ask.Stamp
	if r.Wait > 0 {
		w.ask.Stamp, w.ask.Attach = r.Stamp, r.Attach
		out = s.waits(r.Name, w, i, now)
	} else {
		l.remove(w)
	}
	s.mu.Unlock()
	if old != r.Stamp {
		out.Replaced = &fencing.Parked{Gateway: s.self, Stamp: old}
		s.tell(func(to fencing.Listener) { to.Replaced(r.Name, old) })
	}
	return out, nil, r.Wait > 0
}

// waits is the outcome of a request that waits. The caller holds mu.
func (s *Store) waits(name fencing.Name, w *waiter, i int, now time.Time) fencing.Outcome {
	place := w.place(i+1, now)
	at := fencing.InstantOf(now)
	lock := *s.lines[name].lock
	lock.Now, lock.Waiting = at, len(s.lines[name].waiters)
	lock.Holders = slices.DeleteFunc(slices.Clone(lock.Holders), func(h fencing.Holder) bool { return !h.Live(at) })
	lock.HolderCount -= len(s.lines[name].lock.Holders) - len(lock.Holders)
	return fencing.Outcome{Now: at, Asked: now, Place: &place, Lock: shownOf(&lock)}
}

// joinLine puts a request at the end of the line of its name. Without the lock as it
// is, it does so only if there is a line: else the request tries first.
func (s *Store) joinLine(r *fencing.AcquireRequest, lock *fencing.Lock) (fencing.Outcome, *fencing.Error) {
	now := s.options.Clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[r.Name]
	if l == nil && lock == nil {
		return fencing.Outcome{}, nil
	}
	if l == nil {
		l = &line{lock: lock, wake: make(chan struct{}, 1)}
	}
	if r.MaxWaiters > 0 && len(l.waiters) >= r.MaxWaiters {
		at := fencing.InstantOf(now)
		return fencing.Outcome{}, &fencing.Error{
			Code: fencing.CodeTooManyRequests, Detail: "as many wait for the lock as may",
			Lock: &fencing.Lock{Name: r.Name, Now: at, Waiting: len(l.waiters)},
		}
	}
	if s.closed {
		return fencing.Outcome{}, fencing.Unavailable(errClosed)
	}
	if s.lines[r.Name] == nil {
		s.lines[r.Name] = l
		s.goes(func() { s.serve(r.Name, l) })
	}
	w := &waiter{ask: *r, joined: now}
	w.ask.Again, w.ask.Mode = false, cmp.Or(r.Mode, fencing.ModeExclusive)
	l.waiters = append(l.waiters, w)
	delete(s.refusals, leaseKey{r.Name, r.Lease.Public()})
	out := s.waits(r.Name, w, len(l.waiters)-1, now)
	out.Joined = true
	return out, nil
}

// remove takes a waiter out. The caller holds mu.
func (l *line) remove(w *waiter) {
	w.left = true
	l.waiters = slices.DeleteFunc(l.waiters, func(other *waiter) bool { return other == w })
	select { // the next one is first now
	case l.wake <- struct{}{}:
	default:
	}
}

// serve tries for the first of a line until nobody waits any more.
func (s *Store) serve(name fencing.Name, l *line) {
	pause := s.options.pause
	for {
		woken := s.rest(l, pause)
		if woken {
			pause = s.options.pause
		}
		s.mu.Lock()
		if len(l.waiters) == 0 || s.closed {
			delete(s.lines, name)
			s.mu.Unlock()
			return
		}
		w := l.waiters[0]
		ctx, cancel := context.WithCancel(context.Background())
		w.trying, w.stop = make(chan struct{}), cancel
		ask := w.ask
		s.mu.Unlock()
		ask.Intent = 2 * min(2*pause, longestPause)
		s.tries <- struct{}{} // a try ends after a few NodeTimeouts
		out, err, _ := s.attempt(ctx, ask, 1)
		<-s.tries
		cancel()
		s.tried(name, l, w, ask.Stamp, out, err)
		if err == nil {
			pause = 0 // whoever is next may fit as well
			continue
		}
		pause = min(max(pause, s.options.pause)*3/2, longestPause)
		if left := err.RetryAfter; err.Code == fencing.CodeLocked && left > 0 && left < pause {
			pause = max(left, s.options.pause)
		}
	}
}

// rest waits before the next try, with jitter, so that gateways don't meet again and
// again. It reports whether it was woken.
func (s *Store) rest(l *line, pause time.Duration) bool {
	s.busy.Add(-1)
	defer s.busy.Add(1)
	timer := time.NewTimer(pause/2 + rand.N(pause+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-l.wake:
		return true
	case <-s.closing:
		return false
	}
}

// tried deals with what a try for a waiter came to.
func (s *Store) tried(name fencing.Name, l *line, w *waiter, stamp fencing.Stamp, out fencing.Outcome, err *fencing.Error) {
	key := leaseKey{name, w.ask.Lease.Public()}
	s.mu.Lock()
	trying := w.trying
	w.trying, w.stop = nil, nil
	defer close(trying)
	defer s.mu.Unlock()
	now := w.ask.Stamp // of a newer request, perhaps
	switch {
	case err == nil:
		l.lock = &fencing.Lock{Name: name, Holders: []fencing.Holder{out.Holder}, HolderCount: 1, LastToken: out.Holder.Token}
	case err.Lock != nil:
		l.lock = err.Lock
	}
	switch {
	case err == nil:
		out.Holder.Waited = s.options.Clock().Sub(w.joined)
		if m := s.made.of(key, stamp); m != nil {
			m.request, m.out = now, &out
		}
		if at, ok := s.attached[key]; ok && at.request == stamp {
			at.request = now
			s.attached[key] = at
		}
		if w.left {
			return // who takes it back, or leaves, finds it
		}
		l.remove(w)
		g := fencing.Grant{Name: name, Holder: out.Holder, Gateway: s.self, Stamp: now, Secret: w.ask.Lease.Hash()}
		s.tellLater(func(to fencing.Listener) { to.Granted(g, out.Now, out.Asked) })
	case err.Code == fencing.CodeLocked || uncertain(err.Code) || w.left:
	default: // it can't be had by waiting: the request hears of it when it asks
		l.remove(w)
		if len(s.refusals) < maxMade {
			s.refusals[key] = &refusal{now, err}
		}
		s.tellLater(func(to fencing.Listener) { to.Recheck([]fencing.Name{name}) })
	}
}

// tellLater tells the listener without mu. The caller holds mu.
func (s *Store) tellLater(do func(fencing.Listener)) {
	if !s.closed {
		s.goes(func() { s.tell(do) })
	}
}

// recall answers a gateway that asks again for a request that waits, or did; known
// is false if nothing is known of it.
func (s *Store) recall(r *fencing.AcquireRequest) (out fencing.Outcome, err *fencing.Error, known bool) {
	now := s.options.Clock()
	key := leaseKey{r.Name, r.Lease.Public()}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[r.Name]
	if i := l.find(key.lease); i >= 0 {
		if w := l.waiters[i]; w.ask.Stamp == r.Stamp {
			return s.waits(r.Name, w, i, now), nil, true
		}
		return out, errReplaced(), true
	}
	if f := s.refusals[key]; f != nil && f.stamp == r.Stamp {
		delete(s.refusals, key)
		return out, f.err, true
	}
	if m := s.made.of(key, r.Stamp); m != nil && m.out != nil && !m.told {
		return *m.out, nil, true
	}
	return out, nil, false
}

func errReplaced() *fencing.Error {
	return &fencing.Error{Code: fencing.CodeReplaced, Detail: "a newer request with the same lease id has taken over"}
}

// wake has the first of a line try at once: a lease has ended.
func (s *Store) wake(name fencing.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[name]; l != nil {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}
