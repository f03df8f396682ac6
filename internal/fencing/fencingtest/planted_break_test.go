//go:build !race

package fencingtest

import (
	"slices"

	"fencepost/internal/fencing"
)

type breakOp = fencing.BreakRequest

// subject returns a copy of the holding that a break names, as it was before, or nil.
func (m *moment) subject(op *breakOp) *fencing.Holding {
	if r := m.was.Records[op.Name]; r != nil {
		if h, found := r.Holders.WithToken(op.Token); found {
			return &h
		}
	}
	return nil
}

// notices is a change of a lease that was just given notice.
func notices(change func(m *moment, op *breakOp, h *fencing.Holding)) func(*moment) {
	return func(m *moment) {
		op, ok := m.op.(breakOp)
		if !ok || !m.out.Noticed {
			return
		}
		h, _ := m.record().Holders.WithToken(op.Token)
		change(m, &op, &h)
		m.put(&h)
		m.out.Holder = h.Holder
	}
}

// noticed is a change of a holder that has been given notice, before an operation.
func noticed(change func(m *moment, h *fencing.Holding)) func(*moment) {
	return func(m *moment) {
		if h := m.holder(); h != nil && h.BreakAt != 0 && !m.skewed() && !fencing.OnlyLooks(m.op) {
			change(m, h)
			m.put(h)
		}
	}
}

// unbounded is a change of a lease that has been given notice, after it has been asked for.
func unbounded[T fencing.Op](m *moment) {
	if _, ok := m.op.(T); ok && m.out.Err == nil && m.out.Holder.BreakAt != 0 && m.holder() != nil && m.holder().Lease == m.out.Holder.Lease {
		h := m.holder()
		if h.ExpiresAt == h.BreakAt {
			h.ExpiresAt = m.now.Add(h.TTL)
		}
		m.put(h)
		m.out.Holder = h.Holder
	}
}

// plantedInBreaks are defects in breaks with notice.
var plantedInBreaks = []defect{
	{what: "a notice brings an expiry forward", step: tampered(nil, notices(func(m *moment, op *breakOp, h *fencing.Holding) {
		h.ExpiresAt = min(h.ExpiresAt, m.now.Add(op.Notice))
	}))},
	{what: "a notice ends before the lease", step: tampered(nil, notices(func(m *moment, op *breakOp, h *fencing.Holding) {
		h.BreakAt = m.now.Add(op.Notice)
	}))},
	{what: "the later of two notices counts", step: tampered(beforeOf(func(m *moment, op *breakOp) {
		if h := m.subject(op); h != nil && op.Notice > 0 {
			h.BreakAt, h.BreakReason = 0, ""
			m.put(h)
		}
	}), nil)},
	{what: "the reason of the first notice stays", casesOnly: true, step: tampered(nil, notices(func(m *moment, op *breakOp, h *fencing.Holding) {
		if was := m.subject(op); was.BreakAt != 0 {
			h.BreakReason = was.BreakReason
		}
	}))},
	{what: "a notice is given twice", step: tampered(nil, func(m *moment) {
		if op, ok := m.op.(breakOp); ok && op.Notice > 0 && m.out.Holder.Token != 0 && !m.out.Noticed {
			h := m.subject(&op)
			h.BreakAt++
			m.put(h)
			m.out.Holder = h.Holder
		}
	})},
	{what: "a notice does not bound renewals", step: tampered(nil, unbounded[fencing.RenewRequest])},
	{what: "a notice does not bound re-entry", step: tampered(nil, unbounded[fencing.AcquireRequest])},
	{what: "the end of a notice is an expiry", step: tampered(noticed(func(m *moment, h *fencing.Holding) {
		if h.BreaksAtEnd() && !h.Live(m.now) {
			h.BreakAt++
		}
	}), nil)},
	{what: "a lease that was given notice is broken when it runs out", step: tampered(noticed(func(m *moment, h *fencing.Holding) {
		if !h.Live(m.now) {
			h.BreakAt = h.ExpiresAt
		}
	}), nil)},
	{what: "a notice keeps an administrator from breaking", step: tampered(beforeOf(func(m *moment, op *breakOp) {
		if h := m.subject(op); h != nil && h.BreakAt > m.now && op.Notice == 0 {
			op.Notice = h.BreakAt.Sub(m.now)
		}
	}), nil)},
	{what: "a provisional lease is given notice", step: tampered(beforeOf(func(m *moment, op *breakOp) {
		if h := m.subject(op); h != nil && h.Provisional && op.Notice > 0 {
			op.Token = 1
		}
	}), nil)},
	{what: "notice is given while the clocks differ", step: tampered(beforeOf(func(m *moment, op *breakOp) {
		if op.Notice > 0 {
			m.guard.Sent = m.now
		}
	}), nil)},
	{what: "a lease that was broken in time is not remembered", step: tampered(nil, func(m *moment) {
		for _, e := range m.out.Ended {
			if r := m.record(); r != nil && e.Reason == fencing.ReasonBroken && e.Holder.BreaksAtEnd() {
				r.Broken = slices.DeleteFunc(slices.Clone(r.Broken), func(t fencing.Token) bool { return t == e.Holder.Token })
			}
		}
	})},
}

