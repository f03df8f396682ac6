package session

import (
	"fmt"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

const (
	// toldWithin is after how long a stream has been told that it was replaced, or has lost a name, at the latest, once its
	// gateway can ask the store and has heard of what it has missed.
	toldWithin = 2 * time.Second

	// silentLossesAreFound says that a message which is lost, and nobody says so, is found out within toldWithin
	// as well: by a heartbeat that tells what hangs on streams. Else it is with the next renewal.
	silentLossesAreFound = true

	// crossedSetsAreSettled says that of requests for several names with one lease id, which take names from each other before
	// any of them has all, one gets them, or nothing is left of them. Else all may be told that they were replaced, and a name
	// that one has made firm, and another has found so, neither may take back: it hangs on nobody until its TTL.
	crossedSetsAreSettled = false

	// olderDeadlinesAreKept says that a request which is refused, or told of a loss, ends nothing sooner than an older stream of
	// the lease was told. Else what it has taken over lingers for TakeOverLinger, or is released when nothing is left by its own
	// account, and the older stream may not have been reached by then.
	olderDeadlinesAreKept = false

	// freeWithin is after how long a name is free when all its clients have gone.
	freeWithin = time.Second

	// simSlack is for commands and messages under way when nothing is lost.
	simSlack = 300 * time.Millisecond

	longestSimTTL = 60 * time.Second
)

// fault notes what should not be.
func (s *simulation) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faultLocked(format, args...)
}

// faultLocked is fault for who holds the mutex.
func (s *simulation) faultLocked(format string, args ...any) {
	text := fmt.Sprintf("after %s: ", time.Since(s.began)) + fmt.Sprintf(format, args...)
	s.note("FAULT %s", text)
	s.faults = append(s.faults, text)
}

// simLeaseOn is a lease on a name.
type simLeaseOn struct {
	name  fencing.Name
	lease fencing.LeasePublic
}

// simTaken is which request of a lease has a name, as the store was asked last, and since when.
type simTaken struct {
	by fencing.Stamp
	at time.Time
}

