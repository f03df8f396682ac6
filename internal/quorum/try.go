package quorum

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// try runs an attempt on the nodes.
type try struct {
	store *Store
	key   leaseKey
	calls *leaseCalls
	ask   fencing.AcquireRequest // what the nodes are asked, under the stamp that they know the request by
	began time.Time

	mu           sync.Mutex // guards what follows
	attempt      *attempt
	outs         [maxNodes]fencing.Outcome // of the acquires; claims bring the holder up to date
	ended        [maxNodes][]fencing.Ended // what the acquires found to have ended
	granted      nodeSet                   // nodes that have granted the lease in this try: others had it before
	skip         nodeSet                   // nodes that were not asked
	undoOnAnswer nodeSet                   // nodes that had not answered when the attempt was refused: it is undone there then
	over         bool                      // decided is closed
	decided      chan struct{}             // closed when the attempt is granted or refused
	asking       int                       // acquires that are not answered
	undoing      int                       // take-backs that are not answered, at nodes that have answered the acquire
	undone       chan struct{}             // closed when there are none any more, after it was decided
	answered     chan struct{}             // closed when there are no acquires either
}

// newTry prepares a try of r under a stamp.
func (s *Store) newTry(key leaseKey, r fencing.AcquireRequest, stamp fencing.Stamp) *try {
	r.Wait, r.Keep, r.MaxWaiters, r.Again, r.Behind = 0, false, 0, false, false
	r.Stamp = stamp
	began := s.options.Clock()
	r.Propose = s.proposal(began)
	return &try{
		store: s, key: key, ask: r, began: began, decided: make(chan struct{}), undone: make(chan struct{}), answered: make(chan struct{}),
		attempt: newAttempt(len(s.nodes), s.margin(0)),
	}
}

// run asks the nodes and returns once the attempt is decided. If ctx ends before, it
// is undone.
func (t *try) run(ctx context.Context) {
	t.mu.Lock()
	t.skip = t.store.suspects() | t.store.full(t.calls, maxCalls)
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
	for i := range t.store.nodes {
		if to.has(i) && t.inTurn(i, func() { t.acquire(i) }) {
			t.asking++
		}
	}
}

