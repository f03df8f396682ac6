package history

import (
	"math"
	"time"

	"fencepost/verify/system"
)

// Rules say what a store promises, as docs/stores.md publishes it. A zero duration is
// no time at all.
type Rules struct {
	// NoQuarantine: what a store forgets may be granted to others at once
	// (FENCEPOST_QUARANTINE=off). With a quarantine it is granted to nobody.
	NoQuarantine bool

	// SharedTokensUnordered: the token of a shared lease is above that of every lease
	// that is over, not of every one that lives (quorum).
	SharedTokensUnordered bool

	// NoQueue: no order among those who wait, and a refusal of a lock that is free
	// (quorum: who is refused by a minority).
	NoQueue bool

	// EndsCross: a break and a release that cross are both told that they ended the lease, or
	// both that the other has (quorum: each did at some of the nodes).
	EndsCross bool

	// LeftBehind: what has ended may stay at a node that was not heard, until its TTL is over
	// there, and be shown while another is not heard either (quorum).
	LeftBehind bool

	// TimeStops: a lease lasts longer by the time in which no node leads (a cluster of gateways).
	TimeStops bool

	// CurrentReads: what is looked at is as it was at one moment between the request and its answer
	// (the same, and embedded).
	CurrentReads bool

	// Unheard: a lease that nobody was told of yet is not shown while nothing is heard of its gateway, and
	// may be told afterwards (a cluster of gateways, a database).
	Unheard bool

	// RestartRenews: after a restart of the gateway every lease has its whole TTL again
	// (embedded).
	RestartRenews bool

	// AnswersUnflushed: a release is answered before it is on disk, and so is a renewal that
	// shortens the lease. A kill may undo them (embedded).
	AnswersUnflushed bool

	// NoPermits, NoSets: not offered (quorum).
	NoPermits, NoSets bool

	// MinTTL is the shortest TTL that the store takes.
	MinTTL time.Duration

	// Margin is by how much clocks may be off within one TTL.
	Margin time.Duration

	// Slack is what is allowed on top of each time of P4, P5 and P6, for processes that
	// have to wait for a processor.
	Slack time.Duration

	// Idle is how long a lock may be with nobody while somebody waits (P5).
	Idle time.Duration

	// Phantom is how long a lease may live whose client left before it was told (P6).
	Phantom time.Duration

	// Kept is how many of those who left before they were told may keep their lease for
	// its TTL in one history: a connection that closes after the gateway has looked at it
	// for the last time can't be told from one that stays.
	Kept int
}

// forever is a return that never comes.
const forever = Time(math.MaxInt64)

// RulesOf returns what a kind of store promises.
func RulesOf(kind system.Kind) Rules {
	r := Rules{
		MinTTL: 100 * time.Millisecond, Margin: time.Millisecond, Slack: time.Second,
		Idle: 2 * time.Second, Phantom: time.Second, Kept: 2,
	}
	switch kind {
	case system.Embedded:
		r.RestartRenews, r.AnswersUnflushed, r.CurrentReads = true, true, true
	case system.Quorum:
		r.NoQueue, r.SharedTokensUnordered, r.EndsCross, r.NoPermits, r.NoSets = true, true, true, true, true
		r.LeftBehind, r.MinTTL = true, 500*time.Millisecond
	case system.Postgres, system.MariaDB:
		r.CurrentReads, r.Unheard = true, true
	case system.Raft:
		r.TimeStops, r.CurrentReads, r.Unheard = true, true, true
	}
	return r
}
