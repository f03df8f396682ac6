package redis

import (
	"context"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

var _ fencingtest.Arriver = (*backend)(nil)

// Arrive takes a partition for a server that the suite makes up. From then on the
// handles don't look by themselves who serves: they would find another one.
func (b *backend) Arrive(handle int, name fencing.Name, a fencing.Arrival) (fencing.Quarantine, error) {
	b.blind()
	s := b.stores[handle]
	how := arriveCareful
	switch {
	case a.Lost:
		how = arriveLost
	case a.Lossless:
		how = arriveLossless
	case a.Late:
		how = arriveLate
	}
	asked := arrivalRequest{
		layout: layoutVersion, partitions: s.partitions, server: a.Server, how: how,
		longest: a.Longest, until: a.Until, least: a.Least, most: a.Most,
	}
	if a.Lost || a.Lossless { // which is said of a guard that was seen
		seen := codec{mode: writing}
		seen.guard(&guard{layout: layoutVersion, partitions: s.partitions, born: 1})
		partition := s.partitionOf(name)
		if err := s.topology.node(partition).client.SetNX(context.Background(), s.keys[partition].guard, string(seen.b), 0).Err(); err != nil {
			return fencing.Quarantine{}, err
		}
	}
	c := s.newPartitionCommand(s.partitionOf(name), operation{verb: arriveVerb}, func(w *codec) { w.arrival(&asked) })
	r, err := s.do(context.Background(), c)
	if err != nil {
		return fencing.Quarantine{}, err
	}
	if r.code == fencing.CodeClockSkew {
		return fencing.Quarantine{}, &fencing.Error{Code: r.code}
	}
	if err := s.arrived(c, r); err != nil {
		return fencing.Quarantine{}, err
	}
	for _, other := range b.stores {
		other.sentry.learn(c.partition, &r.guard)
	}
	return r.guard.Quarantine, nil
}

// Heed opens a handle anew that heeds losses, and leaves it to the suite to say that
// there was one.
func (b *backend) Heed(handle int) {
	b.blind()
	o := b.options[handle]
	o.Quarantine, o.Member = QuarantinePolicy{}, true
	b.stores[handle] = open(b.t, o)
	b.blind()
}

// blind ends the looking after who serves.
func (b *backend) blind() {
	for _, s := range b.stores {
		s.sentry.close()
	}
}
