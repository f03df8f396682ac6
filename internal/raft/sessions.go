package raft

import (
	"sync"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// sessions is what a leader knows of the gateways that pass on to it what they are asked:
// where they are, and which of their batches must not be carried out any more.
type sessions struct {
	mu   sync.Mutex
	all  map[fencing.Gateway]*session
	asks uint64 // counts messages
}

type session struct {
	address string
	seen    uint64 // sessions.asks of the last message
	term    uint64
	floor   uint64          // no batch below it is carried out in term
	gone    map[uint64]bool // nor one of these
}

// mostSessions bounds how many are known: each start of a gateway has one. The one that was heard of longest ago goes:
// it is that of a gateway that ended long since, with its batches.
const mostSessions = 1024

// of returns the session of a message's gateway. The caller holds the mutex.
func (s *sessions) of(m *message) *session {
	gateway := fencing.Gateway(m.Batch.Gateway)
	known := s.all[gateway]
	if known == nil {
		if len(s.all) >= mostSessions {
			oldest := gateway
			for of, is := range s.all {
				if oldest == gateway || is.seen < s.all[oldest].seen {
					oldest = of
				}
			}
			delete(s.all, oldest)
		}
		known = &session{}
		s.all[gateway] = known
	}
	s.asks++
	known.seen = s.asks
	if known.term != m.Term {
		known.term, known.floor, known.gone = m.Term, 0, map[uint64]bool{}
	}
	if m.Address != "" {
		known.address = m.Address
	}
	return known
}

func newSessions() sessions { return sessions{all: map[fencing.Gateway]*session{}} }

// meet notes who sent a message, which may be carried out in any order.
func (s *sessions) meet(m *message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(m)
	return true
}

// admit notes what a message says of others, and reports whether its batch may be carried
// out. What undoes a batch that its gateway has given up comes with word of that, so that
// the one is not carried out after the other.
func (s *sessions) admit(m *message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.of(m)
	for _, number := range m.Gone {
		known.gone[number] = true
	}
	if m.Floor > known.floor {
		known.floor = m.Floor
		for number := range known.gone {
			if number < known.floor {
				delete(known.gone, number)
			}
		}
	}
	return m.Batch.Number >= known.floor && !known.gone[m.Batch.Number]
}

// addresses returns where gateways are, of those that are known.
func (s *sessions) addresses(all []machine.Told) map[string][]machine.Told {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string][]machine.Told{}
	for _, t := range all {
		if known := s.all[t.Gateway]; known != nil && known.address != "" {
			found[known.address] = append(found[known.address], t)
		}
	}
	return found
}
