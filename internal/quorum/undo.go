package quorum

import (
	"context"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
)

const (
	// maxUndoing is how many take-backs wait until they are repeated, in a goroutine each.
	// From there on nothing is tried that could make more of them.
	maxUndoing = 4096

	// maxRenamed is how many requests are remembered by two stamps, at about 200 bytes
	// each, beside those that leases hang on. What is older can't be taken back any more: it is
	// left to its TTL.
	maxRenamed = 1 << 12
)

// requestKey is a request for a lease of a name, by the stamp that nodes know it by.
type requestKey struct {
	leaseKey
	stamp fencing.Stamp
}

func requestOf(name fencing.Name, lease fencing.LeaseID, stamp fencing.Stamp) requestKey {
	return requestKey{leaseKey{name, lease.Public()}, stamp}
}

// undos is what is on its way back, the grants of tries that came to nothing and
// those that could not be delivered.
type undos struct {
	underWay    map[requestKey]int // at how many nodes
	retryStamps map[requestKey]retryStamp
	order       []requestKey // of retryStamps, those that are forgotten first come first
	waiting     atomic.Int64 // those that are repeated later
}

// retryStamp is the stamp of the last try of a request.
type retryStamp struct {
	fencing.Stamp
	until time.Time // the lease that hangs on it lives till then at most; the zero time: none does
}

// undo takes back what a request has got at a node, and tells the answer. It is repeated
// until the node answers, and once more after the guard against late commands refuses
// whatever was on its way, if the node has not answered at first, or if unsure: an acquire
// has had no answer and may yet be carried out. What can't be taken back ends with its TTL.
// It reports false if the store is closed.
func (s *Store) undo(node int, r fencing.TakeBackRequest, unsure bool, tell func(fencing.Outcome, error)) bool {
	key := requestOf(r.Name, r.Lease, r.Stamp)
	s.beginUndo(key)
	sent := s.inTurn(key.leaseKey, node, func() func() {
		out, err := s.takeBackAt(node, r)
		if err == nil && !unsure || !s.undoLater(func() { s.undoAgain(node, r); s.endUndo(key) }) {
			s.endUndo(key)
		}
		return func() { tell(out, err) }
	})
	if !sent {
		s.endUndo(key)
	}
	return sent
}

// beginUndo notes that something of a request is to be undone at one more node, until
// endUndo.
func (s *Store) beginUndo(key requestKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undos.underWay[key]++
}

func (s *Store) endUndo(key requestKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.undos.underWay[key]--; s.undos.underWay[key] == 0 {
		delete(s.undos.underWay, key)
	}
}

// undoLater runs f in the background, unless there is too much of that.
func (s *Store) undoLater(f func()) bool {
	if s.undos.waiting.Add(1) > maxUndoing {
		s.undos.waiting.Add(-1)
		return false
	}
	if !s.spawn(func() { defer s.undos.waiting.Add(-1); f() }) {
		s.undos.waiting.Add(-1)
		return false
	}
	return true
}

func (s *Store) takeBackAt(node int, r fencing.TakeBackRequest) (fencing.Outcome, error) {
	ctx, cancel := s.call()
	defer cancel()
	return s.nodes[node].Do(ctx, r)
}

// undoAgain asks a node until it has answered, after no command that was sent before
// is carried out any more.
func (s *Store) undoAgain(node int, r fencing.TakeBackRequest) {
	guarded := 2*s.options.MaxSkew + s.options.NodeTimeout
	for wait := guarded; wait <= 16*guarded; wait *= 2 {
		open := s.idle(wait)
		if _, err := s.takeBackAt(node, r); err == nil || !open {
			return
		}
	}
	s.idle(guarded) // the last one may be on its way
}

// stampFor returns the stamp for a try of a request: its own, unless an earlier try is
// still being undone. Those take-backs must not undo the later try. It fails if too
// many requests are being undone.
func (s *Store) stampFor(key requestKey) (fencing.Stamp, *fencing.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.undos.waiting.Load() >= maxUndoing {
		return "", unavailable("too much has to be taken back from nodes that do not answer")
	}
	stamp := s.stampAt(key)
	if s.undos.underWay[requestKey{key.leaseKey, stamp}] == 0 {
		return stamp, nil
	}
	stamp = fencing.NewStamp()
	if _, known := s.undos.retryStamps[key]; !known {
		s.undos.forget(s.options.Clock())
		s.undos.order = append(s.undos.order, key)
	}
	s.undos.retryStamps[key] = retryStamp{Stamp: stamp}
	return stamp, nil
}

