package quorum

import (
	"context"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// try runs an attempt on the nodes.
type try struct {
	store *Store
	ask   fencing.AcquireRequest // what the nodes are asked, under a stamp of its own
	began time.Time

	mu       sync.Mutex // guards what follows
	attempt  *attempt
	outs     [maxNodes]fencing.Outcome // of the acquires; claims bring the holder up to date
	ended    [maxNodes][]fencing.Ended // what the acquires found to have ended
	repeats  bool                      // the request has a grant, which goes under the same stamp: that is not undone
	had      nodeSet                   // nodes that had the lease, with its token, before this try
	skip     nodeSet                   // nodes that were not asked
	over     bool                      // decided is closed
	decided  chan struct{}             // closed when the attempt is granted or refused
	undoing  int                       // take-backs of a refused attempt that are not answered
	undone   chan struct{}             // closed when there are none any more, after it was decided
	asking   int                       // acquires that are not answered
	quiet    chan struct{}             // closed when there are none of those either
	start    *start                    // from the first acquire to the last answer
	unwanted bool                      // the lease has ended, here at least
}

// newTry prepares a try of r. Each has its own stamp: a take-back that is late must
// not undo what a later try of the same request has got.
func (s *Store) newTry(r fencing.AcquireRequest) *try {
	r.Wait, r.Keep, r.MaxWaiters, r.Again = 0, false, 0, false
	r.Stamp = fencing.NewStamp()
	began := s.options.Clock()
	r.Propose = s.proposal(began)
	return &try{
		store: s, ask: r, began: began, decided: make(chan struct{}), undone: make(chan struct{}), quiet: make(chan struct{}),
		attempt: newAttempt(len(s.nodes), s.margin(0)),
	}
}

// run asks the nodes and returns once the attempt is decided. If ctx ends before, it
// is undone.
func (t *try) run(ctx context.Context) {
	t.mu.Lock()
	t.skip = t.store.suspects()
	for i := range t.store.nodes {
		if t.skip.has(i) {
			t.attempt.passedOver(i)
		}
	}
	t.send(allNodes(len(t.store.nodes)) &^ t.skip)
	t.perform(moves{})
	t.mu.Unlock()
	select {
	case <-t.decided:
	case <-ctx.Done():
		t.mu.Lock()
		t.perform(t.attempt.abandon(fencing.Unavailable(context.Cause(ctx))))
		t.mu.Unlock()
	}
}

// send asks nodes for the lease. The caller holds mu.
func (t *try) send(to nodeSet) {
	if t.start == nil {
		t.start = t.store.starts(leaseKey{t.ask.Name, t.ask.Lease.Public()}, t.ask.Lease, t)
	}
	for i := range t.store.nodes {
		if !to.has(i) {
			continue
		}
		t.asking++
		if !t.spawn(func() { t.acquire(i); t.answered() }) {
			t.asking--
		}
	}
}

// answered notes that one node less is to answer.
func (t *try) answered() {
	t.mu.Lock()
	t.asking--
	t.settle()
	t.mu.Unlock()
}

// spawn reports whether f is run. If not, for the store is closed, it ends the
// attempt. The caller holds mu.
func (t *try) spawn(f func()) bool {
	if t.store.spawn(f) {
		return true
	}
	t.attempt.abandon(fencing.Unavailable(errClosed))
	return false
}

// proposal returns a token that was not proposed before.
func (s *Store) proposal(now time.Time) fencing.Token {
	for {
		seen := s.seen.Load()
		token := proposal(fencing.InstantOf(now), fencing.Token(seen), s.options.MaxSkew)
		if int64(token) <= seen || s.seen.CompareAndSwap(seen, int64(token)) { // what is lower follows a clock that was wrong
			return token
		}
	}
}

// saw notes a token, for what is proposed next.
func (s *Store) saw(token fencing.Token) {
	for {
		seen := s.seen.Load()
		if int64(token) <= seen || s.seen.CompareAndSwap(seen, int64(token)) {
			return
		}
	}
}

func (t *try) elapsed() time.Duration { return t.store.options.Clock().Sub(t.began) }

// end returns when a node lets the lease go at the earliest, since the try began.
func (t *try) end(out *fencing.Outcome, asked time.Time) time.Duration {
	return asked.Sub(t.began) + t.store.safeLeft(out)
}

// safeLeft returns what is left of a lease at a node even if its clock runs faster
// than the gateway's.
func (s *Store) safeLeft(out *fencing.Outcome) time.Duration {
	return out.Holder.ExpiresAt.Sub(out.Now) - (s.margin(out.Holder.TTL) - s.margin(0))
}

// margin returns what is kept back of a TTL.
func (s *Store) margin(ttl time.Duration) time.Duration {
	if s.options.exact {
		return 0
	}
	return marginOf(ttl, s.options.MaxSkew)
}

// acquire asks one node for the lease.
func (t *try) acquire(node int) {
	asked := t.store.options.Clock()
	ctx, cancel := t.store.call()
	out, err := t.store.nodes[node].Acquire(ctx, t.ask)
	cancel()
	t.store.mark(node, err)
	t.store.saw(out.Holder.Token)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[node] = out.Ended
	if err != nil {
		m := t.attempt.notAcquired(node, asError(err), t.elapsed())
		if t.unwanted && t.attempt.votes[node].unknown {
			m.undo |= 1 << node
		}
		t.perform(m)
		return
	}
	t.outs[node] = out
	if out.Holder.Claimed && len(out.Granted) == 0 && (!out.Fresh || t.repeats) { // a fresh one may be the node's own repetition
		t.had |= 1 << node
	}
	m := t.attempt.acquired(node, &out.Holder, t.end(&out, asked), t.elapsed())
	if t.unwanted {
		m = moves{undo: 1 << node}
	}
	t.perform(m)
}

// claim asks one node to accept the token.
func (t *try) claim(node int, token fencing.Token) {
	asked := t.store.options.Clock()
	ctx, cancel := t.store.call()
	out, err := t.store.nodes[node].Claim(ctx, fencing.ClaimRequest{Name: t.ask.Name, Lease: t.ask.Lease, Token: token})
	cancel()
	t.store.mark(node, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.perform(t.attempt.claimRefused(node, asError(err), t.elapsed()))
		return
	}
	fresh := t.outs[node].Fresh
	t.outs[node] = out
	t.outs[node].Fresh = fresh
	t.perform(t.attempt.claimAccepted(node, t.end(&out, asked), t.elapsed()))
}

// perform sends what the attempt asks for, and tells that it is decided. The caller
// holds mu.
func (t *try) perform(m moves) {
	for i := range t.store.nodes {
		if m.claim.has(i) {
			t.spawn(func() { t.claim(i, t.attempt.token) })
		}
		if m.undo.has(i) && !t.skip.has(i) && !t.keeps() {
			t.undo(i)
		}
	}
	if t.over || t.attempt.phase != granted && t.attempt.phase != refused {
		return
	}
	t.over = true
	close(t.decided)
	t.settle()
}

// keeps reports whether the lease stays although the try was refused: the request has
// a grant, by an older try.
func (t *try) keeps() bool {
	return t.repeats && !t.unwanted && t.attempt.phase == refused && t.attempt.refusal.Code != fencing.CodeLeaseLost
}

// undo takes the lease back at a node. If an acquire may still be under way there,
// that is repeated once it would be refused for its age.
func (t *try) undo(node int) {
	r := fencing.TakeBackRequest{Name: t.ask.Name, Lease: t.ask.Lease, Stamp: t.ask.Stamp}
	again := t.attempt.votes[node].standing == pending || t.attempt.votes[node].unknown
	if t.store.spawn(func() {
		answered := t.store.takeBack(node, r)
		t.mu.Lock()
		t.undoing--
		t.settle()
		t.mu.Unlock()
		if again || !answered {
			t.store.takeBackAgain(node, r)
		}
	}) {
		t.undoing++
	}
}

// settle tells that nothing of a refused attempt is left at nodes that have answered,
// and that all have. The caller holds mu.
func (t *try) settle() {
	if !t.over || t.undoing > 0 {
		return
	}
	closeOnce(t.undone)
	if t.asking == 0 {
		if t.start != nil {
			t.store.started(t.start)
		}
		closeOnce(t.quiet)
	}
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// takeBack asks a node once, and reports whether it has answered.
func (s *Store) takeBack(node int, r fencing.TakeBackRequest) bool {
	ctx, cancel := s.call()
	defer cancel()
	_, err := s.nodes[node].TakeBack(ctx, r)
	return err == nil
}

// takeBackAgain asks a node until it has answered, after no acquire that was sent
// before can succeed any more. What can't be taken back ends with its TTL.
func (s *Store) takeBackAgain(node int, r fencing.TakeBackRequest) {
	if s.undoing.Add(1) > maxUndoing {
		s.undoing.Add(-1)
		return
	}
	defer s.undoing.Add(-1)
	wait := 2*s.options.MaxSkew + s.options.NodeTimeout
	for range 5 {
		last := !s.idle(wait)
		if s.takeBack(node, r) || last {
			return
		}
		wait *= 2
	}
}

// unwant has what nodes still grant to this try taken back. One that is not decided is
// refused: its votes are gone.
func (t *try) unwant() {
	t.mu.Lock()
	t.unwanted = true
	t.perform(t.attempt.abandon(endedMeanwhile()))
	t.mu.Unlock()
}

// outcome is what a decided try came to, for its caller.
func (t *try) outcome() (fencing.Outcome, *fencing.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.attempt
	ended := t.store.commonEnds(t.ended[:len(t.store.nodes)])
	if a.phase != granted {
		return fencing.Outcome{Ended: ended}, a.refusal
	}
	var best *fencing.Outcome
	for i := range a.votes {
		out := &t.outs[i]
		if a.votes[i].standing != accepted || out.Holder.Token == 0 {
			continue
		}
		if best == nil || out.Holder.ExpiresAt.Sub(out.Now) > best.Holder.ExpiresAt.Sub(best.Now) {
			best = out
		}
	}
	out := conservative(best, a.token, t.began, a.until)
	out.Ended = ended
	return out, nil
}

// conservative returns a node's outcome as the quorum's: with the token that a
// majority has, and no more time than it gives, counted from before the first request.
func conservative(from *fencing.Outcome, token fencing.Token, began time.Time, until time.Duration) fencing.Outcome {
	out := fencing.Outcome{Now: fencing.InstantOf(began), Asked: began, Holder: from.Holder, Margin: from.Margin}
	h := &out.Holder
	h.AcquiredAt = out.Now.Add(-max(0, from.Now.Sub(h.AcquiredAt)))
	h.ExpiresAt = out.Now.Add(until)
	h.Token, h.Claimed = token, false // what nodes agree on among themselves is not told
	return out
}
