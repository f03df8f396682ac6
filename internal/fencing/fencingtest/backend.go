// Package fencingtest is the conformance suite that every store passes: cases
// a person can read, run with the time passed in, and random histories compared
// step by step with fencing.Step.
package fencingtest

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// Backend is a store under test whose clock the suite moves.
type Backend interface {
	// Store returns handle 0 or 1 on the same data. With Capabilities.Gateways
	// they are two gateways, otherwise two ways to one. The suite calls Listen,
	// once for each gateway, before anything else.
	Store(handle int) fencing.Store

	// SetTime sets the store's clock, and with it the clock of every gateway. The suite
	// moves it backwards only with Capabilities.OwnClock, and then sets the gateways' right.
	SetTime(now fencing.Instant)

	// SetSkew makes the clock of a handle's gateway differ from the store's:
	// the gateway is ahead by skew. Only called with Capabilities.OwnClock.
	SetSkew(handle int, skew time.Duration)
}

// Capabilities says as data what a store can do.
type Capabilities struct {
	OwnClock bool // the store's clock is not the gateway's, so it guards against skew

	// OwnExpiry: what the store only keeps for a time goes by a clock that SetTime sets, right or
	// wrong. That stands still between commands, so events, whose ids are of it, are not asked for.
	OwnExpiry bool

	// OwnEventIDs: each handle hears events in an order of its own, and the ids that it gives them are known to no other.
	OwnEventIDs bool

	Flush    bool // the store can lose what it remembers, and its handles keep a floor: see Flusher
	Gateways bool // each handle is a gateway of its own, so that grants may be provisional
	Claims   bool // the store can be a node of a quorum: it serves a ClaimRequest, as a fencing.Node does, and heeds AcquireRequest.Intent

	// Quarantine: the store may refuse new grants for a while; see Arriver. It is
	// opened so that it does not do so unless the suite says so.
	Quarantine bool

	// Quorum: the store asks a majority of others. It has neither queue nor limits nor sets.
	Quorum bool

	// Sample has one case in so many played, which the seed chooses, beside those that
	// need OneState, StepLimit or MaxHolders: where the same code plays all of them in
	// another way. 0 plays all, and so does FENCEPOST_LONG.
	Sample int

	// Histories is how many random histories are played at least, 0 for the usual number.
	Histories uint64

	// StepLimit is that of the store's fencing.Guard, 0 for none of its own. With one, a
	// step leaves the rest to Expire and Heartbeat, which the suite calls.
	StepLimit int

	// MaxHolders is that of the store's fencing.Guard, 0 for any number.
	MaxHolders int

	// OneState: all names share what is known of gateways. A store with several
	// partitions knows it of each partition, which can't be compared with Step; run
	// it with one partition and OneState, and with many without.
	OneState bool
}

// Flusher is a Backend with Capabilities.Flush.
type Flusher interface {
	// Flush makes the store forget everything, as FLUSHALL does. The handles
	// stay, and so does what they remember.
	Flush()
}

// Arriver is a Backend with Capabilities.Quarantine. Its store notes by itself who
// serves, if at all, only before the suite does and where it has forgotten.
type Arriver interface {
	// Arrive is fencing.Arrive, through a handle and with its floor, in the partition
	// that has name. It returns what the partition remembers from then on. It is not
	// called while the clocks differ.
	Arrive(handle int, name fencing.Name, a fencing.Arrival) (fencing.Quarantine, error)

	// Heed has a handle heed losses from now on: see fencing.Guard.HeedLoss.
	Heed(handle int)
}

// Open makes a fresh, empty backend and registers its end with t.Cleanup.
type Open func(t testing.TB) Backend

// MaxSkew is the guard that every backend is to be opened with.
const MaxSkew = time.Second

// Epoch is the time at which every case starts: 2026-01-01T00:00:00Z.
const Epoch fencing.Instant = 1_767_225_600_000_000
