package machine

import (
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// What follows is for who writes the log: it says which names an entry attends to, so that all who carry
// it out attend to the same ones.

// TickEvery is how often the time is written down at least while anybody holds or waits, by the calls of Due, so that
// whoever goes on with the log is behind by no more.
const TickEvery = time.Second

// Due returns the operations that do what is due at now on up to limit names, forget old
// tombstones, or write down the time if that was long ago.
func (m *Machine) Due(now fencing.Instant, limit int) (ops []cbor.RawMessage) {
	for _, name := range m.index.Due(now, limit) {
		ops = append(ops, EncodeOp(fencing.ExpireRequest{Name: name}))
	}
	switch {
	case limit > 0 && m.index.tombstonesDue(now):
		ops = append(ops, Prune())
	case len(ops) == 0 && m.busy() && now.Sub(m.now) >= TickEvery:
		ops = append(ops, Tick())
	}
	return ops
}

// busy reports whether anybody holds or waits.
func (m *Machine) busy() bool { return m.index.Held() > 0 || m.index.waiting.Len() > 0 }

// DueAmong returns those of names that have something due at now.
func (m *Machine) DueAmong(names []fencing.Name, now fencing.Instant) (due []fencing.Name) {
	for _, name := range names {
		if m.state.Records[name] != nil && m.state.Due(name) <= now {
			due = append(due, name)
		}
	}
	return due
}

// NextDue returns how long nothing need be asked of Due. It corrects the index.
func (m *Machine) NextDue(now fencing.Instant) time.Duration {
	m.index.Due(now, 1) // corrects what is early
	next := m.index.nextDue(now)
	if m.busy() {
		next = min(next, TickEvery)
	}
	return next
}

// Left returns up to limit names on which a step has left something to do.
func (m *Machine) Left(limit int) (names []fencing.Name) {
	for name := range m.unfinished {
		if len(names) == limit {
			break
		}
		names = append(names, name)
	}
	return names
}

// LeftOn reports whether a step has left something to do on a name.
func (m *Machine) LeftOn(name fencing.Name) bool { return m.unfinished[name] }

// GoOn is how many names an entry may be asked to go on with at once.
const GoOn = goOn
