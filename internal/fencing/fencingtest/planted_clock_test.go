//go:build !race

package fencingtest

import "fencepost/internal/fencing"

// written is a change after an operation, while the clocks differ, on a name that is
// remembered.
func written(change func(m *moment, r *fencing.Record)) func(*moment) {
	return func(m *moment) {
		if r := m.record(); r != nil && m.skewed() {
			change(m, r)
		}
	}
}

// plantedInClocks are defects in what is written while the clocks differ.
var plantedInClocks = []defect{
	{what: "a renewal while the clocks differ counts by the store's clock alone", step: tampered(nil, written(func(m *moment, _ *fencing.Record) {
		if h := m.own(); h != nil && h.SentAt != 0 {
			h.SetAt, h.SentAt = 0, 0
			m.put(h)
		}
	}))},
	{what: "a renewal while the clocks differ counts by the gateway's clock alone", step: tampered(nil, written(func(m *moment, _ *fencing.Record) {
		if h := m.own(); h != nil && h.SentAt > h.SetAt {
			h.SetAt, h.SentAt, h.ExpiresAt = 0, 0, h.ExpiresAt+h.SentAt-h.SetAt
			m.put(h)
		}
	}))},
	{what: "a hand-off is to be tried again by a clock that may be wrong", step: tampered(nil, written(func(m *moment, r *fencing.Record) {
		if r.RetryAt == fencing.AfterSkew {
			r.RetryAt = m.now
		}
	}))},
	{what: "a lock delay while the clocks differ counts by the store's clock alone", casesOnly: true, step: tampered(nil, written(func(_ *moment, r *fencing.Record) {
		r.DelaySetAt, r.DelaySentAt = 0, 0
	}))},
	{what: "a lock delay while the clocks differ takes the place of a longer one", casesOnly: true, step: tampered(nil, written(func(_ *moment, r *fencing.Record) {
		if r.DelaySentAt != 0 {
			r.DelayedOther = r.DelayedUntil + r.DelaySentAt - r.DelaySetAt
		}
	}))},
	{what: "while the clocks differ a holder is told what is left by the store's", step: tampered(nil, written(func(m *moment, _ *fencing.Record) {
		if h := m.own(); h != nil && m.out.Holder.Token != 0 {
			m.out.Holder.ExpiresAt = h.ExpiresAt
		}
	}))},
	{what: "a tombstone of a clock that is behind is over when that is right", casesOnly: true, step: tampered(nil, written(func(m *moment, _ *fencing.Record) {
		m.tombs(func(tomb fencing.Tombstone) fencing.Tombstone {
			tomb.Until = min(tomb.Until, tomb.At.Add(fencing.TombstoneTTL))
			return tomb
		})
	}))},
}
