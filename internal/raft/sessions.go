package raft

import (
	"sync"

	"fencepost/internal/fencing"
)

// sessions is what a leader knows of the gateways that pass on to it what they are asked:
// where they are, and which of their batches must not be carried out any more.
type sessions struct {
	mu  sync.Mutex
	all map[fencing.Gateway]*session
}

type session struct {
	address string
	term    uint64
	floor   uint64          // no batch below it is carried out in term
	gone    map[uint64]bool // nor one of these
}

// mostSessions bounds how many are known: each start of a gateway has one.
const mostSessions = 1024

// of returns the session of a message's gateway. The caller holds the mutex.
func (s *sessions) of(m *message) *session {
	gateway := fencing.Gateway(m.Batch.Gateway)
	known := s.all[gateway]
	if known == nil {
		if len(s.all) >= mostSessions {
			for old := range s.all { // any: who is asked again is known again
				if s.all[old].term < m.Term {
					delete(s.all, old)
				}
			}
		}
		known = &session{}
		s.all[gateway] = known
	}
	if known.term != m.Term {
		known.term, known.floor, known.gone = m.Term, 0, map[uint64]bool{}
	}
	if m.Address != "" {
		known.address = m.Address
	}
	return known
}

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
func (s *sessions) addresses(all []told) map[string][]told {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string][]told{}
	for _, t := range all {
		if known := s.all[t.Gateway]; known != nil && known.address != "" {
			found[known.address] = append(found[known.address], t)
		}
	}
	return found
}
