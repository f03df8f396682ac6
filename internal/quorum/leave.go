package quorum

import (
	"context"

	"fencepost/internal/fencing"
)

// withdraw takes a request out of its line and waits until no try for it is under
// way. It returns what the request was, nil if it did not wait here.
func (s *Store) withdraw(ctx context.Context, key leaseKey, stamp fencing.Stamp, at **fencing.Waiter) (replaced bool, err *fencing.Error) {
	now := s.options.Clock()
	s.mu.Lock()
	l := s.lines[key.name]
	i := l.find(key.lease)
	if i < 0 {
		s.mu.Unlock()
		return false, nil
	}
	w := l.waiters[i]
	if w.ask.Stamp != stamp {
		s.mu.Unlock()
		return true, nil
	}
	place := w.place(i+1, now)
	*at = &place
	l.remove(w)
	trying := w.trying
	if w.stop != nil {
		w.stop()
	}
	s.mu.Unlock()
	if trying == nil {
		return false, nil
	}
	select {
	case <-trying:
		return false, nil
	case <-ctx.Done():
		return false, fencing.Unavailable(context.Cause(ctx))
	}
}

// Leave implements fencing.Store. No place rests.
func (s *Store) Leave(ctx context.Context, r fencing.LeaveRequest) (fencing.Outcome, error) {
	out, err := s.leave(ctx, r)
	if err != nil {
		out.Err = err
		return out, err
	}
	return out, nil
}

func (s *Store) leave(ctx context.Context, r fencing.LeaveRequest) (fencing.Outcome, *fencing.Error) {
	if err := s.usable(ctx); err != nil {
		return fencing.Outcome{}, err
	}
	key := leaseKey{r.Name, r.Lease.Public()}
	var place *fencing.Waiter
	replaced, err := s.withdraw(ctx, key, r.Stamp, &place)
	if err != nil {
		return fencing.Outcome{}, err
	}
	if replaced {
		return fencing.Outcome{}, errReplaced()
	}
	s.mu.Lock()
	m := s.made.of(key, r.Stamp)
	s.mu.Unlock()
	if m != nil && m.out != nil && !m.told {
		return *m.out, nil
	}
	lock, err := s.look(ctx, r.Name)
	if err != nil {
		return fencing.Outcome{}, err
	}
	return fencing.Outcome{Now: lock.Now, Place: place, Lock: lock, Asked: s.options.Clock()}, nil
}

// TakeBack implements fencing.Store.
func (s *Store) TakeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, error) {
	out, err := s.giveBack(ctx, r)
	if err != nil {
		out.Err = err
		return out, err
	}
	return out, nil
}

func (s *Store) giveBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, *fencing.Error) {
	if err := s.usable(ctx); err != nil {
		return fencing.Outcome{}, err
	}
	key := leaseKey{r.Name, r.Lease.Public()}
	var place *fencing.Waiter
	if _, err := s.withdraw(ctx, key, r.Stamp, &place); err != nil {
		return fencing.Outcome{}, err
	}
	out := fencing.Outcome{Now: fencing.InstantOf(s.options.Clock())}
	s.mu.Lock()
	m := s.made.of(key, r.Stamp)
	s.mu.Unlock()
	if r.Provisional {
		return out, nil
	}
	if m != nil && (!m.of(r.Lease) || m.told && !r.Refused) {
		m = nil
	}
	if m != nil {
		s.ends(key, func(st *start) bool { return st.try != nil && st.try.ask.Stamp == m.nodes })
		r.Stamp = m.nodes
	}
	done, outs := 0, make([]fencing.Outcome, len(s.nodes))
	err := ask(ctx, s, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.TakeBack(ctx, r)
	}, func(a answer[fencing.Outcome]) bool {
		if a.err == nil {
			outs[a.node] = a.out
			if done++; len(a.out.Left) > 0 {
				out.Left = a.out.Left
			}
		} else if m != nil {
			s.spawn(func() { s.takeBackAgain(a.node, r) })
		}
		return false
	})
	out.Ended = s.endedOf(outs)
	if m == nil { // there is nothing to take back
		return out, nil
	}
	if err == nil && done < majorityOf(len(s.nodes)) {
		err = unavailable("no majority of the nodes answers")
	}
	if err != nil {
		return fencing.Outcome{}, err
	}
	s.mu.Lock()
	if s.made.byLease[key] == m {
		s.made.forget(key)
		delete(s.attached, key)
	}
	s.mu.Unlock()
	s.wake(r.Name)
	s.watch.hint(r.Name)
	return out, nil
}
