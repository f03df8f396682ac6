package quorum

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"fencepost/internal/fencing"
)

// flight is an acquire under way. Those of one lease go one after the other: two at
// once could each get some nodes.
type flight struct{ landed chan struct{} }

// Acquire implements fencing.Store. CodeUnsupportedByStore: limit or a set.
// CodeInvalidRequest: also a TTL of which nothing would be left after the margin.
func (s *Store) Acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	out, err := s.acquire(ctx, r)
	if err != nil {
		out.Err = err
		return out, err
	}
	return out, nil
}

func (s *Store) acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, *fencing.Error) {
	if err := s.check(ctx, &r); err != nil {
		return fencing.Outcome{}, err
	}
	if r.Again {
		if out, err, known := s.recall(&r); known {
			return out, err
		}
	}
	if out, err, joined := s.resume(&r); joined {
		return out, err
	}
	if r.Wait == 0 && s.waiting(r.Name) > 0 { // nobody overtakes those who wait here
		if err := s.behindOthers(ctx, &r); err != nil {
			return fencing.Outcome{}, err
		}
	}
	if r.Wait > 0 && !s.seemsToHold(&r) {
		if out, err := s.joinLine(&r, nil); out.Place != nil || err != nil {
			return out, err
		}
	}
	out, err, divided := s.attempt(ctx, r, atOnce)
	if err != nil && r.Wait > 0 && (divided || err.Code == fencing.CodeLocked || err.Code == fencing.CodeQuarantined) {
		lock := err.Lock
		if lock == nil {
			lock = &fencing.Lock{Name: r.Name, Now: fencing.InstantOf(s.options.Clock())}
		}
		return s.joinLine(&r, lock)
	}
	return out, err
}

// check refuses what a quorum can't do.
func (s *Store) check(ctx context.Context, r *fencing.AcquireRequest) *fencing.Error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if r.Limit > 0 {
		return unsupportedLimit()
	}
	if r.Set != "" {
		return &fencing.Error{
			Code: fencing.CodeUnsupportedByStore, Field: "names",
			Detail: "names: several under one lease id need a store that grants all or none; a quorum can't",
		}
	}
	return s.checkTTL(r.TTL)
}

func unsupportedLimit() *fencing.Error {
	return &fencing.Error{
		Code: fencing.CodeUnsupportedByStore, Field: "limit",
		Detail: "limit: permits can't be counted by majority, for each node may have granted the last one to somebody else",
	}
}

func (s *Store) checkTTL(ttl time.Duration) *fencing.Error {
	least := shortestTTL(s.options.MaxSkew, s.options.NodeTimeout)
	if ttl >= least || s.options.exact {
		return nil
	}
	return &fencing.Error{
		Code: fencing.CodeInvalidRequest, Field: "ttl_ms",
		Detail: fmt.Sprintf("ttl_ms is %d; with a quorum it must be at least %d: by how much clocks may differ (%s), 2 ms, and the time for a node's answer (%s), plus 1 %%",
			ttl.Milliseconds(), least.Milliseconds(), s.options.MaxSkew, s.options.NodeTimeout),
	}
}

// behindOthers refuses a request that would not wait, because others do, unless it
// has the lease already.
func (s *Store) behindOthers(ctx context.Context, r *fencing.AcquireRequest) *fencing.Error {
	lock, err := s.look(ctx, r.Name)
	if err != nil {
		return err
	}
	for i := range lock.Holders {
		if lock.Holders[i].Lease == r.Lease.Public() {
			return nil
		}
	}
	return locked(lock)
}

func locked(lock *fencing.Lock) *fencing.Error {
	return &fencing.Error{
		Code: fencing.CodeLocked, Detail: "somebody else holds the lock", Lock: shownOf(lock), RetryAfter: lock.NextExpiry(),
	}
}

