package quorum

import (
	"context"
	"errors"

	"fencepost/internal/fencing"
)

const (
	// maxCounts is how many renewals and releases of a lease are counted at a time; others
	// wait until one of them is decided.
	maxCounts = 8

	// maxRenewals is how many calls about a lease a node may owe an answer before no renewal
	// is sent there any more: the next one does it. maxCalls is the same of whatever else but
	// take-backs: there is room for ends behind the renewals.
	maxRenewals = maxCounts
	maxCalls    = 2 * maxCounts

	// maxOwed is the same where no majority is left without such nodes: then nothing is sent.
	maxOwed = 4 * maxCounts
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
	counts chan struct{}           // has an entry for each count that is not decided
	owed   [maxNodes]int           // calls of a node that are not over
	last   [maxNodes]chan struct{} // closed when the last call of a node is over; nil if there was none
	trying chan struct{}           // closed when the try under way is over; nil if there is none
	ends   uint                    // how often the lease was to end

	reclaiming bool // see reclaim
}

// use returns what is under way for a lease, until done. The caller holds mu.
func (s *Store) use(key leaseKey) *leaseCalls {
	c := s.calls[key]
	if c == nil {
		c = &leaseCalls{counts: make(chan struct{}, maxCounts)}
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

// inTurn asks a node in a goroutine, after all that was sent to it before about the
// lease has been answered or has run out of time. What ask returns, unless it is nil, tells
// the answer, once the node does not owe it any more. It reports false if the store is
// closed.
func (s *Store) inTurn(key leaseKey, node int, ask func() (tell func())) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	c, over := s.use(key), make(chan struct{})
	before := c.last[node]
	c.last[node] = over
	c.owed[node]++
	s.spawnLocked(func() {
		defer s.done(key, c)
		if before != nil {
			<-before
		}
		tell := s.askInTurn(c, node, over, ask)
		if tell != nil {
			tell()
		}
	})
	return true
}

// telling is an ask that tells the answer by itself.
func telling(ask func()) func() func() {
	return func() func() { ask(); return nil }
}

// askInTurn asks a node whose turn it is, and lets the next one ask, also after a panic.
func (s *Store) askInTurn(c *leaseCalls, node int, over chan<- struct{}, ask func() func()) (tell func()) {
	defer func() {
		s.mu.Lock()
		c.owed[node]--
		s.mu.Unlock()
		close(over)
	}()
	return ask()
}

// errOwed is of a lease about which a majority of the nodes has answered nothing for long.
var errOwed = errors.New("a majority of the nodes owes too many answers about the lease")

// full returns the nodes that owe so many answers about a lease. If no majority is left
// without them it is those that owe maxOwed: it is not for a few of them that all wait.
func (s *Store) full(c *leaseCalls, calls int) nodeSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.owing(c, calls)
	if len(s.nodes)-set.count() < majorityOf(len(s.nodes)) {
		set = s.owing(c, maxOwed)
	}
	return set
}

// leaves reports whether a majority is left without the nodes that owe so many answers about a lease.
func (s *Store) leaves(c *leaseCalls, calls int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.nodes)-s.owing(c, calls).count() >= majorityOf(len(s.nodes))
}

// owing returns the nodes that owe so many answers about a lease. The caller holds the mutex.
func (s *Store) owing(c *leaseCalls, calls int) (set nodeSet) {
	for i := range s.nodes {
		if c.owed[i] >= calls {
			set |= 1 << i
		}
	}
	return set
}

// beginCount waits until there is room for one more count of a lease.
func (s *Store) beginCount(ctx context.Context, key leaseKey) (*leaseCalls, *fencing.Error) {
	s.mu.Lock()
	c := s.use(key)
	s.mu.Unlock()
	var err *fencing.Error
	select {
	case c.counts <- struct{}{}:
		return c, nil
	case <-ctx.Done():
		err = fencing.Unavailable(context.Cause(ctx))
	case <-s.closing:
		err = fencing.Unavailable(errClosed)
	}
	s.done(key, c)
	return nil, err
}

func (s *Store) endCount(key leaseKey, c *leaseCalls) {
	<-c.counts
	s.done(key, c)
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
