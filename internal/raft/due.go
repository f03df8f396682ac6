package raft

import (
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// tickEvery is how often the leader writes down the time at least while anybody holds or
// waits, by the calls of Expire, so that a new leader is behind by no more. It writes down the wall clock
// where that was set.
const tickEvery = time.Second

// due returns the operations that do what is due at now on up to limit names, forget old
// tombstones, or write down the time if that was long ago.
func (m *fsm) due(now, wall fencing.Instant, limit int) (ops []cbor.RawMessage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.quarantine.Tell(m.log, m.machine, now)
	for _, name := range m.machine.Due(now, limit) {
		ops = append(ops, machine.EncodeOp(fencing.ExpireRequest{Name: name}))
	}
	switch {
	case limit > 0 && m.machine.PruneDue(now):
		ops = append(ops, machine.Prune())
	case len(ops) == 0 && (m.machine.Busy() && now.Sub(m.machine.Now()) >= tickEvery || m.machine.Walls().Differs(now, wall)):
		ops = append(ops, machine.Tick())
	}
	return ops
}

// nextDue returns how long the leader need not look for what is due.
func (m *fsm) nextDue(now fencing.Instant) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := min(m.machine.NextDue(now), m.quarantine.Tell(m.log, m.machine, now))
	if m.machine.Busy() {
		next = min(next, tickEvery)
	}
	return next
}
