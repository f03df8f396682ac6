package machine

import (
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// What follows is for who writes the log: it says which names an entry attends to, so that all who carry
// it out attend to the same ones.

// Due returns up to limit names that have something due at now, those first that were due first. It corrects the index.
func (m *Machine) Due(now fencing.Instant, limit int) []fencing.Name {
	if len(m.resting) == 0 {
		return m.index.Due(now, limit)
	}
	due := slices.DeleteFunc(m.index.Due(now, limit+len(m.resting)), func(name fencing.Name) bool { return m.resting[name] > now })
	return due[:min(limit, len(due))]
}

// PruneDue reports whether tombstones are to go at now.
func (m *Machine) PruneDue(now fencing.Instant) bool { return m.index.tombstonesDue(now) }

// Busy reports whether anybody holds or waits.
func (m *Machine) Busy() bool { return m.index.Held() > 0 || m.index.waiting.Len() > 0 }

// DueAmong returns those of names that have something due at now.
func (m *Machine) DueAmong(names []fencing.Name, now fencing.Instant) (due []fencing.Name) {
	for _, name := range names {
		if m.state.Records[name] != nil && m.state.Due(name) <= now && m.resting[name] <= now {
			due = append(due, name)
		}
	}
	return due
}

// NextDue returns how long nothing will be due. It corrects the index.
func (m *Machine) NextDue(now fencing.Instant) time.Duration {
	m.index.Due(now, 1)
	next := m.index.nextDue(now)
	if next == 0 && len(m.resting) > 0 && len(m.Due(now, 1)) == 0 {
		return tombstonePause // what is due is on names that rest
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
