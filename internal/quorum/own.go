package quorum

import (
	"context"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// count runs a tally on all nodes and returns once it is decided, with what each
// node has answered by then. Once all have answered or run out of time, after has the
// whole count; it may be nil.
func (s *Store) count(ctx context.Context, t *tally, do func(context.Context, fencing.Node) (fencing.Outcome, error), after func(*tally, []fencing.Outcome)) ([]fencing.Outcome, time.Time, *fencing.Error) {
	if err := s.usable(ctx); err != nil {
		return nil, time.Time{}, err
	}
	began := s.options.Clock()
	answers := make(chan answer[fencing.Outcome], len(s.nodes))
	asked := 0
	for i, node := range s.nodes {
		if s.spawn(func() {
			call, cancel := s.call()
			defer cancel()
			out, err := do(call, node)
			s.mark(i, err)
			answers <- answer[fencing.Outcome]{i, out, asError(err)}
		}) {
			asked++
		}
	}
	outs := make([]fencing.Outcome, len(s.nodes))
	hear := func(t *tally, a answer[fencing.Outcome]) {
		elapsed := s.options.Clock().Sub(began)
		outs[a.node] = a.out
		if a.err != nil {
			t.notDone(a.node, a.err, false, elapsed)
			return
		}
		t.done(a.node, &a.out.Holder, s.safeLeft(&a.out), elapsed)
	}
	left := asked // of the answers
	for ; left > 0 && !t.decided; left-- {
		select {
		case a := <-answers:
			hear(t, a)
		case <-ctx.Done():
			return nil, began, fencing.Unavailable(context.Cause(ctx))
		}
	}
	if !t.decided {
		return nil, began, fencing.Unavailable(errClosed)
	}
	result := slices.Clone(outs)
	if after != nil {
		whole := *t
		whole.votes = slices.Clone(t.votes)
		s.spawn(func() {
			for ; left > 0; left-- {
				hear(&whole, <-answers)
			}
			after(&whole, outs)
		})
	}
	return result, began, nil
}

// forgotten counts again without the nodes that don't know the lease because they
// have forgotten it, or may have.
func (s *Store) forgotten(ctx context.Context, t *tally, began time.Time) *tally {
	unknown := func(v *vote) bool {
		return v.standing == against && v.err.Code == fencing.CodeLeaseLost && v.err.Reason == fencing.ReasonUnknown
	}
	again := newTally(len(t.votes), t.margin, t.release)
	for i := range t.votes {
		v, elapsed := &t.votes[i], s.options.Clock().Sub(began)
		switch {
		case v.standing == accepted:
			again.done(i, &fencing.Holder{Token: v.token, Claimed: v.claimed}, v.end, elapsed)
		case v.standing == against:
			again.notDone(i, v.err, unknown(v) && s.forgetful(ctx, i), elapsed)
		default:
			again.notDone(i, unavailable("no answer"), false, elapsed)
		}
	}
	return again
}

// forgetful reports whether a node may have forgotten leases that still run.
func (s *Store) forgetful(ctx context.Context, node int) bool {
	ctx, cancel := context.WithTimeout(ctx, s.options.NodeTimeout)
	defer cancel()
	if blank, err := s.nodes[node].Blank(ctx); err != nil || blank {
		return true
	}
	stats, err := s.nodes[node].Stats(ctx)
	return err != nil || stats.Quarantine > 0
}

// Renew implements fencing.Store.
func (s *Store) Renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, error) {
	out, err := s.renew(ctx, r)
	if err != nil {
		out.Err = err
		return out, err
	}
	return out, nil
}

func (s *Store) renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, *fencing.Error) {
	if r.Limit > 0 {
		return fencing.Outcome{}, unsupportedLimit()
	}
	if r.TTL != 0 {
		if err := s.checkTTL(r.TTL); err != nil {
			return fencing.Outcome{}, err
		}
		s.note(r.TTL)
	}
	key := leaseKey{r.Name, r.Lease.Public()}
	st := s.starts(key, r.Lease, nil)
	t := newTally(len(s.nodes), s.margin(0), false)
	outs, began, err := s.count(ctx, t, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.Renew(ctx, r)
	}, func(t *tally, outs []fencing.Outcome) {
		if !s.bringBack(r, st, t, outs) {
			s.started(st)
		}
	})
	if err != nil {
		s.started(st)
		return fencing.Outcome{}, err
	}
	if !t.ok {
		if t.refusal.Code == fencing.CodeLeaseLost {
			if again := s.forgotten(ctx, t, began); again.refusal.Code != fencing.CodeLeaseLost {
				return fencing.Outcome{}, again.refusal
			}
			s.lost(key, r.Lease)
		}
		return fencing.Outcome{Now: fencing.InstantOf(began), Ended: s.endedOf(outs)}, t.refusal
	}
	s.mu.Lock()
	s.made.tell(key)
	if at, ok := s.attached[key]; ok {
		at.until = began.Add(t.until)
		s.attached[key] = at
	}
	s.mu.Unlock()
	for i := range outs {
		if outs[i].Holder.Claimed && outs[i].Holder.Token == t.token {
			out := conservative(&outs[i], t.token, began, t.until)
			out.Ended = s.endedOf(outs)
			return out, nil
		}
	}
	return fencing.Outcome{}, tooLate()
}

// lost is over for a lease that nodes don't know: of what is known here only what has
// the same secret.
func (s *Store) lost(key leaseKey, lease fencing.LeaseID) {
	s.mu.Lock()
	if m := s.made.byLease[key]; m != nil && m.of(lease) {
		s.made.forget(key)
	}
	if at, ok := s.attached[key]; ok && at.secret.Equal(lease.Hash()) {
		delete(s.attached, key)
	}
	s.mu.Unlock()
}

