package quorum

import (
	"fmt"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// Lease ids and stamps are made once: making them is slow.
var (
	simLeases [256]fencing.LeaseID
	simStamps [1024]fencing.Stamp
)

func init() {
	for i := range simLeases {
		simLeases[i] = fencing.HashedLeaseID(fencing.LeasePublic(fmt.Sprintf("L%d", i)), fencing.SecretHash{byte(i), 1})
	}
	for i := range simStamps {
		simStamps[i] = fencing.Stamp(fmt.Sprintf("s%d", i))
	}
}

func (w *world) newStamp() fencing.Stamp {
	w.stamps++
	return simStamps[w.stamps%len(simStamps)]
}

// send sends a request to a node; the client waits for its answer, but not for that
// of an undo.
func (w *world) send(k *call, node int, v verb, last bool) {
	e := event{kind: evDeliver, verb: v, node: uint8(node), call: k, sent: w.wall(k.client), from: w.elapsed(k), last: last}
	if v != vUndo {
		k.await[node] = v
		w.push(event{at: w.now + simTimeout.Microseconds(), kind: evTimeout, verb: v, node: uint8(node), call: k})
	}
	d, arrives := w.delay()
	if !arrives && !last { // the last undo is sent until it is answered
		w.log("  %s of %s by client %d to node %d is lost", verbNames[v], k.lease.id, k.who, node)
		return
	}
	e.at = w.now + d
	w.push(e)
}

// deliver has a node decide a request.
func (w *world) deliver(e *event) {
	node, k := &w.nodes[e.node], e.call
	if node.down {
		if e.last {
			e.at = w.now + simTimeout.Microseconds()
			w.push(*e)
		}
		return
	}
	now := w.clock(node)
	guard := fencing.Guard{Sent: e.sent, MaxSkew: simSkew, Gateway: "g", HeedLoss: w.heed}
	if guard.HeedLoss {
		guard.Floor = k.client.floor[e.node]
	}
	out := w.step(node, now, guard, e)
	r := result{holder: out.Holder, err: out.Err, end: out.Holder.ExpiresAt.Sub(out.Now), fence: out.Fence}
	if out.Holder.Claimed {
		w.fences.claim(k.lease, out.Holder.Token)
	}
	if w.trace != nil {
		w.logStep(e, &out)
	}
	switch {
	case e.verb == vUndo && e.last:
		k.undone |= 1 << e.node
	case e.verb == vAcquire && out.Err == nil && len(out.Granted) > 0 && k.undone.has(int(e.node)):
		w.fail("an acquire of %s came to life at node %d behind its undo", k.lease.id, e.node)
	}
	if e.verb == vUndo { // its answer changes nothing
		return
	}
	if d, arrives := w.delay(); arrives {
		w.push(event{at: w.now + d, kind: evReply, verb: e.verb, node: e.node, call: k, from: e.from, out: r})
	}
}

// step runs fencing.Step, or what stands in its place for a planted bug.
func (w *world) step(node *simNode, now fencing.Instant, guard fencing.Guard, e *event) fencing.Outcome {
	k := e.call
	switch e.verb {
	case vAcquire:
		if w.enrols && node.state.Quarantine.Server != node.server() {
			return fencing.Outcome{Now: now, Err: &fencing.Error{Code: fencing.CodeQuarantined}}
		}
		return fencing.Step(node.state, now, guard, fencing.AcquireRequest{
			Name: simName, Lease: k.lease.id, Stamp: k.stamp, Mode: k.lease.mode, Hold: 1, TTL: k.ttl, Intent: 100 * time.Millisecond, Propose: k.propose, Claimed: k.claimed,
		})
	case vClaim:
		if w.bugs.writeBack {
			return raise(node.state, now, k)
		}
		if h := held(node.state, k.lease.id.Public(), now); h != nil && w.bugs.raising {
			h.Claimed = h.Claimed && h.Token >= k.attempt.token
			node.state.Records[simName].Holders.Put(*h)
		}
		return fencing.Step(node.state, now, guard, fencing.ClaimRequest{Name: simName, Lease: k.lease.id, Token: k.attempt.token})
	case vRenew:
		return fencing.Step(node.state, now, guard, fencing.RenewRequest{Name: simName, Lease: k.lease.id, TTL: k.ttl})
	case vAdmit:
		return w.stepAdmit(node.state, now, guard, k.admit)
	case vRelease:
		return fencing.Step(node.state, now, guard, fencing.ReleaseRequest{Name: simName, Lease: k.lease.id})
	}
	return fencing.Step(node.state, now, guard, fencing.TakeBackRequest{Name: simName, Lease: k.lease.id, Stamp: k.stamp})
}

// held returns a live lease, nil if the node does not have it.
func held(s *fencing.State, lease fencing.LeasePublic, now fencing.Instant) *fencing.Holding {
	r := s.Records[simName]
	if r == nil {
		return nil
	}
	if h, ok := r.Holders.Find(lease); ok && h.Live(now) {
		return &h
	}
	return nil
}

// raise is the claim without its condition: a planted bug.
func raise(s *fencing.State, now fencing.Instant, k *call) fencing.Outcome {
	h := held(s, k.lease.id.Public(), now)
	if h == nil {
		return fencing.Outcome{Now: now, Err: &fencing.Error{Code: fencing.CodeLeaseLost, Reason: fencing.ReasonUnknown}}
	}
	h.Token, h.Claimed = max(h.Token, k.attempt.token), true
	s.Records[simName].Holders.Put(*h)
	s.Counter, s.Records[simName].LastToken = max(s.Counter, h.Token), max(s.Records[simName].LastToken, h.Token)
	return fencing.Outcome{Now: now, Holder: h.Holder}
}

func (w *world) logStep(e *event, out *fencing.Outcome) {
	k := e.call
	what := "ok"
	if out.Err != nil {
		what = string(out.Err.Code) + " " + string(out.Err.Reason)
	} else if out.Holder.Token != 0 {
		what = fmt.Sprintf("token %d, claimed %t, %s left", out.Holder.Token, out.Holder.Claimed, out.Holder.ExpiresAt.Sub(out.Now))
	}
	token := ""
	switch e.verb {
	case vClaim:
		token = fmt.Sprintf(" of %d", k.attempt.token)
	case vAdmit:
		token = fmt.Sprintf(" %d", k.admit)
	}
	w.log("  node %d: %s%s for %s %s by client %d: %s", e.node, verbNames[e.verb], token, k.lease.mode, k.lease.id, k.who, what)
}

// reply hands a call what a node answered, if it still waits for it.
func (w *world) reply(e *event) {
	k, node := e.call, int(e.node)
	if k.await[node] != e.verb {
		return
	}
	k.await[node] = vNone
	if h := &e.out.holder; h.Token != 0 {
		k.client.floor[node] = max(k.client.floor[node], h.Token)
		k.client.seen = max(k.client.seen, h.Token)
	}
	w.hear(k, node, e.verb, &e.out, e.from)
}

func (w *world) timeOut(e *event) {
	if e.call.await[e.node] != e.verb {
		return
	}
	e.call.await[e.node] = vNone
	w.hear(e.call, int(e.node), e.verb, &result{err: unavailable("no answer")}, 0)
}

// hear feeds the state machine and sends what it asks for.
func (w *world) hear(k *call, node int, v verb, r *result, from time.Duration) {
	elapsed, end := w.elapsed(k), from+r.end
	if v == vAdmit {
		w.vote(k, node, r)
		return
	}
	if v == vRenew || v == vRelease {
		if r.err != nil {
			k.tally.notDone(node, r.err, w.nodes[node].blind > w.now, elapsed)
		} else {
			if w.bugs.anyVote && v == vRenew {
				r.holder.Claimed, r.holder.Token = true, k.lease.token
			}
			k.tally.done(node, &r.holder, end, elapsed)
		}
		w.counted(k)
		return
	}
	var m moves
	switch {
	case v == vAcquire && r.err == nil:
		m = k.attempt.acquired(node, &r.holder, end, elapsed)
	case v == vAcquire:
		m = k.attempt.notAcquired(node, r.err, elapsed)
	case r.err == nil:
		m = k.attempt.claimAccepted(node, end, elapsed)
	default:
		m = k.attempt.claimRefused(node, r.err, elapsed)
	}
	w.perform(k, m)
}

func (w *world) perform(k *call, m moves) {
	for i := range w.nodes {
		if !m.claim.has(i) {
			continue
		}
		if w.bugs.onePhase { // nobody is asked
			w.perform(k, k.attempt.claimAccepted(i, k.attempt.votes[i].end, w.elapsed(k)))
			continue
		}
		w.send(k, i, vClaim, false)
	}
	if m.undo != 0 {
		final := w.bugs.undoOnce && k.attempt.phase == refused
		w.undo(k, m.undo, final)
		if k.attempt.phase == refused && !final {
			w.push(event{at: w.now + (2*simSkew + simTimeout).Microseconds(), kind: evAgain, call: k, node: k.who})
		}
	}
	if !k.over && (k.attempt.phase == granted || k.attempt.phase == refused) {
		k.over = true
		w.attempted(k)
	}
}

// undo takes back at nodes. The last one is behind all acquires of the call.
func (w *world) undo(k *call, nodes nodeSet, last bool) {
	for i := range w.nodes {
		if nodes.has(i) {
			w.send(k, i, vUndo, last)
		}
	}
}

// conflict reports whether two leases can't both be live.
func conflict(a, b *simLease) bool {
	return a.mode == fencing.ModeExclusive || b.mode == fencing.ModeExclusive
}

// tell has a client hear that it has the lease, and checks all that this promises.
func (w *world) tell(k *call, token fencing.Token, until time.Duration) {
	l := k.lease
	if l.closed || l.lost {
		return
	}
	w.grants++
	d := until.Microseconds()
	end := k.began + d - d*k.client.drift/(1_000_000+k.client.drift)
	w.log("client %d has %s with token %d until %.3f ms", k.who, l.id, token, float64(end)/1000)
	for i := range w.told {
		t := &w.told[i]
		switch {
		case t.lease == l && t.token < token && w.amnesia && (l.until <= w.now || l.token == token):
			// it had run out, and the nodes that knew have forgotten
		case t.lease == l && t.token != token:
			w.fail("%s was told token %d before, and now %d", l.id, t.token, token)
		case t.lease == l:
		case t.token == token:
			w.fail("%s and %s were both told token %d", t.lease.id, l.id, token)
		case t.token > token && conflict(t.lease, l):
			w.fail("%s is told token %d after %s was told %d: a stale one outranks a live one", l.id, token, t.lease.id, t.token)
		case !t.lease.closed && t.lease.until > w.now && conflict(t.lease, l):
			w.fail("%s is told it has the lock while %s may believe in it for another %d µs", l.id, t.lease.id, t.lease.until-w.now)
		}
	}
	l.until = max(l.until, end)
	if l.token != token {
		l.token = token
		w.told = append(w.told, tale{l, token})
	}
}

// lose has a client hear that its lease is lost, which is to be true.
func (w *world) lose(k *call) {
	l := k.lease
	w.log("client %d hears that %s is lost", k.who, l.id)
	if w.amnesia || l.closed || l.token == 0 {
		l.lost = true
		return
	}
	have := 0
	for i := range w.nodes {
		if h := held(w.nodes[i].state, l.id.Public(), w.clock(&w.nodes[i])); h != nil && h.Claimed && h.Token == l.token { // a late acquire has another
			have++
		}
	}
	if have >= majorityOf(len(w.nodes)) {
		w.fail("%s is said to be lost, and %d nodes have it", l.id, have)
	}
	if l.until > w.now && !slices.ContainsFunc(w.told, func(t tale) bool { return t.lease != l }) && w.bugs == (defects{}) {
		w.fail("%s is said to be lost within the time it was told, and nobody else was told anything", l.id)
	}
	l.lost = true
}
