package redis

import (
	"context"
	"fmt"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

var _ fencingtest.Arriver = (*backend)(nil)

// Arrive takes a partition for a server that the suite makes up. From then on the
// handles don't look by themselves who serves: they would find another one.
func (b *backend) Arrive(handle int, name fencing.Name, a fencing.Arrival) (fencing.Quarantine, error) {
	b.blind()
	s := b.stores[handle]
	c := s.newPartitionCommand(arriveScript, s.partitionOf(name))
	c.claim = append(c.claim[:0], a.Server...)
	how := byte(arriveCareful)
	switch {
	case a.Lost:
		how = arriveLost
	case a.Lossless:
		how = arriveLossless
	case a.Late:
		how = arriveLate
	}
	c.tail = fmt.Sprintf("%d\n%d\n%d\n%d\n0\n%c\n%s", a.Longest.Microseconds(), a.Until, a.Least.Microseconds(), a.Most.Microseconds(), how, layoutOfGuard)
	c.asSource = true
	r, err := s.do(context.Background(), c)
	if err != nil {
		return fencing.Quarantine{}, err
	}
	if r.code == fencing.CodeClockSkew {
		return fencing.Quarantine{}, &fencing.Error{Code: r.code}
	}
	if err := s.arrived(c, &r); err != nil {
		return fencing.Quarantine{}, err
	}
	g, err := decodeGuard(r.detail)
	for _, other := range b.stores {
		other.sentry.learn(c.partition, &g)
	}
	return g.Quarantine, err
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