// taken notes what the store has answered to an acquire.
func (s *simulation) taken(r *fencing.AcquireRequest, out *fencing.Outcome, err error) {
	code := fencing.CodeOf(err)                                                                                                   // who is refused because somebody else holds the name has taken the place over, and given it up
	if code != fencing.CodeOK && code != fencing.CodeLocked || r.Again || r.Set != "" && !r.Attach && out.Holder.Attached != "" { // what it had already
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	on := simLeaseOn{r.Name, r.Lease.Public()}
	if s.last[on].by != r.Stamp {
		s.last[on] = simTaken{r.Stamp, time.Now()}
	}
}

// simJudge hears of all that the store does, as it does it.
type simJudge struct{ s *simulation }

// Gap implements fencing.EventSink.
func (simJudge) Gap() {}

// Event implements fencing.EventSink: P1 and P9, for clients count as holders until the instant that they were told, and nobody's
// lease ends before that but by its own client, or by an administrator without notice.
func (j simJudge) Event(e fencing.Event) {
	s, now := j.s, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("the store: %s %s %s", e.Kind, e.Name, e.Lease)
	l := s.leases[e.Lease]
	switch e.Kind {
	case fencing.EventGranted:
		delete(l.over, e.Name)
		for _, other := range s.leases {
			if by := other.believes(e.Name, now); other != l && by != nil {
				s.faultLocked("P1: %s is granted to %s, and %v counts on it until %s", e.Name, e.Lease, by, by.until.Sub(s.began))
			}
		}
	case fencing.EventNotice:
		l.noticed[e.Name] = true
	case fencing.EventReleased, fencing.EventExpired, fencing.EventBroken:
		by := l.believes(e.Name, now)
		if at := now.Add(-fencing.InstantOf(now).Sub(e.At)); e.Kind == fencing.EventExpired && at.Before(now) { // and is noticed later
			by = l.believes(e.Name, at)
		}
		l.over[e.Name] = e.Kind
		switch {
		case by == nil, !olderDeadlinesAreKept && e.Kind != fencing.EventBroken && (l.isUnknown() || l.several && l.gaveUp()), l.released[e.Name], l.broken[e.Name] && e.Kind == fencing.EventBroken, l.closed:
		default:
			s.faultLocked("P8, P9: the lease on %s is %s, and %v counts on it until %s", e.Name, e.Kind, by, by.until.Sub(s.began))
		}
		for _, r := range l.requests {
			r.has = slices.DeleteFunc(slices.Clone(r.has), func(name fencing.Name) bool { return name == e.Name })
		}
	}
}

// endsSoon reports whether the lease may have less time left than its requests take. The caller holds the mutex.
func (l *simLease) endsSoon() bool {
	return !l.short.IsZero() || len(l.noticed) > 0 || l.plain || l.linger > 0 && l.closed
}

// gaveUp reports whether a request of the lease was refused, or left before it was told. The caller holds the mutex.
func (l *simLease) gaveUp() bool {
	return slices.ContainsFunc(l.requests, func(r *simRequest) bool { return r.over && r.fresh.IsZero() })
}

// isUnknown reports whether a request that has a name of the lease was told that nothing is known, and the client has not asked
// again. The caller holds the mutex.
func (l *simLease) isUnknown() bool {
	return slices.ContainsFunc(simNames, func(name fencing.Name) bool {
		by := l.sim.byStamp[l.sim.last[simLeaseOn{name, l.id.Public()}].by]
		return by != nil && fencing.Uncertain(by.told)
	})
}

// believes returns a request for which the client trusts in a name, nil if there is none. The caller holds the mutex.
func (l *simLease) believes(name fencing.Name, at time.Time) *simRequest {
	for _, r := range l.requests {
		if r.believes(name, at) {
			return r
		}
	}
	return nil
}

// checkTold holds against each other what a request is told at its end and what has happened. The caller holds the mutex.
func (s *simulation) checkTold(r *simRequest) {
	l := r.of
	switch code := fencing.CodeOf(r.told); {
	case code == fencing.CodeReplaced:
		s.told.replaced++
		if r.n < len(l.requests) {
			return
		}
		for _, name := range r.names {
			if last, ok := s.last[simLeaseOn{name, l.id.Public()}]; ok && last.by != r.Stamp {
				return
			}
		}
		s.faultLocked("P8: %v is told that it was replaced; it is the newest, and no other request has taken anything from it", r)
	case code == fencing.CodeLeaseLost:
		if len(l.over) == 0 && !slices.ContainsFunc(r.names, func(name fencing.Name) bool { return l.noticed[name] }) {
			s.faultLocked("P8: %v is told %v, and no lease of it has ended", r, r.told)
		}
	case fencing.Uncertain(r.told):
		s.told.unknown++
		r.g.mu.Lock()
		hurt := r.g.hurt
		r.g.mu.Unlock()
		crossed := slices.ContainsFunc(l.requests, func(q *simRequest) bool { return q != r && q.over && q.fresh.IsZero() }) // it has taken names, and given them back
		if since := r.reached; hurt.Before(since) && len(l.over) == 0 && !crossed && !l.endsSoon() {
			s.faultLocked("P8: %v is told %v, and its gateway has had all answers since %s", r, r.told, since.Sub(s.began))
		}
	}
}

// settle judges the streams that are left when the trouble is over, and what is left when they have gone.
func (s *simulation) settle() {
	advance(toldWithin + simSlack)
	s.judgeStreams(silentLossesAreFound)
	advance(longestSimTTL/3 + simCallTimeout)
	s.judgeStreams(true)
	s.judgeDead()
	s.judgeCounts()
	s.probe()
	var plain []*simLease
	s.mu.Lock()
	for _, l := range s.leases {
		if l.plain {
			plain = append(plain, l)
		}
	}
	s.mu.Unlock()
	for _, l := range plain {
		for _, name := range simNames {
			l.delete(name)
		}
	}
	s.note("all leave")
	for _, l := range s.leases {
		l.goes()
	}
	left := time.Now()
	advance(freeWithin + simSlack)
	s.judgeFree(left, func(l *simLease) bool { return l.dropped || l.linger > 0 || l.several })
	advance(max(takeOverLinger, time.Second))
	s.judgeFree(left, func(l *simLease) bool { return l.dropped })
}

// lives reports whether the gateway keeps leases for a stream. The caller holds the mutex.
func (r *simRequest) lives() bool { return r.Attach && r.keeps != nil && r.ctx.Err() == nil }

// judgeStreams checks that each stream that lives has all its names, and so that no two have one: another one of the lease has
// not had it for long.
func (s *simulation) judgeStreams(silent bool) {
	holders := s.holders()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.byStamp {
		if !r.lives() {
			continue
		}
		r.g.mu.Lock()
		unheard, hangs := r.g.unheard.After(r.fresh), time.Since(r.g.hangs) < toldWithin
		r.g.mu.Unlock()
		if hangs || unheard && !silent {
			continue
		}
		for _, name := range r.keeps {
			h, last := holders[name], s.last[simLeaseOn{name, r.Lease.Public()}]
			if h != nil && h.Lease == r.Lease.Public() && h.Attached == r.Stamp || time.Since(last.at) < toldWithin || unheard && r.of.noticed[name] && !silentLossesAreFound { // which is not renewed
				continue
			}
			s.faultLocked("%v lives, and %s is held by %+v", r, name, h)
		}
	}
}

// judgeDead checks that no lease hangs on a stream that is over, unless its client was told that nothing is known, or
// the newest stream does not name it.
func (s *simulation) judgeDead() {
	holders := s.holders()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, h := range holders {
		r := s.byStamp[h.Attached]
		switch {
		case r == nil || !r.over:
		case r.of.isUnknown():
		case r.of.dropped:
		default:
			s.faultLocked("%s hangs on %v, which is over (%v): %+v", name, r, r.told, h.Holder)
		}
	}
}

// judgeCounts checks that of streams that were sent together, and that nobody has ended, exactly one is left.
func (s *simulation) judgeCounts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind.leaves {
		return
	}
	for _, l := range s.leases {
		n, granted, lost, only := 0, false, false, true
		for _, r := range l.requests {
			granted = granted || !r.fresh.IsZero()
			only = only && fencing.CodeOf(r.told) == fencing.CodeReplaced
			if r.lives() {
				n++
			}
		}
		for _, name := range l.names { // by the one that had it last: it could not renew it in time, or was told that nothing is known
			by := s.byStamp[s.last[simLeaseOn{name, l.id.Public()}].by]
			lost = lost || by != nil && by.told != nil && fencing.CodeOf(by.told) != fencing.CodeReplaced
		}
		switch {
		case !granted && !only, lost || l.unknown, n == 1:
		case !granted && !crossedSetsAreSettled:
			s.told.crossed++
		default:
			s.faultLocked("%d streams of %s are left", n, l.id.Public())
		}
	}
}