// inTurn has f run after all that was sent to the node before, and reports whether it will
// be: if the store is closed, the attempt ends. The caller holds mu.
func (t *try) inTurn(node int, f func()) bool {
	if t.store.inTurn(t.key, node, telling(f)) {
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

// raiseSeen notes a token, for what is proposed next.
func (s *Store) raiseSeen(token fencing.Token) { raiseTo(&s.seen, int64(token)) }

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
	out, err := t.store.nodes[node].Do(ctx, t.ask)
	cancel()
	t.store.mark(node, err)
	t.store.raiseSeen(out.Holder.Token)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[node] = out.Ended
	var m moves
	if err == nil {
		t.outs[node] = out
		if len(out.Granted) > 0 {
			t.granted |= 1 << node
		}
		m = t.attempt.acquired(node, &out.Holder, t.end(&out, asked), t.elapsed())
	} else {
		m = t.attempt.notAcquired(node, asError(err), t.elapsed())
		if t.attempt.phase == refused && t.attempt.votes[node].unknown {
			m.undo |= 1 << node
		}
	}
	t.perform(m)
	if t.undoOnAnswer.has(node) {
		t.store.endUndo(t.request())
	}
	t.asking--
	t.closeUndone()
}

// request is the request as nodes know it.
func (t *try) request() requestKey { return requestKey{t.key, t.ask.Stamp} }

// claim asks one node to accept the token.
func (t *try) claim(node int, token fencing.Token) {
	asked := t.store.options.Clock()
	ctx, cancel := t.store.call()
	out, err := t.store.nodes[node].Do(ctx, fencing.ClaimRequest{Name: t.ask.Name, Lease: t.ask.Lease, Token: token})
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

// perform sends what the attempt asks for, and tells that it is decided. What a node is
// to undo that has not answered yet, it is told when it has. The caller holds mu.
func (t *try) perform(m moves) {
	for i := range t.store.nodes {
		if m.claim.has(i) {
			t.inTurn(i, func() { t.claim(i, t.attempt.token) })
		}
		if m.undo.has(i) && t.mayHave(i) {
			t.undo(i)
		}
	}
	if t.over || t.attempt.phase != granted && t.attempt.phase != refused {
		return
	}
	for i := range t.attempt.votes {
		if t.attempt.phase == refused && t.attempt.votes[i].standing == pending {
			t.undoOnAnswer |= 1 << i
			t.store.beginUndo(t.request())
		}
	}
	t.over = true
	close(t.decided)
	t.closeUndone()
}

// mayHave reports whether a node that has answered may have anything of the try.
func (t *try) mayHave(node int) bool {
	v := &t.attempt.votes[node]
	return !t.skip.has(node) && v.standing != pending && (t.outs[node].Holder.Token != 0 || v.unknown)
}

// undo takes the lease back at a node. The caller holds mu.
func (t *try) undo(node int) {
	r := fencing.TakeBackRequest{Name: t.ask.Name, Lease: t.ask.Lease, Stamp: t.ask.Stamp, Refused: true}
	if t.store.undo(node, r, t.attempt.votes[node].unknown, func(fencing.Outcome, error) {
		t.mu.Lock()
		t.undoing--
		t.closeUndone()
		t.mu.Unlock()
	}) {
		t.undoing++
	}
}

// closeUndone closes undone when nothing of a refused attempt is left at the nodes that have
// answered, and answered when all have. The caller holds mu.
func (t *try) closeUndone() {
	if !t.over || t.undoing > 0 {
		return
	}
	closeOnce(t.undone)
	if t.asking == 0 {
		closeOnce(t.answered)
	}
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// divided reports whether a refused try met others in the act.
func (t *try) divided() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.attempt.again
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
	had, fresh := false, true
	for i := range a.votes {
		out := &t.outs[i]
		if a.votes[i].standing != accepted || out.Holder.Token == 0 {
			continue
		}
		had, fresh = had || !t.granted.has(i), fresh && out.Fresh
		if best == nil || out.Holder.ExpiresAt.Sub(out.Now) > best.Holder.ExpiresAt.Sub(best.Now) {
			best = out
		}
	}
	out := conservative(best, a.token, t.began, a.until)
	var hang hangings
	for i := range a.votes {
		if a.votes[i].standing == accepted {
			tellNotice(&out, &t.outs[i])
			hang = append(hang, &t.outs[i].Holder)
		}
	}
	hang.tell(&out.Holder, len(a.votes))
	out.Ended, out.Fresh = ended, fresh
	if !had {
		out.Granted = []fencing.Grant{{Name: t.ask.Name, Holder: out.Holder, Gateway: t.store.self}}
	}
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
	h.BreakAt, h.BreakReason = 0, ""
	tellNotice(&out, from)
	return out
}

// hangings is a lease at the nodes that have it.
type hangings []*fencing.Holder

// tell adds to the quorum's holder whom a lease hangs on, as most of them have it, and how many takeovers a majority of so many
// nodes has seen. A minority may have seen more, by requests that came to nothing: a stream that was told of
// those would take the lease back from a newer one, as if that majority had forgotten of it.
func (hs hangings) tell(h *fencing.Holder, nodes int) {
	slices.SortStableFunc(hs, func(a, b *fencing.Holder) int { return cmp.Compare(b.Epoch, a.Epoch) })
	if n := min(majorityOf(nodes), len(hs)); n > 0 {
		h.Epoch = hs[n-1].Epoch
	}
	most := 0
	for _, on := range hs {
		n := 0
		for _, other := range hs {
			if other.Attached == on.Attached {
				n++
			}
		}
		if n > most { // if as many name another, the one that has seen more takeovers
			h.Attached, most = on.Attached, n
		}
	}
}

// tellNotice adds to the quorum's outcome the notice that a lease has at a node. The earliest
// end counts, and none is before the expiry that is told.
func tellNotice(out, from *fencing.Outcome) {
	h, at := &out.Holder, out.Now.Add(from.Holder.BreakAt.Sub(from.Now))
	if from.Holder.BreakAt == 0 || h.BreakAt != 0 && h.BreakAt <= at {
		return
	}
	if from.Holder.BreaksAtEnd() { // so it is for the quorum, which keeps a margin
		at = h.ExpiresAt
	}
	h.BreakAt, h.BreakReason = max(at, h.ExpiresAt), from.Holder.BreakReason
}
