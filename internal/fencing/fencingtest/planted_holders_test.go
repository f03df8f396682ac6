//go:build !race

package fencingtest

import (
	"fencepost/internal/fencing"
)

// plantedInHolders are defects in how many holders a name may have: see
// fencing.Guard.MaxHolders.
var plantedInHolders = []defect{
	{what: "how many hold is not bounded", step: tampered(func(m *moment) { m.guard.MaxHolders = 0 }, nil)},
	{what: "one holder more than may", step: tampered(func(m *moment) { m.guard.MaxHolders++ }, nil)},
	{what: "one holder less than may", step: tampered(func(m *moment) { m.guard.MaxHolders-- }, nil)},
	{what: "who is handed the lock is not bounded", step: tampered(func(m *moment) {
		if _, acquires := m.op.(fencing.AcquireRequest); !acquires {
			m.guard.MaxHolders = 0
		}
	}, nil)},
	{what: "who comes is not bounded", step: tampered(func(m *moment) {
		if _, acquires := m.op.(fencing.AcquireRequest); acquires {
			m.guard.MaxHolders = 0
		}
	}, nil)},
}
