//go:build !race

package fencingtest

import (
	"time"

	"fencepost/internal/fencing"
)

// arriving returns Arrive with something done to its argument before, and to the
// state after. Either may be nil.
func arriving(before func(*fencing.State, *fencing.Arrival), after func(was, is *fencing.State, now fencing.Instant, a fencing.Arrival)) arriveFunc {
	return func(s *fencing.State, now fencing.Instant, a fencing.Arrival) fencing.Quarantine {
		was, asked := s.Clone(), a
		if before != nil {
			before(s, &a)
		}
		fencing.Arrive(s, now, a)
		if after != nil {
			after(was, s, now, asked)
		}
		return s.Quarantine
	}
}

// noted is a step whose TTLs count for something else; who says which count.
func noted(which func(m *moment) bool) stepFunc {
	return tampered(nil, func(m *moment) {
		if which(m) {
			until := m.state.Quarantine.Until
			m.state.Quarantine = m.was.Quarantine
			m.state.Quarantine.Until = until
		}
	})
}

// inQuarantine reports whether nothing new is granted.
func (m *moment) inQuarantine() bool { return m.state.Quarantine.Until > m.now }

// plantedInQuarantines are defects in what follows when a store may have forgotten.
var plantedInQuarantines = []defect{
	{what: "a quarantine is not heeded", step: tampered(func(m *moment) { m.state.Quarantine.Until = 0 }, nil)},
	{what: "a quarantine ends a microsecond early", step: tampered(func(m *moment) {
		if m.state.Quarantine.Until == m.now+1 {
			m.state.Quarantine.Until--
		}
	}, nil)},
	{what: "a quarantine lasts a microsecond longer", step: tampered(func(m *moment) {
		if m.state.Quarantine.Until == m.now {
			m.state.Quarantine.Until++
		}
	}, nil)},
	{what: "a renewal is refused in a quarantine", step: tampered(nil, afterOf(func(m *moment, _ renewOp) {
		if m.inQuarantine() {
			*m.state = *m.was
			m.out = fencing.Outcome{Now: m.now, Err: fencing.QuarantineError(m.state.Quarantine.Until.Sub(m.now))}
		}
	}))},
	{what: "a retry is refused in a quarantine", step: tampered(nil, afterOf(func(m *moment, op acquireOp) {
		if m.inQuarantine() && m.ownBefore() != nil && m.out.Holder.Token != 0 {
			*m.state = *m.was
			m.out = fencing.Outcome{Now: m.now, Err: fencing.QuarantineError(m.state.Quarantine.Until.Sub(m.now))}
		}
	}))},
	{what: "a provisional lease is confirmed in a quarantine", step: tampered(beforeOf(func(m *moment, _ *confirmOp) { m.state.Quarantine.Until = 0 }), nil)},
	{what: "a request asked again makes its provisional lease firm in a quarantine", step: tampered(beforeOf(func(m *moment, _ *acquireOp) {
		if own := m.ownBefore(); own != nil && own.Provisional {
			m.state.Quarantine.Until = 0
		}
	}), nil)},
	{what: "a lease that may have been taken back is told in a quarantine", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if own := m.ownBefore(); own != nil && !own.Provisional && own.Stamp != op.Stamp {
			m.state.Quarantine.Until = 0
		}
	}), nil)},
	{what: "a quarantine is told as held", step: tampered(nil, func(m *moment) {
		if m.out.Code() == fencing.CodeQuarantined {
			m.out.Err = &fencing.Error{Code: fencing.CodeLocked, Lock: m.state.View(m.op.LockName(), m.now, m.guard, false)}
		}
	})},
	{what: "held is told as a quarantine", step: tampered(nil, func(m *moment) {
		if m.out.Code() == fencing.CodeLocked && m.inQuarantine() && m.holder() != nil {
			m.out.Err = fencing.QuarantineError(m.state.Quarantine.Until.Sub(m.now))
		}
	})},
	{what: "nobody may wait for the end of a quarantine", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if _, queued := m.place(); m.inQuarantine() && m.record() == nil && !queued {
			op.Wait = 0
		}
	}), nil)},
	{what: "a release hands on in a quarantine", step: tampered(beforeOf(func(m *moment, _ *releaseOp) { m.state.Quarantine.Until = 0 }), nil)},
	{what: "what was not handed on in a quarantine is forgotten", step: tampered(nil, func(m *moment) {
		if r := m.record(); r != nil {
			r.RetryAt = 0
		}
	})},
	{what: "what was not handed on in a quarantine waits a minute more", step: tampered(nil, func(m *moment) {
		if r := m.record(); r != nil && r.RetryAt > 0 {
			r.RetryAt = r.RetryAt.Add(time.Minute)
		}
	})},

	// Which TTLs are in use.
	{what: "the TTL of a grant does not count", step: noted(func(m *moment) bool { _, ok := m.op.(acquireOp); return ok && m.ownBefore() == nil })},
	{what: "the TTL of a renewal does not count", step: noted(func(m *moment) bool { _, ok := m.op.(renewOp); return ok })},
	{what: "the TTL of a deeper hold does not count", step: noted(func(m *moment) bool {
		op, ok := m.op.(acquireOp)
		return ok && m.ownBefore() != nil && op.Hold > 1
	})},
	{what: "the TTL of who was waiting does not count", step: noted(func(m *moment) bool { return len(m.out.Granted) > 0 && m.out.Holder.Token == 0 })},
	{what: "the TTL counts that max_hold cuts off", step: tampered(nil, func(m *moment) {
		if h := m.out.Holder; h.MaxHold > 0 && m.state.Quarantine.Longest(m.out.Now) > 0 {
			m.state.Quarantine.TTL = max(m.state.Quarantine.TTL, h.TTL)
		}
	})},
	{what: "a TTL is forgotten after one period", step: tampered(nil, func(m *moment) { m.state.Quarantine.Before = 0 })},
	{what: "a TTL is never forgotten", step: tampered(nil, func(m *moment) {
		m.state.Quarantine.Before = max(m.state.Quarantine.Before, m.was.Quarantine.Before, m.was.Quarantine.TTL)
	})},
	{what: "the last TTL counts, not the longest", step: tampered(nil, func(m *moment) {
		if h := m.out.Holder; m.out.Err == nil && h.Token != 0 && m.state.Quarantine.Period == m.was.Quarantine.Period {
			m.state.Quarantine.TTL = h.ExpiresAt.Sub(m.now)
		}
	})},

	// Arrivals.
	{what: "no arrival is a reason for a quarantine", arrive: arriving(nil, func(was, is *fencing.State, _ fencing.Instant, _ fencing.Arrival) {
		is.Quarantine.Until = was.Quarantine.Until
	})},
	{what: "the least is not looked at", arrive: arriving(func(_ *fencing.State, a *fencing.Arrival) { a.Least = 0 }, nil), casesOnly: true},
	{what: "the most is not looked at", arrive: arriving(func(_ *fencing.State, a *fencing.Arrival) {
		if a.Most > 0 {
			a.Most = time.Hour
		}
	}, nil)},
	{what: "a quarantine can't be switched off", arrive: arriving(func(_ *fencing.State, a *fencing.Arrival) {
		if a.Most == 0 {
			a.Most = 5 * time.Minute
		}
	}, nil)},
	{what: "what the gateway knows of TTLs does not count", arrive: arriving(func(_ *fencing.State, a *fencing.Arrival) { a.Longest = 0 }, nil)},
	{what: "what the gateway knows of TTLs is not remembered", arrive: arriving(nil, func(was, is *fencing.State, _ fencing.Instant, _ fencing.Arrival) {
		until, server := is.Quarantine.Until, is.Quarantine.Server
		is.Quarantine = was.Quarantine
		is.Quarantine.Until, is.Quarantine.Server = until, server
	})},
	{what: "what the partition knows of TTLs does not count", arrive: arriving(nil, func(was, is *fencing.State, now fencing.Instant, a fencing.Arrival) {
		forgetful := was.Clone()
		forgetful.Quarantine.TTL, forgetful.Quarantine.Before = 0, 0
		is.Quarantine.Until = fencing.Arrive(forgetful, now, a).Until
	})},
	{what: "the same server is a reason for a quarantine", arrive: arriving(func(s *fencing.State, a *fencing.Arrival) {
		a.Lost = a.Lost || a.Server == s.Quarantine.Server
	}, nil)},
	{what: "only the first server is a reason for a quarantine", arrive: arriving(func(s *fencing.State, a *fencing.Arrival) {
		a.Lossless = a.Lossless || s.Quarantine.Server != ""
	}, nil)},
	{what: "another server is a reason for a quarantine, though nothing was lost", arrive: arriving(func(_ *fencing.State, a *fencing.Arrival) { a.Lossless = false }, nil)},
	{what: "a loss is none with the same server", arrive: arriving(func(s *fencing.State, a *fencing.Arrival) {
		a.Lost = a.Lost && a.Server != s.Quarantine.Server
	}, nil)},
	{what: "a loss is none where another server took over", arrive: arriving(func(_ *fencing.State, a *fencing.Arrival) {
		a.Lost = a.Lost && !a.Lossless
	}, nil)},
	{what: "a quarantine is cut short by the next", arrive: arriving(func(s *fencing.State, a *fencing.Arrival) {
		if a.Server != s.Quarantine.Server {
			s.Quarantine.Until = 0
		}
	}, nil)},
	{what: "a second arrival does not put the end off", arrive: arriving(nil, func(was, is *fencing.State, now fencing.Instant, _ fencing.Arrival) {
		if was.Quarantine.Until > now {
			is.Quarantine.Until = was.Quarantine.Until
		}
	})},
	{what: "who knows of a longer TTL does not put the end off", arrive: arriving(nil, func(was, is *fencing.State, now fencing.Instant, a fencing.Arrival) {
		if was.Quarantine.Until > now && was.Quarantine.Server == a.Server && !a.Lost {
			is.Quarantine.Until = max(was.Quarantine.Until, min(a.Until, is.Quarantine.Until))
		}
	}), casesOnly: true},
	{what: "what was renewed at another server until now does not put the end off", arrive: arriving(func(_ *fencing.State, a *fencing.Arrival) { a.Late = false }, nil)},
	{what: "what the gateway knows of the end does not count", arrive: arriving(func(_ *fencing.State, a *fencing.Arrival) { a.Until = 0 }, nil)},
	{what: "switched off, what another gateway knows of the end counts", arrive: arriving(nil, func(_, is *fencing.State, _ fencing.Instant, a fencing.Arrival) {
		is.Quarantine.Until = max(is.Quarantine.Until, a.Until)
	})},
	{what: "who serves is not noted", arrive: arriving(nil, func(was, is *fencing.State, _ fencing.Instant, _ fencing.Arrival) {
		is.Quarantine.Server = was.Quarantine.Server
	})},
	{what: "losses are not heeded", step: tampered(func(m *moment) { m.guard.HeedLoss = false }, nil), casesOnly: true},
	{what: "losses are heeded for ever", arrive: arriving(func(_ *fencing.State, a *fencing.Arrival) { a.Floor = 0 }, nil), casesOnly: true},
}
