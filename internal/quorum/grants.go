package quorum

import (
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// maxMade is how many grants are remembered, at about 200 bytes each, for the case
// that they can't be delivered. One beyond it can't be taken back any more: it is
// left to its TTL.
const maxMade = 1 << 16

// fewGone is how many entries of grants that are gone are not worth looking for,
// fewAttached how many attachments.
const (
	fewGone     = 64
	fewAttached = 1024
)

// stamps are that of a request, and the one its grant has at the nodes.
type stamps struct {
	request, nodes fencing.Stamp
}

// attachment is what is known of a lease that a stream holds.
type attachment struct {
	stamps
	secret fencing.SecretHash
	until  time.Time // when the lease is over, unless it is renewed elsewhere
}

// attach notes that a stream has a lease, and forgets those whose leases are over now
// and then. The caller holds mu.
func (s *Store) attach(key leaseKey, a attachment, now time.Time) {
	s.attached[key] = a
	if len(s.attached) < s.sweepAt {
		return
	}
	maps.DeleteFunc(s.attached, func(_ leaseKey, a attachment) bool { return a.until.Before(now) })
	s.sweepAt = 2*len(s.attached) + fewAttached
}

// made is a grant that may have to be taken back.
type made struct {
	stamps
	secret fencing.SecretHash
	out    *fencing.Outcome // of a request that waited: what its gateway is told, until the holder has renewed
	until  time.Time        // when the lease is over
	told   bool             // its holder has renewed: see fencing.TakeBackRequest
}

// of reports whether it is a grant to a lease id, whose secret counts as well.
func (m *made) of(lease fencing.LeaseID) bool { return m.secret.Equal(lease.Hash()) }

// grants are those that may have to be taken back. Not safe for concurrent use.
type grants struct {
	byLease map[leaseKey]*made
	order   []entry // oldest first; those of grants that are gone are at most as many again
}

type entry struct {
	key leaseKey
	m   *made
}

func (g *grants) add(key leaseKey, m *made, now time.Time) {
	g.byLease[key] = m
	g.order = append(g.order, entry{key, m})
	if len(g.order) > 2*len(g.byLease)+fewGone {
		g.order = slices.DeleteFunc(g.order, func(e entry) bool { return g.byLease[e.key] != e.m })
	}
	for len(g.order) > 0 {
		first := g.order[0]
		current := g.byLease[first.key] == first.m
		if current && len(g.order) <= maxMade && now.Before(first.m.until) {
			return
		}
		if current {
			delete(g.byLease, first.key)
		}
		g.order = g.order[1:]
	}
}

// of returns the grant that a request has got, nil if there is none.
func (g *grants) of(key leaseKey, request fencing.Stamp) *made {
	if m := g.byLease[key]; m != nil && m.request == request {
		return m
	}
	return nil
}

// tell notes that the holder of a lease knows of it.
func (g *grants) tell(key leaseKey) {
	if m := g.byLease[key]; m != nil {
		m.told = true
	}
}

// forget drops the grant of a lease and returns it: another request has taken over, or
// it is taken back.
func (g *grants) forget(key leaseKey) *made {
	m := g.byLease[key]
	delete(g.byLease, key)
	return m
}