// over forgets what is known of a lease that has ended.
func (s *Store) over(key leaseKey) {
	s.mu.Lock()
	s.made.forget(key)
	delete(s.attached, key)
	s.mu.Unlock()
	s.ends(key, func(*start) bool { return true })
}

// bringBack gives a renewed lease back to the nodes that don't know it: they were
// out of reach when it was granted, or have forgotten. It is safe because a node
// accepts the token only if no lease with a higher one has ended there: where
// somebody else had the name meanwhile, the lease stays lost. One that ended there is
// not brought back. It reports whether there is anything to do.
func (s *Store) bringBack(r fencing.RenewRequest, st *start, t *tally, outs []fencing.Outcome) bool {
	missing := t.missing()
	if !t.ok || missing == 0 {
		return false
	}
	var h *fencing.Holder
	var held time.Duration
	for i := range outs {
		if o := &outs[i]; o.Holder.Claimed && o.Holder.Token == t.token {
			h, held = &o.Holder, o.Now.Sub(o.Holder.AcquiredAt)
		}
	}
	if h == nil {
		return false
	}
	ask := fencing.AcquireRequest{
		Name: r.Name, Lease: r.Lease, Owner: h.Owner, Metadata: h.Metadata, Mode: h.Mode, Hold: 1, TTL: h.GrantTTL,
	}
	if h.MaxHold > 0 {
		if ask.MaxHold = h.MaxHold - held; ask.MaxHold <= 0 {
			return false
		}
	}
	key := leaseKey{r.Name, r.Lease.Public()}
	back := s.newTry(ask)
	s.mu.Lock()
	if at, ok := s.attached[key]; ok {
		back.ask.Attach, back.ask.Stamp = true, at.nodes
	}
	s.mu.Unlock()
	back.ask.Propose = t.token
	back.attempt = newReturn(len(s.nodes), missing, t.token)
	back.mu.Lock()
	defer back.mu.Unlock()
	back.start = st
	if !s.startsWith(st, back) {
		return false
	}
	back.send(missing)
	back.perform(moves{})
	return true
}

// Release implements fencing.Store. It succeeds once a majority has let go of the
// lease or does not have it.
func (s *Store) Release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	out, err := s.release(ctx, r)
	if err != nil {
		out.Err = err
		return out, err
	}
	return out, nil
}

func (s *Store) release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, *fencing.Error) {
	key := leaseKey{r.Name, r.Lease.Public()}
	s.mu.Lock()
	passedOn := false // to a newer stream: nothing ends
	if r.Stamp != "" {
		if at, ok := s.attached[key]; ok && at.request == r.Stamp {
			r.Stamp = at.nodes
		} else {
			passedOn = true
		}
	}
	s.mu.Unlock()
	if r.Hold < 2 && !passedOn {
		secret := r.Lease.Hash()
		s.ends(key, func(st *start) bool { return st.secret.Equal(secret) })
	}
	t := newTally(len(s.nodes), 0, true)
	outs, began, err := s.count(ctx, t, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.Release(ctx, r)
	}, nil)
	if err != nil {
		return fencing.Outcome{}, err
	}
	if !t.ok {
		if t.refusal.Code == fencing.CodeLeaseLost {
			if again := s.forgotten(ctx, t, began); !again.ok && again.refusal.Code != fencing.CodeLeaseLost {
				return fencing.Outcome{}, again.refusal
			}
			s.lost(key, r.Lease)
		}
		return fencing.Outcome{Now: fencing.InstantOf(began), Ended: s.endedOf(outs)}, t.refusal
	}
	out := fencing.Outcome{Now: fencing.InstantOf(began), Asked: began}
	for i := range outs {
		if h := &outs[i].Holder; h.Claimed && (out.Holder.Token == 0 || h.Hold < out.Holder.Hold) {
			out = conservative(&outs[i], h.Token, began, max(0, s.safeLeft(&outs[i])-s.margin(0)))
		}
	}
	out.Ended = s.endedOf(outs)
	switch {
	case passedOn:
	case out.Holder.Token != 0:
		s.mu.Lock()
		s.made.tell(key)
		s.mu.Unlock()
	default:
		s.over(key)
		s.wake(r.Name)
		s.watch.hint(r.Name)
	}
	return out, nil
}

// Confirm implements fencing.Store. A quorum grants nothing provisional, so there is
// nothing to confirm: it answers with what is.
func (s *Store) Confirm(ctx context.Context, r fencing.ConfirmRequest) (fencing.Outcome, error) {
	lock, err := s.look(ctx, r.Name)
	if err != nil {
		return fencing.Outcome{Err: err}, err
	}
	s.mu.Lock()
	m := s.made.of(leaseKey{r.Name, r.Lease.Public()}, r.Stamp)
	known, told := m != nil, m != nil && m.told
	s.mu.Unlock()
	for i := range lock.Holders {
		h := lock.Holders[i]
		if h.Lease != r.Lease.Public() {
			continue
		}
		if !known {
			break
		}
		h.ExpiresAt = h.ExpiresAt.Add(-s.margin(h.TTL))
		return fencing.Outcome{Now: lock.Now, Holder: h, Fresh: !told, Asked: lock.Now.Time()}, nil
	}
	lost := &fencing.Error{Code: fencing.CodeLeaseLost, Reason: fencing.ReasonUnknown, Detail: "no such lease is waiting to be confirmed"}
	return fencing.Outcome{Err: lost}, lost
}
