package redis

import (
	"slices"

	"fencepost/internal/fencing"
)

// remembered is what this gateway knows of a partition and of the server that it asks.
type remembered struct {
	member bool // of a quorum: a node that remembers nothing is for Admit
	waits  bool // a quarantine has a length that was set: a Redis that seems new is waited for as well

	born    fencing.Instant // of the guard; 0: none was seen
	server  string          // who served the partition; empty: that is not known
	behind  bool            // an operation found the counter below a token that was issued
	until   fencing.Instant // of the quarantine
	evicted int64           // keys, by this run of the server so far; -1: that is not known
}

// said is what a server says of itself and has of a partition.
type said struct {
	identity
	guard  *guard // nil: none
	others bool   // other gateways listen at this server. It is asked where there is no guard
	given  bool   // those who served before say that they have given the partition away
}

// formers returns who else served a partition, as the guard has it and as this gateway
// remembers it.
func (is *said) formers(was *remembered) []string {
	if is.guard == nil {
		return nil
	}
	servers := []string{is.guard.Server}
	if was.server != "" {
		servers = append(servers, was.server)
	}
	return slices.DeleteFunc(servers, is.same)
}

// verdict is what a gateway makes of what a server says.
type verdict int

const (
	unchanged verdict = iota // it is as remembered: nothing is to be done
	withheld                 // nothing is remembered, and only the quorum can say why
	unused                   // nothing was ever kept here: nothing was lost
	moved                    // another server has all that the one before had
	changed                  // another server, which may be behind the one before
	lost                     // something is missing, whoever serves
)

// reconcile decides what became of a partition. It is the only place that does, however
// the gateway came to ask.
func reconcile(was *remembered, is *said) verdict {
	switch {
	case is.guard == nil && was.member:
		return withheld
	case is.guard == nil && was.born == 0 && !was.waits && !is.others:
		return unused
	case is.guard == nil:
		return lost
	case was.born != 0 && was.born != is.guard.born: // it was lost, and somebody has noticed
		return lost
	case was.behind, was.evicted >= 0 && is.evicted > was.evicted:
		return lost
	case !is.given && len(is.formers(was)) > 0:
		return changed
	case is.guard.Server != is.server() || was.server != "" && was.server != is.server():
		return moved
	}
	return unchanged
}
