package watchdog

import (
	"fmt"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

const (
	// simPatient bounds, in calm weather, how long a lock is free while somebody
	// waits, and how long a lease is nobody's: the 2 s of P5, and the monitor's tick.
	simPatient = 2300 * time.Millisecond

	simTick = 100 * time.Millisecond
)

// fault notes what went wrong.
func (s *simulation) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faultLocked(format, args...)
}

func (s *simulation) faultLocked(format string, args ...any) {
	if len(s.faults) < 10 {
		s.faults = append(s.faults, fmt.Sprintf("after %s: ", time.Since(s.began))+fmt.Sprintf(format, args...))
	}
}

// trouble puts off what is to be expected of gateways and store until a while from
// now.
func (s *simulation) trouble(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := time.Now().Add(d); until.After(s.calm) {
		s.calm = until
	}
}

// open notes that a client wants a lease.
func (s *simulation) open(r *fencing.AcquireRequest) *simLease {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &simLease{name: r.Name, mode: r.Mode}
	s.leases[r.Lease.Public()] = l
	return l
}

func (s *simulation) asks(l *simLease, g *simGateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.asking, l.at, l.since = 1, g, time.Now()
	l.were, l.excused = append(l.were, g), l.excused || g.dead()
}

func (s *simulation) hangs(l *simLease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.asking = 0
}

// crossed notes that a request was replaced by a newer one. It takes nothing back, so
// that an attempt of it which comes after all others are over leaves a place behind: a
// hole that is known, and costs a TTL.
func (s *simulation) crossed(l *simLease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.excused = true
}

func (s *simulation) isExcused(l *simLease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.excused
}

// leftOpen notes that a request for a lease had no answer. If that is so of two, they may
// get there in any order: a grant to the one that the other takes over can't be taken
// back, and ends with its TTL.
func (s *simulation) leftOpen(lease fencing.LeasePublic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[lease]; l != nil {
		l.open++
		l.excused = l.excused || l.open > 1
	}
}

// broughtBack notes which places a fail-over has brought back, for it forgot their end.
// A gateway that is told of what was granted to one takes it back; if that answer is
// lost too, it ends with its TTL: a hole that is known.
func (s *simulation) broughtBack(places []fencing.Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range places {
		if l := s.leases[places[i].Ask.Lease.Public()]; l != nil && (l.token != 0 || !l.gone.IsZero()) {
			l.excused = true
		}
	}
}

// excuse leaves what a dead gateway was asked for, or was taking back, to its TTL.
func (s *simulation) excuse(g *simGateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		l.excused = l.excused || l.token == 0 && slices.Contains(l.were, g)
	}
}

// told notes that a client was told of a lease, which it believes in until then.
// P1: nobody else may believe in what does not bear it. P2: tokens told grow.
func (s *simulation) told(l *simLease, out *fencing.Outcome, until time.Time) {
	s.server.mu.Lock()
	run := s.server.run
	if out.Asked.Before(s.server.since) { // granted by the one before
		run--
	}
	s.server.told[l.name] = max(s.server.told[l.name], out.Holder.Token)
	s.server.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	l.asking, l.token, l.until, l.run = 0, out.Holder.Token, until, run
	s.grants++
	if out.Holder.Provisional {
		s.faultLocked("P6: a client was told of a provisional lease, token %d", l.token)
	}
	if other := s.tokens[out.Holder.Token]; other != nil && other != l {
		s.faultLocked("P2: two clients were told the token %d", out.Holder.Token)
	}
	s.tokens[out.Holder.Token] = l
	if !l.believed(now) {
		return
	}
	for _, other := range s.leases {
		if other == l || other.name != l.name || !other.believed(now) || l.mode == fencing.ModeShared && other.mode == fencing.ModeShared {
			continue
		}
		s.faultLocked("P1: the client that was told the token %d holds %s, and so does that of %d, for %s more (servers %d and %d)",
			l.token, l.name, other.token, other.until.Sub(now), l.run, other.run)
	}
}

func (s *simulation) renewed(l *simLease, out *fencing.Outcome, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := sent.Add(out.Remaining(time.Now()) + time.Since(out.Asked) - out.Asked.Sub(sent)); until.After(l.until) {
		l.until = until
	}
}

// gives notes that a client believes no longer.
func (s *simulation) gives(l *simLease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.given = true
}

func (s *simulation) gone(l *simLease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.asking, l.given, l.gone = 0, true, time.Now()
}

// abandons leaves a lease to its TTL.
func (s *simulation) abandons(l *simLease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.excused = true
}

// sameServer reports whether nobody else has served since a client was told.
func (s *simulation) sameServer(l *simLease) bool {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	return s.server.run == l.run && !s.server.down
}

