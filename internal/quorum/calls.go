package quorum

import (
	"context"

	"fencepost/internal/fencing"
)

// leaseKey is a lease of a name.
type leaseKey struct {
	name  fencing.Name
	lease fencing.LeasePublic
}

// leaseCalls is what this gateway has under way for a lease. What goes to a node about
// it gets there in the order in which it was sent: an end does not overtake the
// beginning, nor a take-back what it is to undo.
type leaseCalls struct {
	users  int                     // who need this: calls of nodes, and requests
	last   [maxNodes]chan struct{} // closed when the last call of a node is over; nil if there was none
	trying chan struct{}           // closed when the try under way is over; nil if there is none
	ends   uint                    // how often the lease was to end
}

// use returns what is under way for a lease, until done. The caller holds mu.
func (s *Store) use(key leaseKey) *leaseCalls {
	c := s.calls[key]
	if c == nil {
		c = &leaseCalls{}
		s.calls[key] = c
	}
	c.users++
	return c
}

func (s *Store) done(key leaseKey, c *leaseCalls) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(s.calls, key)
	}
}

// inTurn runs f in a goroutine, after all that was sent to the node before about the
// lease has been answered or has run out of time. It reports false if the store is
// closed.
func (s *Store) inTurn(key leaseKey, node int, f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	c, over := s.use(key), make(chan struct{})
	before := c.last[node]
	c.last[node] = over
	s.spawnLocked(func() {
		defer s.done(key, c)
		if before != nil {
			<-before
		}
		defer close(over)
		f()
	})
	return true
}

// beginTry waits until no other try of the lease is under way here: two at once could
// each get some nodes.
func (s *Store) beginTry(ctx context.Context, key leaseKey) (*leaseCalls, *fencing.Error) {
	s.mu.Lock()
	c := s.use(key)
	for c.trying != nil {
		other := c.trying
		s.mu.Unlock()
		var err *fencing.Error
		select {
		case <-other:
		case <-ctx.Done():
			err = fencing.Unavailable(context.Cause(ctx))
		case <-s.closing:
			err = fencing.Unavailable(errClosed)
		}
		if err != nil {
			s.done(key, c)
			return nil, err
		}
		s.mu.Lock()
	}
	c.trying = make(chan struct{})
	s.mu.Unlock()
	return c, nil
}

func (s *Store) endTry(key leaseKey, c *leaseCalls) {
	s.mu.Lock()
	close(c.trying)
	c.trying = nil
	s.mu.Unlock()
	s.done(key, c)
}

// ends notes that a lease is to end: it is not brought back by what was asked before.
func (s *Store) ends(key leaseKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.calls[key]; c != nil {
		c.ends++
	}
}
