package quorum

import (
	"slices"

	"fencepost/internal/fencing"
)

// start is that of a lease at some node. While it goes on the end of the lease may
// overtake it there.
type start struct {
	key   leaseKey
	lease fencing.LeaseID
	try   *try // nil of a renewal, which may yet bring the lease back to nodes
	ended bool // the lease has ended meanwhile
}

// starts notes that a lease starts, or that a renewal may have it do so.
func (s *Store) starts(key leaseKey, lease fencing.LeaseID) *start {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &start{key: key, lease: lease}
	s.starting[key] = append(s.starting[key], st)
	return st
}

// startsWith notes which try starts it, unless the lease has ended.
func (s *Store) startsWith(st *start, t *try) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.ended {
		return false
	}
	st.try = t
	return true
}

// started notes that all nodes have answered.
func (s *Store) started(st *start) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := slices.DeleteFunc(s.starting[st.key], func(other *start) bool { return other == st }); len(left) > 0 {
		s.starting[st.key] = left
	} else {
		delete(s.starting, st.key)
	}
}

// ends has what nodes still grant of a lease that ends taken back. Without a lease id
// that is so whatever the secret is.
func (s *Store) ends(key leaseKey, lease *fencing.LeaseID) {
	var tries []*try
	s.mu.Lock()
	for _, st := range s.starting[key] {
		if lease != nil && !st.lease.Hash().Equal(lease.Hash()) {
			continue
		}
		if st.ended = true; st.try != nil {
			tries = append(tries, st.try)
		}
	}
	s.mu.Unlock()
	for _, t := range tries {
		t.unwant()
	}
}