// forget makes room for one more stamp. It looks at two, so that those that leases hang on,
// which it keeps, are passed by.
func (u *undos) forget(now time.Time) {
	for range 2 {
		if len(u.order) < maxRenamed {
			return
		}
		key := u.order[0]
		u.order = u.order[1:]
		if now.Before(u.retryStamps[key].until) {
			u.order = append(u.order, key)
		} else {
			delete(u.retryStamps, key)
		}
	}
}

// hangs has the outcome of a request, which nodes know by stamp, tell its own stamp where the
// lease hangs on it, which is not forgotten while the lease lives.
func (s *Store) hangs(h *fencing.Holder, key requestKey, stamp fencing.Stamp) {
	if stamp == key.stamp || h.Attached != stamp {
		return
	}
	h.Attached = key.stamp
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.undos.retryStamps[key].Stamp == stamp {
		s.undos.retryStamps[key] = retryStamp{stamp, h.ExpiresAt.Time()}
	}
}

// stampOf returns the stamp that nodes know a request by.
func (s *Store) stampOf(name fencing.Name, lease fencing.LeaseID, stamp fencing.Stamp) fencing.Stamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stampAt(requestOf(name, lease, stamp))
}

// stampAt is stampOf for who holds mu.
func (s *Store) stampAt(key requestKey) fencing.Stamp {
	if retry, retried := s.undos.retryStamps[key]; retried {
		return retry.Stamp
	}
	return key.stamp
}

// ownStamps returns the stamps of requests by those of their last tries, where these differ.
func (s *Store) ownStamps() map[requestKey]fencing.Stamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := make(map[requestKey]fencing.Stamp, len(s.undos.retryStamps))
	for key, retry := range s.undos.retryStamps {
		own[requestKey{key.leaseKey, retry.Stamp}] = key.stamp
	}
	return own
}

// requestBy returns the stamp of the request that nodes know by a stamp on a name. It reports false
// of a try that a later one of the same request has replaced.
func (s *Store) requestBy(name fencing.Name, stamp fencing.Stamp) (fencing.Stamp, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, retry := range s.undos.retryStamps {
		switch {
		case key.name != name:
		case retry.Stamp == stamp:
			return key.stamp, true
		case key.stamp == stamp:
			return stamp, false
		}
	}
	return stamp, true
}

func (s *Store) takeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, *fencing.Error) {
	began := s.options.Clock()
	out := fencing.Outcome{Now: fencing.InstantOf(began)}
	if err := s.usable(ctx); err != nil || r.Unknown { // nothing is
		return out, err
	}
	s.ends(leaseKey{r.Name, r.Lease.Public()})
	r.Stamp = s.stampOf(r.Name, r.Lease, r.Stamp)
	if r.Left && !s.mayHangOn(ctx, leaseKey{r.Name, r.Lease.Public()}, r.Stamp, r.Epoch) {
		r.Left = false // it came to nothing; what it has reached goes back to the stream that a majority has: reclaim
	}
	answers := make(chan answer[fencing.Outcome], len(s.nodes))
	for i := range s.nodes {
		if !s.undo(i, r, false, func(out fencing.Outcome, err error) {
			answers <- answer[fencing.Outcome]{i, out, asError(err)}
		}) {
			return out, fencing.Unavailable(errClosed)
		}
	}
	outs, done := make([]fencing.Outcome, len(s.nodes)), 0
	for range s.nodes {
		select {
		case a := <-answers:
			if a.err == nil {
				outs[a.node] = a.out
				done++
			}
		case <-ctx.Done():
			return out, fencing.Unavailable(context.Cause(ctx))
		}
	}
	if done < majorityOf(len(s.nodes)) {
		return out, unavailable("no majority of the nodes answers")
	}
	out = s.remaining(outs, began)
	for i := range outs {
		if len(outs[i].Left) > 0 {
			out.Left = outs[i].Left
		}
	}
	return out, nil
}
