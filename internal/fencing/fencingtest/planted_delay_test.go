//go:build !race

package fencingtest

import (
	"time"

	"fencepost/internal/fencing"
)

// ends is a change after an operation that has ended a lease with a lock delay, by time or by
// a break.
func ends(change func(m *moment, r *fencing.Record, e *fencing.Ended)) func(*moment) {
	return func(m *moment) {
		for i := range m.out.Ended {
			if e, r := &m.out.Ended[i], m.record(); r != nil && e.Holder.LockDelay > 0 && e.Reason != fencing.ReasonReleased && r.DelayedUntil > m.now {
				change(m, r, e)
			}
		}
	}
}

// delayed is a change before an operation while nobody is granted the name for a delay.
func delayed(change func(m *moment, r *fencing.Record)) func(*moment) {
	return func(m *moment) {
		if r := m.record(); r != nil && r.DelayedUntil > m.now && !fencing.OnlyLooks(m.op) {
			change(m, r)
		}
	}
}

// plantedInDelays are defects in lock delays.
var plantedInDelays = []defect{
	{what: "an expiry delays nothing", step: tampered(nil, ends(func(_ *moment, r *fencing.Record, e *fencing.Ended) {
		if e.Reason == fencing.ReasonExpired {
			r.DelayedUntil = 0
		}
	}))},
	{what: "a break delays nothing", step: tampered(nil, ends(func(_ *moment, r *fencing.Record, e *fencing.Ended) {
		if e.Reason == fencing.ReasonBroken && !e.Holder.BreaksAtEnd() {
			r.DelayedUntil = 0
		}
	}))},
	{what: "the end of a notice delays nothing", casesOnly: true, step: tampered(nil, ends(func(_ *moment, r *fencing.Record, e *fencing.Ended) {
		if e.Reason == fencing.ReasonBroken && e.Holder.BreaksAtEnd() {
			r.DelayedUntil = 0
		}
	}))},
	{what: "a release delays", step: tampered(nil, func(m *moment) {
		for _, e := range m.out.Ended {
			if r := m.record(); r != nil && e.Reason == fencing.ReasonReleased && r.Holders.Len() == 0 {
				r.DelayedUntil = max(r.DelayedUntil, e.At.Add(e.Holder.LockDelay))
			}
		}
	})},
	{what: "a grant that is taken back delays", step: tampered(nil, afterOf(func(m *moment, _ fencing.TakeBackRequest) {
		if h, r := m.ownBefore(), m.record(); h != nil && len(m.out.Left) > 0 && r.Holders.Len() == 0 {
			r.DelayedUntil = max(r.DelayedUntil, m.now.Add(h.LockDelay))
		}
	}))},
	{what: "a delay counts from when the expiry was noticed", step: tampered(nil, ends(func(m *moment, r *fencing.Record, e *fencing.Ended) {
		r.DelayedUntil = max(r.DelayedUntil, m.now.Add(e.Holder.LockDelay))
	}))},
	{what: "the last delay counts, not the longest", casesOnly: true, step: tampered(nil, ends(func(_ *moment, r *fencing.Record, e *fencing.Ended) {
		r.DelayedUntil = e.At.Add(e.Holder.LockDelay)
	}))},
	{what: "a delay ends a microsecond early", step: tampered(delayed(func(m *moment, r *fencing.Record) {
		if r.DelayedUntil == m.now+1 {
			r.DelayedUntil = m.now
		}
	}), nil)},
	{what: "a delay ends a microsecond late", step: tampered(func(m *moment) {
		if r := m.record(); r != nil && r.DelayedUntil == m.now {
			r.DelayedUntil++
		}
	}, nil)},
	{what: "readers are let in during a delay", step: tampered(delayed(func(m *moment, r *fencing.Record) {
		if op, ok := m.op.(acquireOp); ok && op.Mode == fencing.ModeShared && m.own() == nil {
			r.DelayedUntil = m.now
		}
	}), nil)},
	{what: "who wants it next to others is let in during a delay", casesOnly: true, step: tampered(delayed(func(m *moment, r *fencing.Record) {
		if r.Holders.Len() > 0 {
			r.DelayedUntil = m.now
		}
	}), nil)},
	{what: "nobody is granted the name at the end of a delay", step: tampered(nil, func(m *moment) {
		if r := m.record(); r != nil && r.RetryAt != 0 && r.RetryAt == r.DelayedUntil {
			r.RetryAt = r.RetryAt.Add(time.Minute)
		}
	})},
	{what: "a place that rests forgets its delay", casesOnly: true, step: tampered(nil, afterOf(func(m *moment, _ fencing.TakeBackRequest) {
		if r := m.record(); r != nil {
			resting := r.Queue.Resting()
			for i := range resting {
				resting[i].Ask.LockDelay = 0
			}
			r.Queue = fencing.RestoredQueue(r.Queue.Waiting(), resting, r.Queue.LastSeq())
		}
	}))},
}
