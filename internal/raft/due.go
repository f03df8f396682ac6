package raft

import (
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// What follows is for the leader: it says which names an entry attends to, so that each
// node attends to the same ones.

// due returns the operations that do what is due at now on up to limit names, forget old
// tombstones, or write down the time if that was long ago.
func (m *machine) due(now fencing.Instant, limit int) (ops []cbor.RawMessage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range m.index.Due(now, limit) {
		ops = append(ops, encodeOp(fencing.ExpireRequest{Name: name}))
	}
	switch {
	case limit > 0 && m.index.tombstonesDue(now):
		ops = append(ops, plain(kindPrune))
	case len(ops) == 0 && m.busy() && now.Sub(m.now) >= reapEvery:
		ops = append(ops, plain(kindTick))
	}
	return ops
}

// busy reports whether anybody holds or waits. The caller holds the mutex.
func (m *machine) busy() bool { return m.index.Held() > 0 || m.index.waiting.Len() > 0 }

// dueAmong returns those of names that have something due at now.
func (m *machine) dueAmong(names []fencing.Name, now fencing.Instant) (due []fencing.Name) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, name := range names {
		if m.state.Records[name] != nil && m.state.Due(name) <= now {
			due = append(due, name)
		}
	}
	return due
}

// nextDue returns how long the leader need not look for what is due.
func (m *machine) nextDue(now fencing.Instant) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index.Due(now, 1) // corrects what is early
	next := m.index.nextDue(now)
	if m.busy() {
		next = min(next, reapEvery)
	}
	return next
}

// left returns up to limit names on which a step has left something to do.
func (m *machine) left(limit int) (names []fencing.Name) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.unfinished {
		if len(names) == limit {
			break
		}
		names = append(names, name)
	}
	return names
}
