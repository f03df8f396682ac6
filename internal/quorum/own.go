package quorum

import (
	"cmp"
	"context"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// count runs a tally on the nodes, in turn, and returns once it is decided, with what
// each node has answered by then. A node that owes too many answers is left out. Once all have answered or run out of time, after has
// the whole count; it may be nil.
func (s *Store) count(ctx context.Context, key leaseKey, t *tally, do func(context.Context, fencing.Node) (fencing.Outcome, error), after func(*tally, []fencing.Outcome)) ([]fencing.Outcome, time.Time, *fencing.Error) {
	if err := s.usable(ctx); err != nil {
		return nil, time.Time{}, err
	}
	c, err := s.beginCount(ctx, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer s.endCount(key, c)
	room := maxRenewals
	if t.release {
		room = maxCalls
	}
	if !s.leaves(c, maxOwed) {
		return nil, time.Time{}, fencing.Unavailable(errOwed)
	}
	began, full := s.options.Clock(), s.full(c, room)
	answers := make(chan answer[fencing.Outcome], len(s.nodes))
	asked := 0
	for i, node := range s.nodes {
		if full.has(i) {
			t.notDone(i, unavailable("the node owes too many answers"), false, 0)
			continue
		}
		if s.inTurn(key, i, func() (tell func()) {
			if err := s.usable(context.Background()); err != nil && !t.release { // what ends is still told
				return func() { answers <- answer[fencing.Outcome]{i, fencing.Outcome{}, err} }
			}
			call, cancel := s.call()
			defer cancel()
			out, err := do(call, node)
			s.mark(i, err)
			return func() { answers <- answer[fencing.Outcome]{i, out, asError(err)} }
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
	m, err := s.nodes[node].Memory(ctx)
	return err != nil || !m.InService || m.Quarantine > 0
}

func (s *Store) renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, *fencing.Error) {
	switch {
	case r.Limit > 0:
		return fencing.Outcome{}, unsupportedLimit()
	case r.Owner != "":
		return fencing.Outcome{}, unsupportedLabels("owner")
	case r.Metadata != nil:
		return fencing.Outcome{}, unsupportedLabels("metadata")
	}
	if r.TTL != 0 {
		if err := s.checkTTL(r.TTL); err != nil {
			return fencing.Outcome{}, err
		}
	}
	request := requestOf(r.Name, r.Lease, r.Stamp)
	key := request.leaseKey
	s.mu.Lock()
	c := s.use(key)
	ends := c.ends
	r.Stamp = s.stampAt(request)
	s.mu.Unlock()
	t := newTally(len(s.nodes), s.margin(0), false)
	outs, began, err := s.count(ctx, key, t, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.Do(ctx, r)
	}, func(t *tally, outs []fencing.Outcome) {
		defer s.done(key, c)
		s.spread(r.Name, t, outs, key)
		s.bringBack(r, t, outs, key, c, ends)
		s.reclaim(r, t, key, c, ends)
	})
	if err != nil {
		s.done(key, c)
		return fencing.Outcome{}, err
	}
	if !t.ok {
		if t.refusal.Code == fencing.CodeLeaseLost {
			if again := s.forgotten(ctx, t, began); again.refusal.Code != fencing.CodeLeaseLost {
				return fencing.Outcome{}, again.refusal
			}
		}
		return fencing.Outcome{Now: fencing.InstantOf(began), Ended: s.endedOf(outs)}, t.refusal
	}
	for i := range outs {
		if outs[i].Holder.Claimed && outs[i].Holder.Token == t.token {
			out := conservative(&outs[i], t.token, began, t.until)
			var hang hangings
			for j := range outs {
				if other := &outs[j]; other.Holder.Claimed && other.Holder.Token == t.token {
					tellNotice(&out, other)
					hang = append(hang, &other.Holder)
				}
			}
			hang.tell(&out.Holder, len(s.nodes))
			out.Ended = s.endedOf(outs)
			s.hangs(&out.Holder, request, r.Stamp)
			return out, nil
		}
	}
	return fencing.Outcome{}, tooLate()
}

// unsupportedLabels refuses to change what a lease was labelled with: a node that was out of
// reach would keep the older label, and nobody could tell which one that is.
func unsupportedLabels(field string) *fencing.Error {
	return &fencing.Error{Code: fencing.CodeUnsupportedByStore, Field: field,
		Detail: field + ": can't be changed on a quorum, where a lease keeps what it was granted with"}
}

// bringBack gives a renewed lease back to the nodes that don't know it: they were
// out of reach when it was granted, or have forgotten. It is safe because a node
// accepts the token only if no lease with a higher one has ended there: where
// somebody else had the name meanwhile, the lease stays lost. One that ended there is
// not brought back, nor one that was to end since the renewal was asked for, nor while
// another try is under way: then the next renewal does it. Of a stream they hear how many takeovers the others have
// seen, for a grant begins at none.
func (s *Store) bringBack(r fencing.RenewRequest, t *tally, outs []fencing.Outcome, key leaseKey, c *leaseCalls, ends uint) {
	missing := t.missing()
	if !t.ok || missing == 0 {
		return
	}
	ask, epoch, ok := returned(r, t.token, outs)
	if !ok {
		return
	}
	back := s.newTry(key, ask, s.stampOf(r.Name, r.Lease, ask.Stamp))
	back.ask.Propose, back.ask.Claimed = t.token, true
	back.attempt = newReturn(len(s.nodes), missing, t.token)
	s.mu.Lock()
	if c.ends != ends || c.trying != nil {
		s.mu.Unlock()
		return
	}
	c.trying = make(chan struct{})
	s.use(key)
	s.mu.Unlock()
	defer s.endTry(key, c)
	back.mu.Lock()
	back.send(missing)
	back.perform(moves{})
	back.mu.Unlock()
	<-back.answered
	for i := range s.nodes {
		back.mu.Lock()
		got := missing.has(i) && back.outs[i].Holder.Attached == ask.Stamp && back.outs[i].Holder.Epoch < epoch
		back.mu.Unlock()
		if got {
			s.inTurn(key, i, telling(func() { _, _ = back.raise(i, epoch) })) // the next renewal does what was not done
		}
	}
}

// returned is the request that brings back a lease that nodes have renewed, unless its
// time is over, and how many takeovers they have seen. It hangs on the stream there that it hangs on by hangings. The earliest of the ends that its MaxHold and its notice have at any of the
// nodes bounds it there, as a MaxHold does.
func returned(r fencing.RenewRequest, token fencing.Token, outs []fencing.Outcome) (ask fencing.AcquireRequest, epoch int64, ok bool) {
	bounded, found := false, false
	var hang hangings
	bound := func(left time.Duration) {
		if !bounded || left < ask.MaxHold {
			ask.MaxHold, bounded = left, true
		}
	}
	for i := range outs {
		h := &outs[i].Holder
		if !h.Claimed || h.Token != token {
			continue
		}
		if !found {
			found = true
			ask = fencing.AcquireRequest{
				Name: r.Name, Lease: r.Lease, Owner: h.Owner, Metadata: h.Metadata.Map(), Mode: h.Mode, Hold: 1, TTL: h.GrantTTL,
			}
		}
		hang = append(hang, h)
		if h.MaxHold > 0 {
			bound(h.MaxHold - outs[i].Now.Sub(h.AcquiredAt))
		}
		if h.BreakAt != 0 {
			bound(h.BreakAt.Sub(outs[i].Now))
		}
	}
	var on fencing.Holder
	hang.tell(&on, len(outs))
	ask.Stamp, ask.Attach = cmp.Or(on.Attached, fencing.NewStamp()), on.Attached != ""
	return ask, on.Epoch, found && (!bounded || ask.MaxHold > 0)
}

// spread gives the notice that a lease has at some nodes to those that have the lease without:
// they were out of reach when it was given, or the lease was brought back to them since. So it
// counts at whichever majority is left.
func (s *Store) spread(name fencing.Name, t *tally, outs []fencing.Outcome, key leaseKey) {
	var without []int
	notice := fencing.BreakRequest{Name: name, Token: t.token}
	for i := range outs {
		h := &outs[i].Holder
		switch left := h.BreakAt.Sub(outs[i].Now); {
		case !h.Claimed || h.Token != t.token:
		case h.BreakAt == 0:
			without = append(without, i)
		case notice.Notice == 0 || left < notice.Notice:
			notice.Notice, notice.BreakReason = max(left, fencing.ShortestNotice), h.BreakReason
		}
	}
	if !t.ok || notice.Notice == 0 {
		return
	}
	s.mu.Lock()
	c := s.use(key)
	s.mu.Unlock()
	defer s.done(key, c)
	full := s.full(c, maxRenewals)
	for _, i := range without {
		if full.has(i) {
			continue
		}
		s.inTurn(key, i, func() func() {
			call, cancel := s.call()
			defer cancel()
			_, _ = s.nodes[i].Do(call, notice) // the next renewal finds what was not done
			return nil
		})
	}
}

// release succeeds once a majority has let go of the
// lease, does not have it, or has it hang on a newer request, and is CodeUnavailable, never CodeQuarantined, where too many
// may have forgotten the lease to say that it was lost.
func (s *Store) release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, *fencing.Error) {
	key := leaseKey{r.Name, r.Lease.Public()}
	if r.Hold < 2 {
		s.ends(key)
	}
	if r.Stamp != "" {
		r.Stamp = s.stampOf(r.Name, r.Lease, r.Stamp)
	}
	t := newTally(len(s.nodes), 0, true)
	outs, began, err := s.count(ctx, key, t, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return releaseAt(ctx, node, r)
	}, func(t *tally, _ []fencing.Outcome) {
		s.sweep(r, t, key)
	})
	if err != nil {
		return fencing.Outcome{}, err
	}
	if !t.ok && t.refusal.Code == fencing.CodeLeaseLost {
		t = s.forgotten(ctx, t, began)
	}
	if !t.ok {
		return fencing.Outcome{Now: fencing.InstantOf(began), Ended: s.endedOf(outs)}, t.refusal
	}
	return s.remaining(outs, began), nil
}

// remaining is what nodes that have let go of a lease still have of it, where it lingers or was
// held deeper.
func (s *Store) remaining(outs []fencing.Outcome, began time.Time) fencing.Outcome {
	out := fencing.Outcome{Now: fencing.InstantOf(began), Asked: began}
	for i := range outs {
		if h := &outs[i].Holder; h.Claimed && (out.Holder.Token == 0 || h.Hold < out.Holder.Hold) {
			out = conservative(&outs[i], h.Token, began, max(0, s.safeLeft(&outs[i])-s.margin(0)))
		}
	}
	out.Ended = s.endedOf(outs)
	return out
}
