package redis

import (
	"context"
	"errors"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"

	goredis "github.com/redis/go-redis/v9"
)

var _ fencingtest.Arriver = (*backend)(nil)

// Arrive takes a partition for a server that the suite makes up. From then on the
// handles don't check by themselves who serves: they would find another one.
func (b *backend) Arrive(handle int, name fencing.Name, a fencing.Arrival) (fencing.Quarantine, error) {
	b.blind()
	s := b.stores[handle]
	partition := s.partitionOf(name)
	asked := arrivalRequest{
		layout: layoutVersion, partitions: s.partitions, server: a.Server, lossless: a.Lossless, lost: a.Lost, late: a.Late,
		longest: a.Longest, until: a.Until, least: a.Least, most: a.Most,
	}
	stored, err := s.topology.node(partition).client.Get(context.Background(), s.keys[partition].guard).Result()
	if err == nil {
		var g guard
		g, err = decodeGuard(stored, s.partitions)
		asked.born = g.born
	}
	if err != nil && !errors.Is(err, goredis.Nil) {
		return fencing.Quarantine{}, err
	}
	c := s.newPartitionCommand(partition, operation{verb: arriveVerb}, func(w *codec) { w.arrival(&asked) })
	r, err := s.do(context.Background(), c)
	if err != nil {
		return fencing.Quarantine{}, err
	}
	if r.code == fencing.CodeClockSkew {
		return fencing.Quarantine{}, &fencing.Error{Code: r.code}
	}
	for _, other := range b.stores {
		other.topology.node(partition).checked.Store(&a.Server)
		other.guards.remember(c.partition, &r.guard, c.sentAt, false)
	}
	return r.guard.Quarantine, nil
}

// Heed opens a handle anew that recoverFromLoss losses, and leaves it to the suite to say that
// there was one.
func (b *backend) Heed(handle int) {
	b.blind()
	o := b.options[handle]
	o.Quarantine, o.Member = QuarantinePolicy{}, true
	b.stores[handle] = open(b.t, o)
	b.blind()
}

// blind ends the checking of who serves.
func (b *backend) blind() {
	for _, s := range b.stores {
		s.guards.close()
	}
}