// attempt tries to get the lease, again after a short pause while the nodes are
// divided among several who try, and reports whether they were in the end.
func (s *Store) attempt(ctx context.Context, r fencing.AcquireRequest, tries int) (out fencing.Outcome, err *fencing.Error, divided bool) {
	key := leaseKey{r.Name, r.Lease.Public()}
	f, err := s.take(ctx, key)
	if err != nil {
		return out, err, false
	}
	defer s.land(key, f)
	if err := s.allStarted(ctx, key); err != nil {
		return out, err, false
	}
	s.note(r.TTL)
	for pause := s.options.pause / 5; ; pause *= 2 {
		t := s.newTry(r)
		if stamp := s.repeats(key, &r); stamp != "" {
			t.ask.Stamp, t.repeats = stamp, true
		}
		t.run(ctx)
		if out, err = t.outcome(); err == nil {
			if err := s.got(key, &r, t, &out); err != nil {
				t.mu.Lock()
				t.perform(moves{undo: allNodes(len(s.nodes))})
				t.mu.Unlock()
				return fencing.Outcome{}, err, false
			}
			return out, nil, false
		}
		t.mu.Lock()
		divided = t.attempt.again
		t.mu.Unlock()
		if err.Code == fencing.CodeLocked {
			err = s.lockedView(t, &r)
		}
		if tries--; !divided || tries == 0 || ctx.Err() != nil || !s.pause(pause/2+rand.N(pause)) {
			<-t.undone
			return fencing.Outcome{Now: fencing.InstantOf(t.began), Ended: out.Ended}, err, divided
		}
		<-t.quiet // the next try must not find what this one leaves
	}
}

// repeats returns the stamp that the grant of a request has at the nodes, if it has got
// one and asks again.
func (s *Store) repeats(key leaseKey, r *fencing.AcquireRequest) fencing.Stamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.made.of(key, r.Stamp); m != nil && m.of(r.Lease) {
		return m.nodes
	}
	return ""
}

// take waits until no other acquire of the lease is under way here.
func (s *Store) take(ctx context.Context, key leaseKey) (*flight, *fencing.Error) {
	for {
		s.mu.Lock()
		other := s.flights[key]
		if other == nil {
			f := &flight{landed: make(chan struct{})}
			s.flights[key] = f
			s.mu.Unlock()
			return f, nil
		}
		s.mu.Unlock()
		select {
		case <-other.landed:
		case <-ctx.Done():
			return nil, fencing.Unavailable(context.Cause(ctx))
		}
	}
}

func (s *Store) land(key leaseKey, f *flight) {
	s.mu.Lock()
	delete(s.flights, key)
	s.mu.Unlock()
	close(f.landed)
}

// got notes a grant for the case that it can't be delivered. It fails if the lease has
// ended meanwhile.
func (s *Store) got(key leaseKey, r *fencing.AcquireRequest, t *try, out *fencing.Outcome) *fencing.Error {
	now := s.options.Clock()
	t.mu.Lock()
	had := false // what was agreed on, and told before
	for i := range t.attempt.votes {
		had = had || t.had.has(i) && t.attempt.votes[i].standing == accepted
	}
	t.mu.Unlock()
	defer s.watch.hint(r.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.start.ended {
		return endedMeanwhile()
	}
	old := s.made.forget(key)
	same := old != nil && old.request == r.Stamp && r.Hold == 1 // whoever goes deeper was told
	out.Fresh = !had || same && !old.told
	switch {
	case !had:
		out.Granted = []fencing.Grant{{
			Name: r.Name, Holder: out.Holder, Gateway: s.self, Stamp: r.Stamp, Secret: r.Lease.Hash(),
		}}
		until := now.Add(out.Holder.ExpiresAt.Sub(out.Now))
		s.made.add(key, &made{stamps: stamps{r.Stamp, t.ask.Stamp}, secret: r.Lease.Hash(), until: until}, now)
	case same:
		s.made.add(key, old, now)
	}
	if r.Attach {
		s.attach(key, attachment{stamps{r.Stamp, t.ask.Stamp}, r.Lease.Hash(), now.Add(out.Holder.TTL)}, now)
	} else if r.Hold == 1 {
		delete(s.attached, key)
	}
	return nil
}

// lockedView is a refusal that shows who holds the lock, as far as the nodes of a
// try have said.
func (s *Store) lockedView(t *try, r *fencing.AcquireRequest) *fencing.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	views := make([]*fencing.Lock, len(s.nodes))
	silent := 0
	for i := range t.attempt.votes {
		v := &t.attempt.votes[i]
		switch {
		case v.standing == against && v.err.Lock != nil:
			views[i] = v.err.Lock
		case v.standing == holding:
			views[i] = &fencing.Lock{Name: r.Name, Now: t.outs[i].Now}
		default:
			silent++
		}
	}
	lock := s.merge(r.Name, views, t.began)
	if len(lock.Holders) == 0 { // the nodes are divided: show whom they name
		for _, view := range views {
			if view != nil && view.Held() {
				lock.Holders = append(lock.Holders, s.shown(view, &view.Holders[0], t.began))
				lock.HolderCount = max(lock.HolderCount, 1)
				break
			}
		}
	}
	lock.Waiting = s.waiting(r.Name)
	err := locked(lock)
	err.RetryAfter = cmp.Or(err.RetryAfter, s.options.pause)
	return err
}
