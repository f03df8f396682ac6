package machine

import (
	"maps"

	"fencepost/internal/fencing"
)

// MostPart is how many holders and places the names of Part may have in all: copies of more cost more than they spare.
const MostPart = 256

// Part returns a machine that has copies of what operations of the next entry, which are on these names, may depend on: it comes to what m
// would come to, and m stays as it is. ok is false if there is too much to copy.
func (m *Machine) Part(ops []fencing.Op) (part *Machine, ok bool) {
	part = New()
	s, from := part.state, m.state
	s.Counter, s.Quarantine, s.Gateways, s.Rules = from.Counter, from.Quarantine, from.Gateways, from.Rules
	s.Gateways.Seen = maps.Clone(from.Gateways.Seen)
	part.follows, part.known, part.now, part.applied, part.digest = m.follows, m.known, m.now, m.applied, m.digest
	part.digests = []digestAt{m.digests[len(m.digests)-1]}
	weight := len(s.Gateways.Seen)
	for _, op := range ops {
		name := op.LockName()
		if r := from.Records[name]; r != nil && s.Records[name] == nil {
			if weight += 1 + r.Holders.Len() + r.Queue.Places(); weight > MostPart {
				return nil, false
			}
			s.Records[name] = r.Clone()
		}
		if until, rests := m.resting[name]; rests {
			part.rest(name, until)
		}
		lease := op.LockLease().Public()
		if e, evicts := op.(fencing.EvictRequest); evicts {
			lease = e.Waiter
		}
		key := fencing.EndedLease{Name: name, Lease: lease}
		if tomb, there := from.Tombstones[key]; there {
			s.Tombstones[key] = tomb
		}
	}
	return part, true
}
