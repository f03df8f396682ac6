package quorum

import (
	"context"
	"sync/atomic"

	"fencepost/internal/fencing"
)

const (
	// maxUndoing is how many take-backs wait until they are repeated, in a goroutine each.
	// From there on nothing is tried that could make more of them.
	maxUndoing = 4096

	// maxRenamed is how many requests are remembered by two stamps, at about 200 bytes
	// each. What is older can't be taken back any more: it is left to its TTL.
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
	underWay    map[requestKey]int           // at how many nodes
	retryStamps map[requestKey]fencing.Stamp // the stamps of later tries
	order       []requestKey                 // of retryStamps, oldest first
	waiting     atomic.Int64                 // those that are repeated later
}

// undo takes back what a request has got at a node, and tells the answer. It is repeated
// until the node answers, and once more after the guard against late commands refuses
// whatever was on its way, if the node has not answered at first, or if unsure: an acquire
// has had no answer and may yet be carried out. What can't be taken back ends with its TTL.
// It reports false if the store is closed.
func (s *Store) undo(node int, r fencing.TakeBackRequest, unsure bool, tell func(fencing.Outcome, error)) bool {
	key := requestOf(r.Name, r.Lease, r.Stamp)
	s.beginUndo(key)
	sent := s.inTurn(key.leaseKey, node, func() {
		out, err := s.takeBackAt(node, r)
		if err == nil && !unsure || !s.undoLater(func() { s.undoAgain(node, r); s.endUndo(key) }) {
			s.endUndo(key)
		}
		tell(out, err)
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
	return s.nodes[node].TakeBack(ctx, r)
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
		if len(s.undos.order) >= maxRenamed {
			delete(s.undos.retryStamps, s.undos.order[0])
			s.undos.order = s.undos.order[1:]
		}
		s.undos.order = append(s.undos.order, key)
	}
	s.undos.retryStamps[key] = stamp
	return stamp, nil
}

// stampOf returns the stamp that nodes know a request by.
func (s *Store) stampOf(name fencing.Name, lease fencing.LeaseID, stamp fencing.Stamp) fencing.Stamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stampAt(requestOf(name, lease, stamp))
}

// stampAt is stampOf for who holds mu.
func (s *Store) stampAt(key requestKey) fencing.Stamp {
	if stamp, retried := s.undos.retryStamps[key]; retried {
		return stamp
	}
	return key.stamp
}

// TakeBack implements fencing.Store.
func (s *Store) TakeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, error) {
	out, err := s.takeBack(ctx, r)
	if err != nil {
		out.Err = err
	}
	return out.Result()
}

func (s *Store) takeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, *fencing.Error) {
	out := fencing.Outcome{Now: fencing.InstantOf(s.options.Clock())}
	if err := s.usable(ctx); err != nil || r.Unknown { // nothing is
		return out, err
	}
	s.ends(leaseKey{r.Name, r.Lease.Public()})
	r.Stamp = s.stampOf(r.Name, r.Lease, r.Stamp)
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
	for i := range outs {
		if len(outs[i].Left) > 0 {
			out.Left = outs[i].Left
		}
	}
	out.Ended = s.endedOf(outs)
	return out, nil
}
