package quorum

import (
	"time"

	"fencepost/internal/fencing"
)

// roster decides which nodes are taken into service, by what a gateway has found in its
// looks at all of them. It has neither clock nor I/O, as attempt.
//
// A quorum is new only if all nodes are blank. Otherwise a node that is not in service may
// have forgotten leases, all or the last ones, and does not vote before those are over. How
// long that takes the other nodes know: of every lease a majority does, so some of any
// majority of nodes that have forgotten nothing. A node in quarantine counts as one that
// has forgotten, and so does one that is not in service.
type roster struct {
	patience time.Duration // how long nobody waits to be asked about any more
	waiting  [maxNodes]candidate
}

// candidate is a server that is not in service.
type candidate struct {
	server string // empty: none was found
	since  time.Time
}

// enrolment is what a look has come to.
type enrolment struct {
	nodes   nodeSet // to be taken into service, or to have their quarantines made longer
	isNew   bool
	longest time.Duration // the longest TTL in use
}

// look takes in what the nodes say, nil where one has not answered, and decides.
//
// Beside others a node is taken into service when it was found so before: another gateway
// may be taking a new quorum into service, node by node; and all that was granted before
// the node forgot is known when the others are asked once more. While none that remembers
// anything can be reached, blank ones have to wait: those out of reach may remember. While
// too few that have forgotten nothing can be reached to know of every lease, and not all can
// be asked, all have to wait, until nothing can be left of what they have forgotten.
func (r *roster) look(found []*fencing.Memory, now time.Time) enrolment {
	var e enrolment
	answered, blank, remembering := 0, 0, 0
	for i, m := range found {
		if m == nil {
			continue
		}
		answered++
		e.longest = max(e.longest, m.Longest)
		if m.Blank {
			blank++
		}
		if m.InService {
			r.waiting[i] = candidate{}
			if m.Quarantine <= 0 {
				remembering++
			}
		}
	}
	e.isNew = blank == len(found)
	known := remembering >= majorityOf(len(found)) || answered == len(found)
	for i, m := range found {
		switch {
		case m == nil:
		case m.InService:
			if m.Quarantine > 0 && e.longest > m.Longest {
				e.nodes |= 1 << i
			}
		case e.isNew || r.waited(i, m.Server, known, now) && blank < answered:
			e.nodes |= 1 << i
		}
	}
	return e
}

// waited notes that a server is not in service, and reports whether it has waited for as long
// as it has to.
func (r *roster) waited(i int, server string, known bool, now time.Time) bool {
	c := &r.waiting[i]
	if c.server != server {
		*c = candidate{server, now}
		return false
	}
	return known || now.Sub(c.since) >= r.patience
}
