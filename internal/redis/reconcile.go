package redis

import (
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// remembered is what this gateway knows of a partition and of the server that it asks.
type remembered struct {
	member  bool // of a quorum: a node that remembers nothing, or is another run of its server, is for Enroll
	passive bool // this gateway only looks
	waits   bool // a quarantine has a length that was set: a Redis that seems new is waited for as well

	born    fencing.Instant // of the guard; 0: none was seen
	server  string          // who served the partition; empty: that is not known
	seen    time.Time       // when that one still did
	behind  bool            // an operation found the counter below a token that was issued
	until   fencing.Instant // of the quarantine
	evicted int64           // keys, by this run of the server so far; -1: that is not known
	longest time.Duration   // TTL in use, in any partition
}

// reported is what a server says of itself and has of a partition.
type reported struct {
	identity
	guard *guard // nil: none
	used  bool   // the store is known to be in use: see inUse. It is asked where there is no guard
	given bool   // those who served before say that they have given it away
}

// formerServers returns who else served a partition, as the guard has it and as this gateway
// remembers it.
func (is *reported) formerServers(was *remembered) []string {
	if is.guard == nil {
		return nil
	}
	servers := []string{is.guard.Server}
	if was.server != "" {
		servers = append(servers, was.server)
	}
	return slices.DeleteFunc(servers, is.same)
}

// stayed reports whether this was the same server already when another was last seen to
// serve: it has not become the one that serves by a restart or a promotion.
func (is *reported) stayed(was *remembered) bool { return is.since.Before(was.seen) }

// quarantineTooShort reports whether a quarantine ends earlier than this gateway knows that it has to, or
// is news here and was begun by one that did not know of a TTL which this gateway knows of.
func (is *reported) quarantineTooShort(was *remembered) bool {
	now := fencing.InstantOf(is.asked)
	return was.until > max(is.guard.Until, now) ||
		is.guard.Until > max(was.until, now) && was.longest > is.guard.Longest(now)
}

// verdict is what a gateway makes of what a server says.
type verdict int

const (
	unchanged verdict = iota // it is as remembered: nothing is to be done
	withheld                 // nothing is remembered, or by another run, and it is not for this gateway alone to say why
	unused                   // nothing was ever kept here: nothing was lost
	moved                    // another server has all that the one before had
	longer                   // a quarantine is to be longer
	changed                  // another server, which may be behind the one before
	lost                     // something is missing, whoever serves
)

// reconcile decides what became of a partition. It is the only place that does, however
// the gateway came to ask.
func reconcile(was *remembered, is *reported) verdict {
	switch {
	case is.guard == nil && (was.member || was.passive):
		return withheld
	case was.passive:
		return unchanged
	case was.member && is.guard.Server != is.server(): // it may have forgotten, and others know what
		return withheld
	case is.guard == nil && was.born == 0 && !was.waits && !is.used:
		return unused
	case is.guard == nil:
		return lost
	case was.born != 0 && was.born != is.guard.born: // it was lost, and somebody has noticed
		return lost
	case was.behind, was.evicted >= 0 && is.evicted > was.evicted:
		return lost
	case len(is.formerServers(was)) > 0 && !is.stayed(was):
		return changed
	case len(is.formerServers(was)) > 0 && !is.given: // it has missed what another was told meanwhile
		return lost
	case is.guard.Server != is.server() || was.server != "" && was.server != is.server():
		return moved
	case is.quarantineTooShort(was):
		return longer
	}
	return unchanged
}
