package fencingtest

import (
	"fencepost/internal/fencing"
)

// tampered returns Step with something done to the state or to the operation
// before, and to the outcome or the state after. Either may be nil.
func tampered(before func(*moment), after func(*moment)) stepFunc {
	return func(s *fencing.State, now fencing.Instant, guard fencing.Guard, op fencing.Op) fencing.Outcome {
		m := &moment{state: s, now: now, guard: guard, op: op, was: s.Clone()}
		if before != nil {
			before(m)
		}
		m.out = fencing.Step(s, now, m.guard, m.op)
		if after != nil {
			after(m)
		}
		return m.out
	}
}

// moment is an operation under way in a defective store.
type moment struct {
	state *fencing.State
	now   fencing.Instant
	guard fencing.Guard
	op    fencing.Op
	out   fencing.Outcome
	was   *fencing.State // a copy from before
}

func (m *moment) skewed() bool { return m.now.Sub(m.guard.Sent).Abs() > m.guard.MaxSkew }

// holder returns the holding on the name of the operation, live or not, or nil.
func (m *moment) holder() *fencing.Holding { return onlyHolder(m.state, m.op.LockName()) }

func onlyHolder(s *fencing.State, name fencing.Name) *fencing.Holding {
	if r := s.Records[name]; r != nil && len(r.Holders) > 0 {
		return &r.Holders[0]
	}
	return nil
}

// lease returns the lease id that the operation comes with.
func (m *moment) lease() fencing.LeaseID {
	switch op := m.op.(type) {
	case fencing.AcquireRequest:
		return op.Lease
	case fencing.RenewRequest:
		return op.Lease
	case fencing.ReleaseRequest:
		return op.Lease
	case fencing.TakeBackRequest:
		return op.Lease
	}
	return fencing.LeaseID{}
}

// trust makes the secret of the operation the right one.
func trust(m *moment) {
	if h := m.holder(); h != nil && h.Lease == m.lease().Public() {
		h.Secret = m.lease().Hash()
	}
}

// trustFor is trust for one kind of operation.
func trustFor[T fencing.Op](m *moment) {
	if _, ok := m.op.(T); ok {
		trust(m)
	}
}

// retoken gives the grant that was just made another token.
func (m *moment) retoken(token fencing.Token) {
	record := m.state.Records[m.op.LockName()]
	m.out.Holder.Token, record.LastToken, record.Holders[0].Token, m.state.Counter = token, token, token, token
}

// granted reports whether the operation issued a token.
func (m *moment) granted() bool { return m.state.Counter != m.was.Counter }

// tombs changes the tombstones that the operation made.
func (m *moment) tombs(change func(fencing.Tombstone) fencing.Tombstone) {
	for key, tomb := range m.state.Tombstones {
		if _, old := m.was.Tombstones[key]; !old {
			m.state.Tombstones[key] = change(tomb)
		}
	}
}
