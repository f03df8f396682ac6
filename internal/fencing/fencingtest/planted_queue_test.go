//go:build !race

package fencingtest

import (
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// beforeOf is a change of one kind of operation.
func beforeOf[T fencing.Op](change func(*moment, *T)) func(*moment) {
	return func(m *moment) {
		if op, ok := m.op.(T); ok {
			change(m, &op)
			var changed any = op
			m.op = changed.(fencing.Op)
		}
	}
}

// afterOf is a change of what one kind of operation has come to, unless it was
// refused.
func afterOf[T fencing.Op](change func(*moment, T)) func(*moment) {
	return func(m *moment) {
		if op, ok := m.op.(T); ok && m.out.Err == nil {
			change(m, op)
		}
	}
}

// withoutQueue hides the queue from an operation if that is to be.
func withoutQueue(when func(*moment) bool) stepFunc {
	return func(s *fencing.State, now fencing.Instant, guard fencing.Guard, op fencing.Op) fencing.Outcome {
		m := &moment{state: s, now: now, guard: guard, op: op, was: s}
		r := m.record()
		if r == nil || !when(m) {
			return fencing.Step(s, now, guard, op)
		}
		queue := r.Queue
		r.Queue = fencing.Queue{}
		out := fencing.Step(s, now, guard, op)
		if r = m.record(); r != nil {
			r.Queue = queue
		}
		return out
	}
}

// alwaysHeard makes gateways live for ever.
func alwaysHeard(m *moment, gateways ...fencing.Gateway) {
	for _, gateway := range gateways {
		if _, known := m.state.Gateways.Seen[gateway]; known && !m.skewed() {
			m.state.Gateways.Seen[gateway] = m.now
		}
	}
}

type (
	acquireOp = fencing.AcquireRequest
	releaseOp = fencing.ReleaseRequest
	renewOp   = fencing.RenewRequest
	confirmOp = fencing.ConfirmRequest
	leaveOp   = fencing.LeaveRequest
)

// plantedInQueues are defects in what several holders and waiters are.
var plantedInQueues = []defect{
	// Limits that change.
	{what: "a limit that was raised hands nothing on", step: withoutQueue(func(m *moment) bool {
		op, ok := m.op.(renewOp)
		return ok && op.Limit > 0
	})},
	{what: "a limit is not lowered below what is held", step: tampered(beforeOf(func(m *moment, op *renewOp) {
		if own := m.own(); own != nil && op.Limit > 0 && own.Limit > op.Limit {
			op.Limit = min(own.Limit, max(op.Limit, m.record().Holders.Permits()))
		}
	}), nil)},
	{what: "who waits keeps its limit", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if p, ok := m.place(); ok && p.Ask.Limit > 0 && op.Limit >= max(1, p.Ask.Permits) {
			op.Limit = p.Ask.Limit
		}
	}), nil)},
	{what: "a gateway that asks again states a limit anew", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if p, ok := m.place(); ok && op.Again && op.Stamp == p.Stamp && p.Ask.Limit > 0 && op.Limit >= max(1, p.Ask.Permits) {
			op.Again = false
		}
	}), nil)},

	// P5: fair.
	{what: "a newcomer that fits overtakes the queue", step: withoutQueue(func(m *moment) bool {
		op, ok := m.op.(acquireOp)
		_, queued := m.place()
		return ok && op.Wait == 0 && !queued
	})},
	{what: "a retry goes to the end of the queue", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if p, ok := m.place(); ok && p.RestTill == 0 && p.Secret.Equal(op.Lease.Hash()) && !m.skewed() {
			fencing.Step(m.state, m.now, m.guard, leaveOp{Name: op.Name, Lease: op.Lease, Stamp: p.Stamp})
		}
	}), nil)},
	{what: "the newest waiter is the first", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if _, ok := m.place(); ok || op.Wait == 0 || m.skewed() || m.own() != nil || len(m.waiting()) == 0 {
			return
		}
		waiting := m.waiting()
		m.record().Queue = fencing.Queue{}
		out := fencing.Step(m.state, m.now, m.guard, *op)
		for _, p := range waiting {
			m.rejoin(p)
		}
		if out.Waits() {
			op.Stamp = m.waiting()[0].Stamp
		}
	}), nil)},
	{what: "who comes back to a resting place comes last", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if p, ok := m.place(); ok && p.RestTill != 0 && !m.skewed() {
			waiting := m.waiting()
			m.record().Queue = fencing.Queue{}
			for _, w := range waiting {
				m.rejoin(w)
			}
		}
	}), nil)},
	{what: "a resting place is served", step: tampered(func(m *moment) {
		if r := m.record(); r != nil && !m.skewed() {
			if _, looks := m.op.(fencing.InspectRequest); looks {
				return
			}
			for _, p := range r.Queue.Resting() {
				m.rejoin(p)
			}
		}
	}, nil)},
	{what: "a stream of a set that comes late takes over", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if h := m.own(); h != nil {
			op.Epoch = max(op.Epoch, h.Epoch)
		}
	}), nil)},
	{what: "a stream of a set takes back what has lingered since", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if h := m.own(); h != nil && h.Attached == "" {
			op.Epoch = max(op.Epoch, h.Epoch)
		}
	}), nil)},
	{what: "a stream of a set is replaced by its own takeover", step: tampered(nil, afterOf(func(m *moment, op acquireOp) {
		if was := m.ownBefore(); was != nil && op.Set != "" && op.Attach && !op.Again && was.Attached == op.Stamp && was.Epoch > op.Epoch && m.out.Err == nil {
			m.out = fencing.Outcome{Now: m.out.Now, Err: fencing.ReplacedError()}
		}
	}))},
	{what: "a stream for one name comes late", step: tampered(nil, afterOf(func(m *moment, op acquireOp) {
		if was := m.ownBefore(); was != nil && op.Set == "" && op.Attach && !op.Again && was.Attached != op.Stamp && was.Epoch > op.Epoch && m.out.Err == nil {
			m.out = fencing.Outcome{Now: m.out.Now, Err: fencing.ReplacedError()}
		}
	}))},
	{what: "an old stream releases", step: tampered(beforeOf(func(_ *moment, op *releaseOp) { op.Stamp = "" }), nil)},
	{what: "a stream that was replaced renews", step: tampered(beforeOf(func(m *moment, op *renewOp) {
		if h := m.own(); h != nil && op.Stamp != h.Attached {
			op.Stamp = ""
		}
	}), nil)},
	{what: "a stream of which the store has forgotten does not renew", step: tampered(beforeOf(func(_ *moment, op *renewOp) { op.Epoch = 0 }), nil)},
	{what: "a stream of which the store has forgotten does not release", step: tampered(beforeOf(func(_ *moment, op *releaseOp) {
		if op.Linger == 0 {
			op.Epoch = 0
		}
	}), nil)},
	{what: "a stream of which the store has forgotten leaves nothing to linger", step: tampered(beforeOf(func(_ *moment, op *releaseOp) {
		if op.Linger > 0 {
			op.Epoch = 0
		}
	}), nil)},
	{what: "what hangs on a stream whose client has gone stays if the store has forgotten of it", step: tampered(beforeOf(func(_ *moment, op *fencing.TakeBackRequest) { op.Epoch = 0 }), nil)},
	{what: "a stream that was told of more comes back to what it left to linger", step: tampered(nil, afterOf(func(m *moment, op releaseOp) {
		if was := m.ownBefore(); was != nil && m.out.Holder.Epoch > was.Epoch+1 {
			m.mend(func(h *fencing.Holding) { h.Epoch = was.Epoch + 1 })
		}
	}))},
	{what: "a request that is no stream takes over uncounted", step: tampered(nil, afterOf(func(m *moment, op acquireOp) {
		if was := m.ownBefore(); was != nil && m.out.Holder.Epoch > was.Epoch && !op.Attach {
			m.mend(func(h *fencing.Holding) { h.Epoch = was.Epoch })
		}
	}))},
	{what: "a stream comes back by a renewal to what it left to linger", step: tampered(nil, afterOf(func(m *moment, _ releaseOp) {
		if was := m.ownBefore(); was != nil && m.out.Holder.Epoch > was.Epoch {
			m.mend(func(h *fencing.Holding) { h.Epoch = was.Epoch })
		}
	}))},
	{what: "what hangs on a stream whose client has gone stays", step: tampered(beforeOf(func(_ *moment, op *fencing.TakeBackRequest) { op.Left = false }), nil)},
	{what: "what hangs on a stream whose client has gone does not linger", step: tampered(beforeOf(func(_ *moment, op *fencing.TakeBackRequest) { op.Linger = 0 }), nil)},
	{what: "every take-back releases what hangs on its stream", step: tampered(beforeOf(func(_ *moment, op *fencing.TakeBackRequest) { op.Left = true }), nil)},
	{what: "who asks again takes over from a newer request", step: tampered(beforeOf(func(_ *moment, op *acquireOp) { op.Again = false }), nil)},
	{what: "a resting place keeps newcomers out", step: tampered(nil, afterOf(func(m *moment, op acquireOp) {
		r := m.was.Records[op.Name]
		if _, queued := m.place(); r != nil && !queued && m.granted() && len(r.Queue.Resting()) > 0 {
			*m.state = *m.was
			m.out = fencing.Outcome{Now: m.now, Err: &fencing.Error{Code: fencing.CodeLocked, Lock: m.state.View(op.Name, m.now, m.guard, false)}}
		}
	}))},
	{what: "a place rests a second longer", step: tampered(func(m *moment) {
		r := m.record()
		if _, looks := m.op.(fencing.InspectRequest); r == nil || looks {
			return
		}
		for _, p := range r.Queue.Resting() {
			if p.RestTill <= m.now && p.RestTill.Add(time.Second) > m.now && !m.skewed() {
				m.rejoin(p)
			}
		}
	}, nil), casesOnly: true},
	{what: "resting places are counted", step: tampered(nil, func(m *moment) {
		if r := m.record(); m.out.Lock != nil && r != nil {
			m.out.Lock.Waiting += len(r.Queue.Resting())
		}
	})},
	{what: "places count from nought", step: tampered(nil, func(m *moment) {
		if m.out.Place != nil {
			m.out.Place.Position--
		}
	})},
	{what: "a request that no longer waits stays in the queue", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if _, ok := m.place(); ok && op.Wait == 0 {
			op.Wait = 1
		}
	}), nil)},
	{what: "every retry joins", step: tampered(nil, func(m *moment) { m.out.Joined = m.out.Waits() })},
	{what: "places that rest are not bounded", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if r := m.record(); r != nil && op.MaxWaiters > 0 {
			op.MaxWaiters += len(r.Queue.Resting())
		}
	}), nil)},
	{what: "how many wait is not bounded", step: tampered(beforeOf(func(_ *moment, op *acquireOp) { op.MaxWaiters = 0 }), nil)},
	{what: "one waiter more than may", step: tampered(beforeOf(func(_ *moment, op *acquireOp) {
		if op.MaxWaiters > 0 {
			op.MaxWaiters++
		}
	}), nil)},
	{what: "an ended lease id may queue", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if op.Wait > 0 && !m.skewed() {
			delete(m.state.Tombstones, fencing.EndedLease{Name: op.Name, Lease: op.Lease.Public()})
		}
	}), nil)},
	{what: "any secret takes a place over", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if p, ok := m.place(); ok && !p.Secret.Equal(op.Lease.Hash()) {
			for _, label := range everyLabel() {
				for _, lease := range []fencing.LeaseID{leaseOf(label), leaseOf(label + "'")} {
					if p.Secret.Equal(lease.Hash()) {
						op.Lease = lease
					}
				}
			}
		}
	}), nil)},

	// Whose request it is.
	{what: "nobody is told that he was replaced", step: tampered(nil, func(m *moment) { m.out.Replaced = nil })},
	{what: "leave ignores the stamp", step: tampered(beforeOf(func(m *moment, op *leaveOp) {
		if p, ok := m.place(); ok && p.Secret.Equal(op.Lease.Hash()) {
			op.Stamp = p.Stamp
		}
	}), nil)},
	{what: "confirm ignores the stamp", step: tampered(beforeOf(func(m *moment, op *confirmOp) {
		if h := m.own(); h != nil {
			op.Stamp = h.Stamp
		}
	}), nil)},
	{what: "leaving ends a lease that came first", step: tampered(nil, afterOf(func(m *moment, op leaveOp) {
		if m.out.Holder.Token != 0 {
			fencing.Step(m.state, m.now, m.guard, fencing.TakeBackRequest{Name: op.Name, Lease: op.Lease, Stamp: op.Stamp})
		}
	}))},
	{what: "taking back does not give up a place", step: tampered(beforeOf(func(m *moment, op *fencing.TakeBackRequest) {
		if _, ok := m.place(); ok {
			op.Stamp = "none"
		}
	}), nil)},
	{what: "a grant that is taken back loses its place", step: tampered(func(m *moment) {
		if r := m.record(); r != nil {
			for _, h := range slices.Collect(r.Holders.All()) {
				h.Keep = false
				r.Holders.Put(h)
			}
		}
	}, nil)},

	// Gateways.
	{what: "the waiters of a silent gateway stay", step: tampered(func(m *moment) {
		for _, p := range m.waiting() {
			alwaysHeard(m, p.Gateway)
		}
	}, nil)},
	{what: "provisional leases don't lapse", step: tampered(func(m *moment) {
		if r := m.record(); r != nil {
			for h := range r.Holders.All() {
				alwaysHeard(m, h.Gateway)
			}
		}
	}, nil)},
	{what: "a gap in service is no excuse", step: tampered(func(m *moment) { m.state.Gateways.Heard, m.state.Gateways.Serving = m.now, 0 }, nil)},
	{what: "every gap is an excuse", step: tampered(func(m *moment) {
		g := &m.state.Gateways
		for gateway, seen := range g.Seen {
			if m.now >= g.Heard.Add(fencing.StallAfter) {
				g.Seen[gateway] = max(seen, g.Heard)
			}
		}
	}, nil)},
	{what: "a lease is a sign of life of the gateway it is handed to", step: tampered(nil, func(m *moment) {
		for i := range m.out.Granted {
			if m.out.Granted[i].Holder.Provisional {
				m.state.Gateways.Seen[m.out.Granted[i].Gateway] = m.now
			}
		}
	})},
	{what: "every hand-off is firm", step: tampered(nil, func(m *moment) {
		for i := range m.out.Granted {
			g := &m.out.Granted[i]
			g.Holder.Provisional = false
			h := ownIn(m.state.Records[g.Name], leaseIDOf(g.Holder.Lease))
			h.Provisional = false
			m.put(h)
		}
	})},
	{what: "every hand-off is provisional", step: tampered(func(m *moment) {
		if _, ok := m.op.(acquireOp); !ok {
			m.guard.Gateway = "another"
		}
	}, nil)},
	{what: "a confirmation does not start the TTL", step: tampered(nil, afterOf(func(m *moment, _ confirmOp) {
		if was := m.ownBefore(); was != nil {
			m.mend(func(h *fencing.Holding) { h.ExpiresAt = min(h.ExpiresAt, max(was.ExpiresAt, m.now+1)) })
		}
	}))},
	{what: "every confirmation starts the TTL", step: tampered(nil, afterOf(func(m *moment, _ confirmOp) {
		m.mend(func(h *fencing.Holding) { h.ExpiresAt = m.now.Add(h.TTL) })
	}))},
	{what: "a heartbeat is none", wrap: above(defective{beat: func(names []fencing.Name) ([]fencing.Name, bool) { return names, false }})},
	{what: "a heartbeat leaves alone what is due", wrap: above(defective{beat: func([]fencing.Name) ([]fencing.Name, bool) { return nil, true }})},
	{what: "a heartbeat does not tell what there is", wrap: above(defective{deaf: func(l fencing.Listener) fencing.Listener {
		return deaf{Listener: l, entries: func([]fencing.Entry) []fencing.Entry { return nil }}
	}})},
	{what: "a heartbeat tells of places alone", wrap: above(defective{deaf: func(l fencing.Listener) fencing.Listener {
		return deaf{Listener: l, entries: func(all []fencing.Entry) []fencing.Entry {
			return slices.DeleteFunc(all, func(e fencing.Entry) bool { return e.Provisional })
		}}
	}})},
	{what: "a heartbeat tells of no streams", wrap: above(defective{deaf: func(l fencing.Listener) fencing.Listener {
		return deaf{Listener: l, entries: func(all []fencing.Entry) []fencing.Entry {
			return slices.DeleteFunc(all, func(e fencing.Entry) bool { return e.Attached })
		}}
	}})},
	{what: "a renewal by a stream does not bring its entry", step: tampered(nil, afterOf(func(m *moment, _ renewOp) {
		if was := m.ownBefore(); was != nil {
			m.mend(func(h *fencing.Holding) {
				if h.Attached != was.Attached {
					h.Gateway = was.Gateway
				}
			})
		}
	}))},
	{what: "grants are not told", casesOnly: true, wrap: above(defective{deaf: func(l fencing.Listener) fencing.Listener {
		return deaf{Listener: l, granted: func(fencing.Grant) bool { return false }}
	}})},
	{what: "firm grants are not told", casesOnly: true, wrap: above(defective{deaf: func(l fencing.Listener) fencing.Listener {
		return deaf{Listener: l, granted: func(g fencing.Grant) bool { return g.Holder.Provisional }}
	}})},
	{what: "who was replaced is not told", casesOnly: true, wrap: above(defective{deaf: func(l fencing.Listener) fencing.Listener {
		return deaf{Listener: l, replaced: true}
	}})},

	// P1: tolerance and slots.
	{what: "a newcomer asks for its own tolerance only", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if r := m.record(); r != nil && m.own() == nil && op.Mode == fencing.ModeShared {
			for _, h := range slices.Collect(r.Holders.All()) {
				if h.Mode == fencing.ModeShared {
					h.Limit = 0
					r.Holders.Put(h)
				}
			}
		}
	}), nil)},
	{what: "slots are given twice", step: tampered(nil, func(m *moment) {
		for i := range m.out.Granted {
			g := &m.out.Granted[i]
			if g.Holder.Slot > 0 {
				h := ownIn(m.state.Records[g.Name], leaseIDOf(g.Holder.Lease))
				h.Slot = 0
				m.put(h)
				g.Holder = h.Holder
				if m.out.Holder.Token == h.Token {
					m.out.Holder = h.Holder
				}
			}
		}
	})},
	{what: "slots are never given again", step: tampered(nil, func(m *moment) {
		for i := range m.out.Granted {
			g := &m.out.Granted[i]
			h := ownIn(m.state.Records[g.Name], leaseIDOf(g.Holder.Lease))
			if was := m.was.Records[g.Name]; was != nil && h.Slot >= 0 && len(was.History) > 0 && h.Slot < h.Limit-1 {
				h.Slot++
				m.put(h)
				g.Holder = h.Holder
				if m.out.Holder.Token == h.Token {
					m.out.Holder = h.Holder
				}
			}
		}
	})},

	{what: "several permits count as one for others", step: tampered(nil, func(m *moment) {
		for i := range m.out.Granted {
			g := &m.out.Granted[i]
			if h := ownIn(m.state.Records[g.Name], leaseIDOf(g.Holder.Lease)); h.Permits > 1 {
				h.Permits = 1 // they are shown, and do not count
				m.put(h)
			}
		}
	})},
	{what: "who asks for several gets what there is", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if r := m.record(); r != nil && m.own() == nil && op.Permits > 1 {
			op.Permits = min(op.Permits, max(1, op.Limit-r.Holders.Permits()))
		}
	}), nil)},
	{what: "permits are not given back", step: tampered(beforeOf(func(m *moment, op *renewOp) {
		if h := m.own(); h != nil && op.Permits < h.Permits {
			op.Permits = 0
		}
	}), nil)},
	{what: "a renewal asks in vain for more permits", step: tampered(beforeOf(func(m *moment, op *renewOp) {
		if h := m.own(); h != nil && op.Permits > h.Permits {
			op.Permits = 0
		}
	}), nil)},
	{what: "what is given back is kept from others", casesOnly: true, step: withoutQueue(func(m *moment) bool {
		op, renews := m.op.(renewOp)
		return renews && op.Permits > 0
	})},

	// Re-entry and downgrade.
	{what: "a release unwinds one depth too few", step: tampered(beforeOf(func(_ *moment, op *releaseOp) {
		if op.Hold > 1 {
			op.Hold++
		}
	}), nil)},
	{what: "a retried release unwinds again", step: tampered(beforeOf(func(m *moment, op *releaseOp) {
		if h := m.own(); h != nil && op.Hold > h.Hold && h.Hold > 1 {
			op.Hold = h.Hold
		}
	}), nil)},
	{what: "deepening shortens", step: tampered(nil, afterOf(func(m *moment, op acquireOp) {
		if was := m.ownBefore(); was != nil && m.out.Holder.Hold > was.Hold {
			m.mend(func(h *fencing.Holding) { h.TTL, h.ExpiresAt = op.TTL, m.now.Add(op.TTL) })
		}
	}))},
	{what: "deepening does not extend", step: tampered(nil, afterOf(func(m *moment, _ acquireOp) {
		if was := m.ownBefore(); was != nil && m.out.Holder.Hold > was.Hold {
			m.mend(func(h *fencing.Holding) { h.TTL, h.ExpiresAt = was.TTL, was.ExpiresAt })
		}
	}))},
	{what: "depths may be skipped", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if h := m.own(); h != nil {
			op.Hold = min(op.Hold, h.Hold+1)
		}
	}), nil)},
	{what: "who deepened may be taken back", step: tampered(nil, afterOf(func(m *moment, _ acquireOp) {
		if was := m.ownBefore(); was != nil && m.out.Holder.Hold > was.Hold {
			h := m.own()
			h.Stamp = was.Stamp
			m.put(h)
		}
	}))},
	{what: "a downgrade hands nothing on", step: withoutQueue(func(m *moment) bool { _, ok := m.op.(renewOp); return ok })},
	{what: "a downgrade has no slot", step: tampered(nil, afterOf(func(m *moment, op renewOp) {
		if op.Limit > 0 {
			m.mend(func(h *fencing.Holding) { h.Slot = fencing.NoSlot })
		}
	}))},
	{what: "an upgrade is let through", step: tampered(beforeOf(func(m *moment, op *renewOp) {
		if h := m.own(); h != nil && op.Mode == fencing.ModeExclusive && h.Secret.Equal(op.Lease.Hash()) && m.record().Holders.Len() == 1 {
			h.Mode, h.Limit, h.Slot = fencing.ModeExclusive, 1, fencing.NoSlot
			m.put(h)
		}
	}), nil)},

	// Sets.
	{what: "a set is firm from the start", step: tampered(nil, afterOf(func(m *moment, _ acquireOp) {
		m.mend(func(h *fencing.Holding) { h.Provisional = false })
	}))},
	{what: "a lease id may be used for other names", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if p, ok := m.place(); ok {
			op.Set = p.Ask.Set
		} else if h := m.own(); h != nil {
			op.Set = h.Set
		}
	}), nil)},

	// Skew.
	{what: "while the clocks differ a release hands on", step: tampered(nil, afterOf(func(m *moment, op releaseOp) {
		if m.skewed() {
			fencing.Step(m.state, m.now, fencing.Guard{Gateway: m.guard.Gateway}, fencing.ExpireRequest{Name: op.Name})
		}
	}))},
	{what: "a skewed gateway confirms", step: tampered(func(m *moment) {
		if _, ok := m.op.(confirmOp); ok {
			m.guard.Sent = 0
		}
	}, nil)},

	// History.
	{what: "the history starts with the first", step: tampered(nil, func(m *moment) {
		m.out.Past = slices.Clone(m.out.Past)
		slices.Reverse(m.out.Past)
	})},
	{what: "the history forgets an expiry until it is noticed", step: tampered(nil, func(m *moment) {
		if r := m.record(); r != nil {
			m.out.Past = slices.DeleteFunc(slices.Clone(m.out.Past), func(e fencing.Ended) bool {
				_, held := r.Holders.WithToken(e.Holder.Token)
				return held
			})
		}
	})},
}

