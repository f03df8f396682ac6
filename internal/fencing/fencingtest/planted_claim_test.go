//go:build !race

package fencingtest

import (
	"cmp"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

type claimOp = fencing.ClaimRequest

// refusedClaim is a change of what a claim with a stale token has come to.
func refusedClaim(change func(m *moment, op claimOp, h *fencing.Holding)) func(*moment) {
	return func(m *moment) {
		if op, ok := m.op.(claimOp); ok && m.out.Code() == fencing.CodeStaleToken {
			change(m, op, m.own())
		}
	}
}

// claimAnyway makes the token of the operation that of the lease.
func claimAnyway(m *moment, op claimOp, h *fencing.Holding) {
	h.Token, h.Claimed = op.Token, true
	m.put(h)
	r := m.record()
	r.LastToken, m.state.Counter = max(r.LastToken, op.Token), max(m.state.Counter, op.Token)
	m.out.Err, m.out.Holder = nil, h.Holder
}

// staleClaim refuses a claim that was accepted.
func staleClaim(m *moment) {
	*m.state = *m.was
	m.out = fencing.Outcome{Now: m.now, Err: &fencing.Error{Code: fencing.CodeStaleToken, CurrentToken: m.record().LastToken}}
}

// others reports whether another holder has a token.
func (m *moment) others(token fencing.Token) bool {
	for h := range m.record().Holders.All() {
		if h.Token == token && h.Lease != m.lease().Public() {
			return true
		}
	}
	return false
}

// plantedInClaims are defects in the claim and in a writer's intent.
var plantedInClaims = []defect{
	{what: "a claim raises to at least its token", step: tampered(nil, refusedClaim(func(m *moment, op claimOp, h *fencing.Holding) {
		if op.Token = max(op.Token, h.Token); h.Mode == fencing.ModeExclusive {
			claimAnyway(m, op, h)
		}
	}))},
	{what: "a claim makes its token that of the lease, whatever it is", step: tampered(nil, refusedClaim(claimAnyway))},
	{what: "the own token can't be claimed", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		if h := m.ownBefore(); h != nil && h.Token == op.Token && !h.Claimed {
			staleClaim(m)
		}
	}))},
	{what: "a claim can't be repeated", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		if h := m.ownBefore(); h != nil && h.Token == op.Token && h.Claimed {
			staleClaim(m)
		}
	}))},
	{what: "a claim does not raise the last token", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		m.record().LastToken = m.was.Records[op.Name].LastToken
	}))},
	{what: "a claim lowers the last token", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		m.record().LastToken = op.Token
	}))},
	{what: "nobody is told that the token was claimed", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		m.mend(func(h *fencing.Holding) { h.Claimed = false })
	}))},
	{what: "a claim may be lowered", step: tampered(nil, refusedClaim(func(m *moment, op claimOp, h *fencing.Holding) {
		if h.Claimed && op.Token < h.Token && op.Token > m.record().EndedToken && !m.others(op.Token) {
			claimAnyway(m, op, h)
		}
	}))},
	{what: "a claim may be raised", step: tampered(nil, refusedClaim(func(m *moment, op claimOp, h *fencing.Holding) {
		if h.Claimed && op.Token > max(h.Token, m.record().LastToken) {
			claimAnyway(m, op, h)
		}
	}))},
	{what: "two leases have one token", step: tampered(nil, refusedClaim(func(m *moment, op claimOp, h *fencing.Holding) {
		if !h.Claimed && op.Token > m.record().EndedToken {
			claimAnyway(m, op, h)
		}
	}))},
	{what: "a claim does not look at what has ended", step: tampered(beforeOf(func(m *moment, _ *claimOp) {
		if r := m.record(); r != nil {
			r.EndedToken = 0
		}
	}), nil)},
	{what: "a shared lease claims above all", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		if h := m.ownBefore(); h != nil && h.Mode == fencing.ModeShared && h.Token != op.Token && op.Token <= m.was.Records[op.Name].LastToken {
			staleClaim(m)
		}
	}))},
	{what: "an exclusive lease claims above what was issued to it", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		if h := m.ownBefore(); h != nil && h.Mode == fencing.ModeExclusive && op.Token < h.Token {
			staleClaim(m)
		}
	}))},
	{what: "a repeated claim is measured by what has ended", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		if h := m.ownBefore(); h != nil && h.Claimed && op.Token <= m.record().EndedToken {
			staleClaim(m)
		}
	})), casesOnly: true},
	{what: "any token may be claimed, however far ahead", step: tampered(beforeOf(func(m *moment, op *claimOp) {
		if !m.skewed() && m.own() != nil {
			m.state.Counter = max(m.state.Counter, op.Token)
		}
	}), nil), casesOnly: true},
	{what: "a claim takes any secret", step: tampered(trustFor[claimOp], nil)},
	{what: "a skewed gateway claims", step: tampered(func(m *moment) {
		if _, ok := m.op.(claimOp); ok {
			m.guard.Sent = 0
		}
	}, nil)},
	{what: "a provisional lease may be claimed", step: tampered(beforeOf(func(m *moment, op *claimOp) {
		if h := m.own(); h != nil && h.Provisional && !m.skewed() {
			fencing.Step(m.state, m.now, m.guard, confirmOp{Name: op.Name, Lease: op.Lease, Stamp: h.Stamp})
		}
	}), nil)},
	{what: "who holds is told in the order of grants", step: tampered(nil, func(m *moment) {
		if m.out.Lock != nil {
			slices.SortStableFunc(m.out.Lock.Holders, func(a, b fencing.Holder) int { return cmp.Compare(a.AcquiredAt, b.AcquiredAt) })
		}
	})},
	{what: "a claim is a renewal", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		m.mend(func(h *fencing.Holding) { h.ExpiresAt = max(h.ExpiresAt, m.now.Add(h.TTL)) })
	}))},
	{what: "what was claimed can't be taken back", step: tampered(nil, afterOf(func(m *moment, op claimOp) {
		h := m.own()
		h.Stamp = ""
		m.put(h)
	}))},
	{what: "a renewal forgets that the token was claimed", step: tampered(nil, afterOf(func(m *moment, _ renewOp) {
		m.mend(func(h *fencing.Holding) { h.Claimed = false })
	}))},
	{what: "a refused claim does not tell the last token", step: tampered(nil, refusedClaim(func(m *moment, _ claimOp, _ *fencing.Holding) {
		m.out.Err.CurrentToken = 0
	}))},
	{what: "a refused claim tells the token of the lease", step: tampered(nil, refusedClaim(func(m *moment, _ claimOp, h *fencing.Holding) {
		m.out.Err.CurrentToken = h.Token
	}))},
	{what: "a refused claim does not tell the one before", step: tampered(nil, refusedClaim(func(m *moment, _ claimOp, _ *fencing.Holding) {
		m.out.Err.CurrentToken = m.record().LastToken
	}))},

	// A writer's intent.
	{what: "an intent keeps nobody out", step: tampered(beforeOf(func(_ *moment, op *acquireOp) { op.Intent = 0 }), nil)},
	{what: "an intent lasts a microsecond longer", step: tampered(beforeOf(func(_ *moment, op *acquireOp) {
		if op.Intent > 0 {
			op.Intent += time.Microsecond
		}
	}), nil), casesOnly: true},
	{what: "an intent lasts until its writer is in", step: tampered(beforeOf(func(m *moment, _ *acquireOp) {
		if r := m.record(); r != nil && r.Intent.Until > 0 {
			r.Intent.Until = max(r.Intent.Until, m.now+1)
		}
	}), nil)},
	{what: "an intent outlasts its writer's lease", step: tampered(nil, afterOf(func(m *moment, op acquireOp) {
		if was := m.was.Records[op.Name]; was != nil && m.granted() && was.Intent.Lease == op.Lease.Public() {
			m.record().Intent = was.Intent
		}
	})), casesOnly: true},
	{what: "the first writer's intent stays", step: tampered(nil, func(m *moment) {
		if was := m.was.Records[m.op.LockName()]; was != nil && m.record() != nil && was.Intent.Until > m.now {
			m.record().Intent = was.Intent
		}
	}), casesOnly: true},
	{what: "a writer that is refused for another one has an intent", step: tampered(nil, func(m *moment) {
		if op, ok := m.op.(acquireOp); ok && m.out.Code() == fencing.CodeLocked && op.Intent > 0 && op.Mode != fencing.ModeShared && m.holder() != nil {
			m.record().Intent = fencing.Intent{Lease: op.Lease.Public(), Until: m.now.Add(op.Intent)}
		}
	})},
	{what: "an intent keeps those out who wait", step: tampered(beforeOf(func(m *moment, op *acquireOp) {
		if r := m.record(); r != nil && m.now < r.Intent.Until && op.Mode == fencing.ModeShared && len(m.waiting()) == 0 {
			op.Wait = 0
		}
	}), nil)},
}