// lost notes that a client was told that it lost its lease. P3 and P8: that is not so
// while it is live, unless the store has forgotten it.
func (s *simulation) lost(l *simLease, err error) {
	same := s.sameServer(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if same && l.believed(time.Now()) {
		s.faultLocked("P8: the lease with the token %d is live for %s more, and its client was told: %v", l.token, time.Until(l.until), err)
	}
	l.given = true
}

// checkStep looks at what a step came to, with the queue as it was before. The
// server's mutex is held.
func (s *simulation) checkStep(op fencing.Op, out *fencing.Outcome, queue []fencing.Place) {
	name := op.LockName()
	for i := range out.Granted {
		h := &out.Granted[i].Holder
		if h.Token <= s.server.told[name] {
			s.fault("P2: the token %d is granted on %s, and %d was told before", h.Token, name, s.server.told[name])
		}
		for _, p := range s.server.waiting(name) {
			ahead := slices.IndexFunc(queue, func(q fencing.Place) bool { return q.Ask.Lease.Public() == p.Ask.Lease.Public() })
			own := slices.IndexFunc(queue, func(q fencing.Place) bool { return q.Ask.Lease.Public() == h.Lease })
			left := slices.ContainsFunc(out.Left, func(w fencing.Waiter) bool { return w.Lease == p.Ask.Lease.Public() }) // and came back
			if ahead >= 0 && !left && (own < 0 || own > ahead) && p.Seq < out.Granted[i].Holder.AcquiredAt.Add(-h.Waited)+1 {
				s.fault("P5: %s on %s was granted past %s, who waits", h.Lease, name, p.Ask.Lease.Public())
			}
		}
	}
	mine := leaseOfOp(op)
	for i := range out.Left {
		w := &out.Left[i]
		s.mu.Lock()
		l, calm := s.leases[w.Lease], time.Now().After(s.calm)
		s.mu.Unlock()
		if w.Lease == mine || !calm || l == nil || l.asking == 0 || l.at.dead() {
			continue
		}
		if silent := l.at.silentFor(); silent < fencing.GatewayTTL-fencing.HeartbeatInterval/2-simLag {
			s.fault("P5: %s lost its place on %s, for its gateway counts as dead: it was heard of %s ago", w.Lease, name, silent)
		}
	}
}

func leaseOfOp(op fencing.Op) fencing.LeasePublic {
	switch op := op.(type) {
	case fencing.AcquireRequest:
		return op.Lease.Public()
	case fencing.LeaveRequest:
		return op.Lease.Public()
	case fencing.TakeBackRequest:
		return op.Lease.Public()
	}
	return ""
}

// watch looks at everything, again and again. P5: no lock stays free while somebody
// waits. P6: no lease stays nobody's.
func (s *simulation) watch() {
	idle := map[fencing.Name]time.Time{}
	orphans := map[fencing.Token]time.Time{}
	for !s.ended() {
		advance(simTick)
		s.server.replicate()
		s.server.mu.Lock()
		now := s.server.now()
		serving := !s.server.down && s.server.state.Quarantine.Until <= now && !time.Now().Before(s.server.stall)
		for _, name := range simNames {
			s.watchName(name, now, serving, idle, orphans)
		}
		s.server.mu.Unlock()
	}
}

func (s *simulation) watchName(name fencing.Name, now fencing.Instant, serving bool, idle map[fencing.Name]time.Time, orphans map[fencing.Token]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := false
	if r := s.server.state.Records[name]; r != nil {
		for h := range r.Holders.All() {
			if !h.Provisional && !h.Live(now) {
				continue
			}
			held = true
			if l := s.leases[h.Lease]; !s.owned(l) {
				watchFor(s, orphans, h.Token, serving, "P6: the lease with the token %d on %s is nobody's (provisional: %t)", h.Token, name, h.Provisional)
			} else {
				delete(orphans, h.Token)
			}
		}
	}
	waited := false
	for _, l := range s.leases {
		waited = waited || l.name == name && l.waits()
	}
	if held || !waited {
		delete(idle, name)
		return
	}
	watchFor(s, idle, name, serving, "P5: %s is free, and somebody waits for it", name)
}

// waits reports whether a client waits whose gateway has known it for a while.
func (l *simLease) waits() bool {
	return l.asking > 0 && !l.at.dead() && time.Since(l.since) > simTick
}

// owned reports whether a lease is its client's, or is to end with its TTL.
func (s *simulation) owned(l *simLease) bool {
	return l != nil && (l.excused || l.gone.IsZero() && l.asking == 0)
}

// watchFor notes since when something is so, and finds fault with it after a while
// of calm.
func watchFor[K comparable](s *simulation, since map[K]time.Time, k K, serving bool, format string, args ...any) {
	now := time.Now()
	if _, known := since[k]; !known || !serving {
		since[k] = now
	}
	from := since[k]
	if s.calm.After(from) {
		from = s.calm
	}
	if now.Sub(from) > simPatient {
		s.faultLocked(format+", for %s of calm", append(args, now.Sub(from))...)
		since[k] = now
	}
}
