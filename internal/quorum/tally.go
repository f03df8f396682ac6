package quorum

import (
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// maxNodes is the room in sets of nodes.
const maxNodes = fencing.MaxNodes

// tally counts what nodes answer to a renewal or release. As attempt, it has
// neither clock nor I/O.
type tally struct {
	votes    []vote
	majority int
	margin   time.Duration
	decided  bool
	ok       bool          // decided: a majority has done it
	token    fencing.Token // renewal, ok: what the majority has claimed
	until    time.Duration // renewal, ok: as attempt.until
	refusal  *fencing.Error
	release  bool
}

func newTally(nodes int, margin time.Duration, release bool) *tally {
	return &tally{votes: make([]vote, nodes), majority: majorityOf(nodes), margin: margin, release: release}
}

// done notes that a node has done it; h is what the lease is there now.
func (t *tally) done(node int, h *fencing.Holder, end, elapsed time.Duration) {
	v := &t.votes[node]
	v.standing, v.token, v.claimed, v.end = accepted, h.Token, h.Claimed, end
	t.weigh(elapsed)
}

// notDone notes that a node has refused or failed. A node that may have forgotten
// does not prove a lease lost by not knowing of it.
func (t *tally) notDone(node int, err *fencing.Error, forgetful bool, elapsed time.Duration) {
	v := &t.votes[node]
	v.standing, v.err = against, err
	if forgetful && err.Code == fencing.CodeLeaseLost && err.Reason == fencing.ReasonUnknown {
		v.err = &fencing.Error{Code: fencing.CodeQuarantined, Detail: "the node may have lost the lease"}
	}
	t.weigh(elapsed)
}

func (t *tally) weigh(elapsed time.Duration) {
	if t.decided {
		return
	}
	if t.release {
		t.weighRelease()
		return
	}
	if token := t.common(); token != 0 {
		t.finishRenewal(token, elapsed)
		return
	}
	t.close()
}

// common returns the claimed token that a majority has, 0 if none does.
func (t *tally) common() fencing.Token {
	for i := range t.votes {
		if v := &t.votes[i]; v.standing == accepted && v.claimed && t.have(v.token) >= t.majority {
			return v.token
		}
	}
	return 0
}

func (t *tally) have(token fencing.Token) int {
	n := 0
	for i := range t.votes {
		if v := &t.votes[i]; v.standing == accepted && v.claimed && v.token == token {
			n++
		}
	}
	return n
}

// finishRenewal ends a renewal that a majority has made: nodes that never agreed to the
// token don't count, for others may have had the name there meanwhile.
func (t *tally) finishRenewal(token fencing.Token, elapsed time.Duration) {
	t.decided = true
	var ends [maxNodes]time.Duration
	n := 0
	for i := range t.votes {
		if v := &t.votes[i]; v.standing == accepted && v.claimed && v.token == token {
			ends[n] = v.end
			n++
		}
	}
	slices.Sort(ends[:n])
	t.until = ends[n-t.majority] - t.margin
	if t.until <= elapsed {
		t.refusal = tooLate()
		return
	}
	t.ok, t.token = true, token
}

// weighRelease ends a release once a majority has let go of the lease, or has it hang on a newer request, or
// when all have answered: a node that has let go of it must be heard. If the others don't have the lease,
// also because they have forgotten it, it is over then.
func (t *tally) weighRelease() {
	done, lost, forgotten := 0, 0, 0
	for i := range t.votes {
		switch v := &t.votes[i]; {
		case v.standing == accepted:
			done++
		case v.standing == against && v.err.Code == fencing.CodeLeaseLost:
			lost++
		case v.standing == against && v.err.Code == fencing.CodeQuarantined:
			forgotten++
		}
	}
	waiting := t.waiting()
	switch {
	case done >= t.majority || t.replaced().count() >= t.majority || waiting == 0 && done > 0 && lost < t.majority && done+lost+forgotten >= t.majority:
		t.decided, t.ok = true, true
	case waiting == 0:
		t.close()
	}
}

// close ends the count if a majority refuses, or all have answered.
func (t *tally) close() {
	if err := agreed(t.votes, t.majority); err != nil {
		t.decided, t.refusal = true, err
	} else if t.waiting() == 0 {
		t.decided, t.refusal = true, commonest(t.votes)
		if t.refusal.Code == fencing.CodeQuarantined { // which would say that nothing was done
			t.refusal = unavailable("nodes may have forgotten the lease")
		}
	}
}

func (t *tally) waiting() int {
	n := 0
	for i := range t.votes {
		if t.votes[i].standing == pending {
			n++
		}
	}
	return n
}

// replaced returns the nodes that refused a stream for a newer request.
func (t *tally) replaced() nodeSet {
	var set nodeSet
	for i := range t.votes {
		if v := &t.votes[i]; v.standing == against && v.err.Code == fencing.CodeReplaced {
			set |= 1 << i
		}
	}
	return set
}

// missing returns the nodes that said they don't have the lease, or not with its
// token: it may be brought back there.
func (t *tally) missing() nodeSet {
	var set nodeSet
	for i := range t.votes {
		switch v := &t.votes[i]; {
		case v.standing == accepted && !v.claimed,
			v.standing == against && v.err.Code == fencing.CodeLeaseLost && v.err.Reason == fencing.ReasonUnknown:
			set |= 1 << i
		}
	}
	return set
}