// probe shortens the leases of some streams at their gateways, and breaks those of others: a stream renews what was shortened
// in time, and is told at once of what was broken.
func (s *simulation) probe() {
	s.mu.Lock()
	var shortened, broken []*simRequest
	for _, r := range s.byStamp {
		if r.lives() && !r.of.plain {
			if r.n%2 == 0 {
				shortened = append(shortened, r)
			} else {
				broken = append(broken, r)
			}
		}
	}
	s.mu.Unlock()
	for _, r := range shortened {
		r.of.put()
	}
	for _, r := range broken {
		if h := s.holder(r.names[0]); h != nil {
			s.breaks(r.names[0], h, 0)
		}
	}
	advance(simSlack)
	s.mu.Lock()
	for _, r := range broken {
		if r.of.broken[r.names[0]] && r.told == nil {
			s.faultLocked("%s was broken, and %v was not told", r.names[0], r)
		}
	}
	s.mu.Unlock()
	advance(4 * time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range shortened {
		if !r.lives() && fencing.CodeOf(r.told) != fencing.CodeReplaced && len(r.of.noticed)+len(r.of.broken) == 0 {
			s.faultLocked("%v was shortened, and is told %v", r, r.told)
		}
	}
}

// judgeFree checks that nothing is held any more when all clients have left, but by an excused lease, which ends with its TTL.
func (s *simulation) judgeFree(left time.Time, excused func(*simLease) bool) {
	holders := s.holders()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, h := range holders {
		crossed := h.Attached == "" && !h.Told && h.Stamp == "" && s.leases[h.Lease].several && !crossedSetsAreSettled
		if crossed {
			s.told.crossed++
		}
		if l := s.leases[h.Lease]; !crossed && !l.isUnknown() && !excused(l) {
			s.faultLocked("all have left %s ago, and %s is held by %+v", time.Since(left), name, h)
		}
	}
}

func (s *simulation) holders() map[fencing.Name]*fencing.Holding {
	all := map[fencing.Name]*fencing.Holding{}
	for _, name := range simNames {
		if h := s.holder(name); h != nil {
			all[name] = h
		}
	}
	return all
}