// leaseIDOf returns a lease id with a public part, and no secret of use.
func leaseIDOf(public fencing.LeasePublic) fencing.LeaseID {
	id, err := fencing.ParseLeaseID(string(public) + ".0000000000000000000000")
	if err != nil {
		panic(err)
	}
	return id
}

// TestDefectiveEventsAreFound plants defects in what a store tells of events.
func TestDefectiveEventsAreFound(t *testing.T) {
	patience = 50 * time.Millisecond
	t.Cleanup(func() { patience = 5 * time.Second })
	var last fencing.Event
	for what, event := range map[string]func(fencing.Event) []fencing.Event{
		"none":               nil,
		"some are lost":      func(e fencing.Event) []fencing.Event { return []fencing.Event{e}[:min(1, len(e.Owner))] },
		"some come twice":    func(e fencing.Event) []fencing.Event { return []fencing.Event{e, e} },
		"no token":           func(e fencing.Event) []fencing.Event { e.Token = 0; return []fencing.Event{e} },
		"no id":              func(e fencing.Event) []fencing.Event { e.ID = ""; return []fencing.Event{e} },
		"each is of another": func(e fencing.Event) []fencing.Event { e, last = last, e; return []fencing.Event{e} },
	} {
		open := func(testing.TB) Backend {
			b := newModelBackend(twoGateways)
			b.wrap = above(defective{event: event})
			return b
		}
		var err error
		for seed := uint64(1); err == nil && seed <= 10; seed++ { // not every history has an event of every kind
			err = watchedHistory(t, open, twoGateways, seed)
		}
		if (err == nil) != (event == nil) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