type evictOp = fencing.EvictRequest

// evicts is a change of what an eviction that found a place has come to.
func evicts(change func(m *moment, op evictOp)) func(*moment) {
	return afterOf(func(m *moment, op evictOp) {
		if m.out.Evicted != nil {
			change(m, op)
		}
	})
}

// evictedLease is the key of the tombstone of whom an eviction names.
func evictedLease(op evictOp) fencing.EndedLease {
	return fencing.EndedLease{Name: op.Name, Lease: op.Waiter}
}

// plantedInEvictions are defects in evictions.
var plantedInEvictions = []defect{
	{what: "who was evicted may come again", step: tampered(nil, evicts(func(m *moment, op evictOp) {
		delete(m.state.Tombstones, evictedLease(op))
	}))},
	{what: "who was evicted is not told why", step: tampered(nil, evicts(func(m *moment, op evictOp) {
		key := evictedLease(op)
		tomb := m.state.Tombstones[key]
		tomb.BreakReason = ""
		m.state.Tombstones[key] = tomb
	}))},
	{what: "the request of who was evicted is not told to ask", step: tampered(nil, evicts(func(m *moment, _ evictOp) {
		m.out.Evicted.Request = nil
	}))},
	{what: "the message to who was evicted is lost", casesOnly: true, wrap: above(defective{deaf: func(l fencing.Listener) fencing.Listener {
		return deaf{Listener: l, ask: true}
	}})},
	{what: "an eviction hands nothing on", step: tampered(beforeOf(func(m *moment, _ *evictOp) {
		if r := m.record(); r != nil {
			r.RetryAt = 1 // as if a step before had left something to do
		}
	}), nil)},
	{what: "a place that rests is not evicted", step: tampered(beforeOf(func(m *moment, op *evictOp) {
		if r := m.record(); r != nil {
			for _, p := range r.Queue.Resting() {
				if p.Ask.Lease.Public() == op.Waiter {
					op.Waiter = "none"
				}
			}
		}
	}), nil)},
	{what: "a holder is evicted", step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(evictOp); ok && m.out.Code() == fencing.CodeConflict {
			m.out.Err = nil
		}
	})},
	{what: "an eviction that is repeated finds nobody", casesOnly: true, step: tampered(nil, func(m *moment) {
		if _, ok := m.op.(evictOp); ok && m.out.Err == nil && m.out.Evicted == nil {
			m.out.Err = fencing.NoWaiterError()
		}
	})},
	{what: "an eviction that is repeated changes the reason", casesOnly: true, step: tampered(nil, func(m *moment) {
		if op, ok := m.op.(evictOp); ok && m.out.Err == nil && m.out.Evicted == nil {
			key := evictedLease(op)
			tomb := m.state.Tombstones[key]
			tomb.BreakReason = op.BreakReason
			m.state.Tombstones[key] = tomb
		}
	})},
	{what: "the next in the queue goes with who is evicted", step: tampered(nil, evicts(func(m *moment, _ evictOp) {
		if waiting := m.waiting(); len(waiting) > 0 {
			m.record().Queue = fencing.Queue{}
			for _, p := range waiting[1:] {
				m.rejoin(p)
			}
		}
	}))},
	{what: "somebody is evicted while the clocks differ", step: tampered(beforeOf(func(m *moment, _ *evictOp) {
		m.guard.Sent = m.now
	}), nil)},
}
