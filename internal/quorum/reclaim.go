package quorum

import (
	"cmp"
	"context"

	"fencepost/internal/fencing"
)

// reclaim has a lease hang on the stream that has just renewed it at a majority also at the nodes that
// have refused that: a newer request has it there, which came to nothing elsewhere. They would refuse
// the stream until the lease ends there, and not have it back then.
//
// The newer request may be about to have a majority. So it looks again when nothing of its try can be
// under way any more: if a majority still has the lease hang on the stream, and a node on the same request as
// before, that node is told of one takeover more than it has seen. One that yet another request reaches
// meanwhile has seen as many, and refuses. Of a name with more holders than are shown it may find none.
func (s *Store) reclaim(r fencing.RenewRequest, t *tally, key leaseKey, c *leaseCalls, ends uint) {
	from := t.replaced()
	if !t.ok || r.Stamp == "" || from == 0 || !s.beginReclaim(c) {
		return
	}
	defer s.endReclaim(c)
	began := s.options.Clock()
	before := s.holdings(context.Background(), key)
	if !s.idle(2*s.options.MaxSkew + s.options.NodeTimeout) {
		return
	}
	now, has := s.holdings(context.Background(), key), 0
	for i := range now {
		if h := &now[i]; h.Token == t.token && h.Attached == r.Stamp {
			has++
		}
	}
	if has < majorityOf(len(s.nodes)) || !s.mayReclaim(c, ends) {
		return
	}
	for i := range s.nodes {
		was, is := &before[i], &now[i]
		if !from.has(i) || is.Token != t.token || was.Token != is.Token || was.Epoch != is.Epoch || is.Attached == r.Stamp {
			continue
		}
		ask := fencing.RenewRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp, Epoch: is.Epoch + 1}
		ask.TTL = cmp.Or(r.TTL, is.GrantTTL) - s.options.Clock().Sub(began) // no longer than the renewal that was refused
		if ask.TTL <= 0 {
			continue
		}
		s.inTurn(key, i, func() func() {
			call, cancel := s.call()
			defer cancel()
			_, _ = s.nodes[i].Do(call, ask) // the next renewal finds what was not done
			return nil
		})
	}
}

// beginReclaim reports whether nothing is being reclaimed of a lease, and notes that it is, until
// endReclaim.
func (s *Store) beginReclaim(c *leaseCalls) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.reclaiming {
		return false
	}
	c.reclaiming = true
	return true
}

func (s *Store) endReclaim(c *leaseCalls) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.reclaiming = false
}

// mayReclaim reports whether a lease was not to end since its renewal was asked for, and no try for
// it is under way here.
func (s *Store) mayReclaim(c *leaseCalls, ends uint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.ends == ends && c.trying == nil
}

// holdings returns what a lease is at each node, after all that was sent there before; without a token at
// one that has not said, or shows none.
func (s *Store) holdings(ctx context.Context, key leaseKey) (held [maxNodes]fencing.Holder) {
	_ = askBy(ctx, s, func(node int, f func()) bool { return s.inTurn(key, node, telling(f)) }, s.call, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.Do(ctx, fencing.InspectRequest{Name: key.name})
	}, func(a answer[fencing.Outcome]) bool {
		if a.err != nil {
			return false
		}
		for i := range a.out.Lock.Holders {
			if h := &a.out.Lock.Holders[i]; h.Lease == key.lease {
				held[a.node] = *h
			}
		}
		return false
	})
	return held
}

// mayHangOn reports whether a lease may hang at a majority of the nodes on a stream that was told of so
// many takeovers.
func (s *Store) mayHangOn(ctx context.Context, key leaseKey, stamp fencing.Stamp, epoch int64) bool {
	held, elsewhere := s.holdings(ctx, key), 0
	for i := range held {
		if h := &held[i]; h.Token != 0 && h.Attached != stamp && h.Epoch >= epoch {
			elsewhere++
		}
	}
	return elsewhere < majorityOf(len(s.nodes))
}
