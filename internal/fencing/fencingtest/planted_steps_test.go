//go:build !race

package fencingtest

import (
	"slices"

	"fencepost/internal/fencing"
)

// unfinished reports whether a step before has left something to do on the name.
func (m *moment) unfinished() bool {
	r := m.was.Records[m.op.LockName()]
	return r != nil && r.RetryAt == 1
}

// plantedInSteps are defects in how steps that do little go on: see
// fencing.StepLimit.
var plantedInSteps = []defect{
	{what: "a step does more than its limit", step: tampered(func(m *moment) { m.guard.StepLimit++ }, nil)},
	{what: "a newcomer overtakes between two steps", step: withoutQueue(func(m *moment) bool {
		op, ok := m.op.(acquireOp)
		_, queued := m.place()
		return ok && m.unfinished() && op.Wait == 0 && !queued
	})},
	{what: "the next step goes on with the last in the queue", step: tampered(func(m *moment) {
		waiting := m.waiting()
		if _, attends := m.op.(fencing.ExpireRequest); !attends || !m.unfinished() || len(waiting) < 2 || m.skewed() {
			return
		}
		m.record().Queue = fencing.Queue{}
		slices.Reverse(waiting)
		for _, p := range waiting {
			m.rejoin(p)
		}
	}, nil)},
	{what: "nobody goes on", step: tampered(nil, func(m *moment) {
		if r := m.record(); r != nil && m.out.More {
			r.RetryAt, m.out.More = 0, false
		}
	})},
	{what: "whoever comes goes on", step: tampered(func(m *moment) {
		if r := m.record(); r != nil && m.unfinished() {
			r.RetryAt = 0
		}
	}, nil)},
	{what: "a delay that was not come to is not heeded", casesOnly: true, step: tampered(func(m *moment) {
		if op, ok := m.op.(acquireOp); ok && m.own() == nil && m.record() != nil {
			for h := range m.record().Holders.All() {
				if op.Wait == 0 && !h.Provisional && !h.Live(m.now) {
					h.LockDelay = 0
					m.put(&h)
				}
			}
		}
	}, nil)},
	{what: "a lease that ran out and was not come to is renewed", casesOnly: true, step: tampered(beforeOf(func(m *moment, op *renewOp) {
		if h := m.own(); h != nil && m.unfinished() && !m.skewed() && !h.Provisional && !h.Live(m.now) {
			h.ExpiresAt = m.now + 1
			m.put(h)
		}
	}), nil)},
}
