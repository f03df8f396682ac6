package fencing

import (
	"iter"
	"maps"
	"time"
)

// Gateway names one run of a gateway among those that share a store: 16 hex
// digits, new at every start.
type Gateway string

const (
	// HeartbeatInterval is how often a gateway with waiters tells the store that
	// it lives, and asks what it may have missed. It bounds what a lost message
	// costs.
	HeartbeatInterval = time.Second

	// GatewayTTL is how long after its last sign of life a gateway counts as
	// alive. Its waiters are then skipped and its provisional leases taken back.
	// Three heartbeats may be lost.
	GatewayTTL = 4 * time.Second

	// StallAfter is how long nobody may be heard of before the store itself counts as
	// having stood still. A gateway that is on time is heard of each HeartbeatInterval:
	// after a shorter stall its last sign of life is younger than GatewayTTL.
	StallAfter = 2500 * time.Millisecond

	// RestTTL is how long a place rests for its client to come back.
	RestTTL = 10 * time.Second

	// HearInterval is how often signs of life are written down at most.
	HearInterval = GatewayTTL / 8
)

// Gateways is what a partition knows of the gateways that have waiters in it.
type Gateways struct {
	Seen    map[Gateway]Instant // the last sign of life of each
	Heard   Instant             // the last of any
	Stopped Instant             // the last of any before a gap of StallAfter or more
	Serving Instant             // the first after that gap
}

// hear notes a sign of life. After a gap, in which nobody was heard of, the store itself
// may have stood still, so that those that were alive before it have GatewayTTL from then
// on. A second gap within that time does not give them more: a dead gateway would never
// count as dead.
func (g *Gateways) hear(from Gateway, now Instant) {
	if now >= max(g.Heard.Add(StallAfter), g.Serving.Add(GatewayTTL)) {
		g.Stopped, g.Serving = g.Heard, now
	}
	if now >= g.Heard.Add(HearInterval) {
		g.Heard = now
	}
	if seen, known := g.Seen[from]; known && now >= seen.Add(HearInterval) {
		g.Seen[from], g.Heard = now, now
	}
}

// join notes a sign of life of a gateway that has a waiter here from now on.
func (g *Gateways) join(from Gateway, now Instant) {
	g.hear(from, now)
	if _, known := g.Seen[from]; known {
		return
	}
	g.Seen[from], g.Heard = now, now
	for gateway, seen := range g.Seen { // every run of a gateway has a name of its own
		if now >= max(seen.Add(ForgetAfter), g.deadAt(gateway)) {
			delete(g.Seen, gateway)
		}
	}
}

// deadAt returns when a gateway counts as dead unless it is heard of before. Only one that
// was heard of shortly before a gap has the time after it: nobody is heard of either when
// no gateway has anything to say any more.
func (g *Gateways) deadAt(gateway Gateway) Instant {
	seen := g.Seen[gateway]
	until := seen.Add(GatewayTTL)
	if seen.Add(StallAfter) > g.Stopped {
		until = max(until, g.Serving.Add(GatewayTTL))
	}
	return until
}

// Entry is what a store has for a gateway: the place of a request in the queue of a
// name, a lease that the request has not confirmed, or one that hangs on a stream.
//
// Of streams exactly those leases are told of that are firm, whether or not anybody has
// noticed that their time ran out, and have no notice: see Holding.hangs. So a stream without an
// entry asks the store, by a renewal, what has become of its lease: it has ended, another request
// has it, it lingers, it is to be broken, or the store has forgotten.
type Entry struct {
	Name        Name
	Lease       LeasePublic
	Stamp       Stamp // of the request
	Provisional bool  // it is a lease that is not confirmed
	Attached    bool  // it is a lease that hangs on the stream of that stamp
}

// Beat is the heartbeat of guard.Gateway. It returns all that there is for it, in any
// order, or CodeClockSkew.
func Beat(s *State, now Instant, guard Guard) ([]Entry, *Error) {
	return BeatAmong(s, now, guard, maps.Keys(s.Records))
}

// BeatAmong is Beat for a store that knows on which names anybody waits, or has a lease
// that is not confirmed, and on which one hangs on a stream of the gateway: only those are looked
// at, each once.
func BeatAmong(s *State, now Instant, guard Guard, names iter.Seq[Name]) ([]Entry, *Error) {
	if guard.skewed(now) {
		return nil, SkewError(guard, now)
	}
	s.Gateways.join(guard.Gateway, now)
	var all []Entry
	for name := range names {
		r := s.Records[name]
		for _, h := range r.Holders.Provisional(guard.Gateway) {
			all = append(all, Entry{Name: name, Lease: h.Lease, Stamp: h.Stamp, Provisional: true})
		}
		for _, p := range r.Queue.look().order {
			if p.Gateway == guard.Gateway {
				all = append(all, Entry{Name: name, Lease: p.lease(), Stamp: p.Stamp})
			}
		}
		for lease, stamp := range r.Holders.Hanging(guard.Gateway) {
			all = append(all, Entry{Name: name, Lease: lease, Stamp: stamp, Attached: true})
		}
	}
	return all, nil
}
