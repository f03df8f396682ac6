package machine

import "fencepost/internal/fencing"

// NextAt returns when the first name has something due, perhaps too early; never, if none has.
func (m *Machine) NextAt() fencing.Instant {
	if due, ok := m.index.Next(); ok {
		return due
	}
	return fencing.Instant(fencing.MaxToken)
}

// Look answers an operation that only looks, at now or later.
func (m *Machine) Look(op fencing.Op, now fencing.Instant, guard fencing.Guard) fencing.Outcome {
	defer blame(op)
	return fencing.Step(m.state, m.at(now), guard, op)
}

// Unmoved answers an admission that changes nothing, at now or later: see fencing.Unmoved.
func (m *Machine) Unmoved(op fencing.AdmitRequest, now fencing.Instant, guard fencing.Guard) (out fencing.Outcome, known bool) {
	return fencing.Unmoved(m.state, m.at(now), guard, op)
}

// Stats returns what the machine holds, and how long its quarantine lasts.
func (m *Machine) Stats(now fencing.Instant) fencing.Stats {
	return fencing.Stats{Held: m.index.Held(), Quarantine: max(0, m.state.Quarantine.Until.Sub(m.at(now)))}
}

// HeldBelow returns how many names with a prefix have a holder.
func (m *Machine) HeldBelow(prefix string) int { return m.index.HeldBelow(prefix) }

// Views returns what is shown of the next names behind one: in order.
func (m *Machine) Views(v View, after fencing.Name) ([]*fencing.Lock, bool) {
	v.Now = m.at(v.Now)
	return m.index.Views(v, after)
}
