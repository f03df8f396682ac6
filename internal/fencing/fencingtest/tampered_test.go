package fencingtest

import (
	"sync"

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

// holder returns a copy of the holding on the name of the operation, live or not, or nil.
func (m *moment) holder() *fencing.Holding { return onlyHolder(m.state, m.op.LockName()) }

func onlyHolder(s *fencing.State, name fencing.Name) *fencing.Holding {
	if r := s.Records[name]; r != nil && r.Holders.Len() > 0 {
		h := r.Holders.First()
		return &h
	}
	return nil
}

// put puts a holding on the name of the operation back, changed.
func (m *moment) put(h *fencing.Holding) { m.record().Holders.Put(*h) }

// lease returns the lease id that the operation comes with.
func (m *moment) lease() fencing.LeaseID { return m.op.LockLease() }

// trust makes the secret of the operation the right one.
func trust(m *moment) {
	if h := m.holder(); h != nil && h.Lease == m.lease().Public() {
		h.Secret = m.lease().Hash()
		m.put(h)
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
	h := m.holder()
	m.out.Holder.Token, m.record().LastToken, h.Token, m.state.Counter = token, token, token, token
	m.put(h)
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

// record returns what is remembered of the name of the operation, or nil.
func (m *moment) record() *fencing.Record { return m.state.Records[m.op.LockName()] }

// own returns a copy of the holding of the lease id of the operation, or nil.
func (m *moment) own() *fencing.Holding { return ownIn(m.record(), m.lease()) }

// ownBefore is own as it was before the operation.
func (m *moment) ownBefore() *fencing.Holding {
	return ownIn(m.was.Records[m.op.LockName()], m.lease())
}

func ownIn(r *fencing.Record, lease fencing.LeaseID) *fencing.Holding {
	if r != nil {
		if h, ok := r.Holders.Find(lease.Public()); ok {
			return &h
		}
	}
	return nil
}

// place returns the place of the lease id of the operation before it, connected or
// resting.
func (m *moment) place() (fencing.Place, bool) {
	r := m.was.Records[m.op.LockName()]
	if r == nil {
		return fencing.Place{}, false
	}
	for _, p := range append(r.Queue.Waiting(), r.Queue.Resting()...) {
		if p.Ask.Lease.Public() == m.lease().Public() {
			return p, true
		}
	}
	return fencing.Place{}, false
}

// waiting returns the connected places on the name of the operation.
func (m *moment) waiting() []fencing.Place {
	if r := m.record(); r != nil {
		return r.Queue.Waiting()
	}
	return nil
}

// mend changes the holding of the operation's lease id, in the state and in the
// outcome.
func (m *moment) mend(change func(*fencing.Holding)) {
	if h := m.own(); h != nil && m.out.Holder.Token != 0 {
		change(h)
		m.put(h)
		m.out.Holder = h.Holder
	}
}

// rejoin brings the request of a place back to the queue. The lease ids of the
// cases are known by their labels.
func (m *moment) rejoin(p fencing.Place) {
	for _, label := range everyLabel() {
		for _, lease := range []fencing.LeaseID{leaseOf(label), leaseOf(label + "'")} {
			if p.Secret.Equal(lease.Hash()) {
				ask := p.Ask
				ask.Lease, ask.Stamp, ask.Wait = lease, p.Stamp, max(ask.Wait, 1)
				fencing.Step(m.state, m.now, fencing.Guard{Gateway: p.Gateway}, ask)
				return
			}
		}
	}
}

// everyLabel returns the labels of leases that cases and histories use.
var everyLabel = sync.OnceValue(func() []string {
	var labels []string
	for letter := 'A'; letter <= 'Z'; letter++ {
		labels = append(labels, string(letter))
	}
	return labels
})
