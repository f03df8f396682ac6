package quorum

import (
	"time"

	"fencepost/internal/fencing"
)

// fences is what the simulation knows of admissions.
type fences struct {
	claimed  fencing.Token               // the highest that was claimed at any node
	whose    map[fencing.Token]*simLease // that was claimed
	asked    fencing.Token               // the highest that somebody has asked with, of those that were claimed
	admitted []passed
}

// passed is a token that was admitted.
type passed struct {
	lease *simLease
	token fencing.Token
	at    int64 // when a majority had said so
}

// forger is the lease of tokens that nobody was given.
var forger = &simLease{id: fencing.HashedLeaseID("forger", fencing.SecretHash{2}), mode: fencing.ModeExclusive}

// claim notes that a node has accepted the token of a lease.
func (f *fences) claim(l *simLease, token fencing.Token) {
	if f.whose == nil {
		f.whose = map[fencing.Token]*simLease{}
	}
	f.claimed, f.whose[token] = max(f.claimed, token), l
}

// believed reports whether the client of a lease may count on it.
func (l *simLease) believed(now int64) bool { return !l.closed && !l.lost && l.until > now }

// write has some gateway ask the fence for a token: the newest that was told, one of those before
// it, or one that nobody was told.
func (w *world) write() {
	w.push(event{at: w.now + w.between(time.Millisecond, 300*time.Millisecond), kind: evWrite})
	l, token := forger, w.fences.claimed+fencing.Token(w.rng.IntN(3))
	switch n := len(w.told); {
	case n == 0 || w.chance(10):
	case w.chance(15): // a node has issued it
		if r := w.nodes[w.rng.IntN(len(w.nodes))].state.Records[simName]; r != nil {
			token = r.LastToken
		}
	default:
		t := w.told[n-1-min(w.rng.IntN(2*n), n-1)%n]
		if w.chance(50) {
			t = w.told[n-1-w.rng.IntN(min(n, 2))]
		}
		l, token = t.lease, t.token
	}
	if token == 0 {
		return
	}
	if owner := w.fences.whose[token]; owner != nil {
		l = owner
	}
	if token <= w.fences.claimed {
		w.fences.asked = max(w.fences.asked, token)
	}
	who := uint8(w.rng.IntN(len(w.clients)))
	k := &call{client: &w.clients[who], who: who, lease: l, began: w.now, poll: newPoll(len(w.nodes)), admit: token, held: l.token == token && l.believed(w.now), life: w.clients[who].life}
	w.log("client %d has %d of %s admitted", who, token, l.id)
	w.sendAll(k, vAdmit)
}

// stepAdmit is an admission at a node.
func (w *world) stepAdmit(s *fencing.State, now fencing.Instant, guard fencing.Guard, token fencing.Token) fencing.Outcome {
	r := s.Records[simName]
	if r != nil && w.bugs.admit.forgotten && r.HighestAdmitted == 0 {
		r.Mark = 0
	}
	var before fencing.Record
	if r != nil {
		before = *r
	}
	op := fencing.AdmitRequest{Name: simName, Token: token, Slot: fencing.NoSlot, Claimed: !w.bugs.admit.unclaimed}
	out := fencing.Step(s, now, guard, op)
	if r == nil || out.Err == nil && !w.bugs.admit.noMark {
		return out
	}
	if w.bugs.admit.noMark {
		r.Mark, r.HighestAdmitted, r.SlotMarks = before.Mark, before.HighestAdmitted, before.SlotMarks
	}
	if w.bugs.admit.over && out.Err != nil && token >= max(r.Mark, r.HighestAdmitted) && token <= r.LastClaimed {
		out.Err = nil
	}
	return out
}

// vote counts a node's answer to an admission.
func (w *world) vote(k *call, node int, r *result) {
	f := r.fence
	if r.err != nil {
		f = r.err.Fence
	}
	yes := r.err == nil
	if !yes && f == nil && w.bugs.admit.silent {
		yes, f = true, &fencing.Fence{}
	}
	k.poll.hear(node, yes, f, r.err)
	if yes && w.bugs.admit.one {
		k.poll.yes = max(k.poll.yes, majorityOf(len(w.nodes)))
	}
	if !k.over && k.poll.decided() {
		k.over = true
		w.decided(k, k.poll.admitted(k.admit))
	}
}

// decided holds an admission, or its refusal, against what docs/locks.md and
// docs/stores/quorum.md promise: a reader's token does not always keep out a writer's before it.
func (w *world) decided(k *call, err *fencing.Error) {
	l, token := k.lease, k.admit
	if err != nil {
		w.log("%d of %s is not admitted: %s", token, l.id, err.Detail)
		if err.Code == fencing.CodeStaleToken && k.held && l.believed(w.now) && w.fences.asked <= token {
			w.fail("%d is refused as stale while %s holds the lock, and nobody has asked with a higher one", token, l.id)
		}
		return
	}
	w.log("%d of %s is admitted", token, l.id)
	if token > w.fences.claimed {
		w.fail("%d is admitted, and %d is the highest that was issued", token, w.fences.claimed)
	}
	for _, a := range w.fences.admitted {
		if a.token > token && a.at < k.began && a.lease.mode == fencing.ModeExclusive {
			w.fail("%d of %s is admitted behind %d of %s", token, l.id, a.token, a.lease.id)
		}
	}
	w.fences.admitted = append(w.fences.admitted, passed{l, token, w.now})
}
