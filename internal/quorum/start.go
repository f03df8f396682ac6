package quorum

import (
	"context"
	"slices"

	"fencepost/internal/fencing"
)

// start is that of a lease at some node. While it goes on the end of the lease may
// overtake it there.
type start struct {
	key    leaseKey
	secret fencing.SecretHash
	try    *try // nil of a renewal, which may yet bring the lease back to nodes
	ended  bool // the lease has ended meanwhile
}

// starts notes that a lease starts by a try, or that a renewal may have it do so.
func (s *Store) starts(key leaseKey, lease fencing.LeaseID, t *try) *start {
	st := &start{key: key, secret: lease.Hash(), try: t}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting[key] = append(s.starting[key], st)
	return st
}

// startsWith notes which try starts it, unless the lease has ended, or is asked for: tries
// of a lease don't cross. The next renewal brings it back then.
func (s *Store) startsWith(st *start, t *try) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.ended || s.flights[st.key] != nil || slices.ContainsFunc(s.starting[st.key], func(other *start) bool { return other.try != nil }) {
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

// allStarted waits until all nodes have answered the tries of a lease, and what is not
// wanted of them is undone: the next try must not meet them.
func (s *Store) allStarted(ctx context.Context, key leaseKey) *fencing.Error {
	for {
		s.mu.Lock()
		i := slices.IndexFunc(s.starting[key], func(st *start) bool { return st.try != nil })
		var t *try
		if i >= 0 {
			t = s.starting[key][i].try
		}
		s.mu.Unlock()
		if t == nil {
			return nil
		}
		select {
		case <-t.quiet:
		case <-ctx.Done():
			return fencing.Unavailable(context.Cause(ctx))
		case <-s.closing:
			return fencing.Unavailable(errClosed)
		}
	}
}

// ends has what nodes still grant taken back of a lease that ends, as far as it starts
// by one of those that of picks.
func (s *Store) ends(key leaseKey, of func(*start) bool) {
	var tries []*try
	s.mu.Lock()
	for _, st := range s.starting[key] {
		if !of(st) {
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
