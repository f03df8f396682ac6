package quorum

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"fencepost/internal/fencing"
)

// acquire tries to get the lease, again after a short pause while the nodes are
// divided among several who try. Whoever would wait comes again by itself.
// CodeUnsupportedByStore: limit, a lock delay or a set.
// CodeInvalidRequest: also a TTL of which nothing would be left after the margin. Whoever
// was told of a grant does not ask again under the same stamp: if that is refused, the
// grant is undone.
func (s *Store) acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, *fencing.Error) {
	if err := s.check(ctx, &r); err != nil {
		return fencing.Outcome{}, err
	}
	if r.Behind {
		if err := s.behindOthers(ctx, &r); err != nil {
			return fencing.Outcome{}, err
		}
	}
	key := requestOf(r.Name, r.Lease, r.Stamp)
	c, err := s.beginTry(ctx, key.leaseKey)
	if err != nil {
		return fencing.Outcome{}, err
	}
	defer s.endTry(key.leaseKey, c)
	tries := immediateTries
	if r.Wait > 0 {
		tries = 1
	}
	for pause := s.options.pause / 5; ; pause *= 2 {
		stamp, err := s.stampFor(key)
		if err != nil {
			return fencing.Outcome{}, err
		}
		t := s.newTry(key.leaseKey, r, stamp)
		t.calls = c
		t.run(ctx)
		t.level(ctx)
		out, err := t.outcome()
		if err == nil {
			s.hangs(&out.Holder, key, stamp)
			for i := range out.Granted {
				out.Granted[i].Stamp, out.Granted[i].Holder.Attached = r.Stamp, out.Holder.Attached
			}
			return out, nil
		}
		<-t.undone // so that those who come next find nothing of it
		divided := t.divided()
		if tries--; divided && tries > 0 && ctx.Err() == nil && s.pause(pause/2+rand.N(pause)) {
			continue
		}
		if err.Code == fencing.CodeLocked || divided && r.Wait > 0 {
			err = s.lockedView(t, &r)
		}
		return fencing.Outcome{Now: fencing.InstantOf(t.began), Ended: out.Ended}, err
	}
}

// check refuses what a quorum can't do.
func (s *Store) check(ctx context.Context, r *fencing.AcquireRequest) *fencing.Error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if r.Limit > 0 {
		return unsupportedLimit()
	}
	if r.LockDelay > 0 {
		return &fencing.Error{
			Code: fencing.CodeUnsupportedByStore, Field: "lock_delay_ms",
			Detail: "lock_delay_ms: not supported by a quorum, because a lease ends at each node separately and no node sees when it has ended at a majority",
		}
	}
	if r.Set != "" {
		return &fencing.Error{
			Code: fencing.CodeUnsupportedByStore, Field: "names",
			Detail: "names: not supported by a quorum, which can't grant several names together or not at all",
		}
	}
	return s.checkTTL(r.TTL)
}

func unsupportedLimit() *fencing.Error {
	return &fencing.Error{
		Code: fencing.CodeUnsupportedByStore, Field: "limit",
		Detail: "limit: not supported by a quorum, because each node may have granted the last permit to somebody else",
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

// behindOthers refuses a request because others wait, unless it has the lease already.
func (s *Store) behindOthers(ctx context.Context, r *fencing.AcquireRequest) *fencing.Error {
	lock, err := s.majorityView(ctx, r.Name)
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
	return fencing.LockedError(fencing.CodeLocked, shownOf(lock))
}

// lockedView is a refusal that shows who holds the lock, as far as the nodes of a
// try have said.
func (s *Store) lockedView(t *try, r *fencing.AcquireRequest) *fencing.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	views := make([]*fencing.Lock, len(s.nodes))
	for i := range t.attempt.votes {
		v := &t.attempt.votes[i]
		switch {
		case v.standing == against && v.err.Lock != nil:
			views[i] = v.err.Lock
		case v.standing == holding:
			views[i] = &fencing.Lock{Name: r.Name, Now: t.outs[i].Now}
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
	err := locked(lock)
	err.RetryAfter = cmp.Or(err.RetryAfter, s.options.pause)
	return err
}
