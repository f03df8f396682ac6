package quorum

import (
	"math/bits"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// attempt is one try to get a lease from a majority: a state machine without
// clock, I/O or goroutine. It is fed what the nodes answer and says what to send
// next. The store and the simulation run it alike.
//
// All nodes are asked for the lease, with a token that is proposed. Where that can
// be claimed, the node claims it in the same step: if a majority does, one round trip
// is all. Otherwise, once a majority has granted the lease, the highest token that any
// of them issued is claimed at every node that has granted it, also at those that do
// so later. The lease is granted once a majority has accepted one token. A lease that
// a majority has with a token already, because this is a retry, keeps it.
//
// A token that was claimed is never raised: a node then stands by one token of a
// lease for as long as that lives there, so that no two tokens of a lease can both
// have a majority. A refused claim ends the attempt; the next one begins anew, with
// tokens above those that stood in the way.
type attempt struct {
	votes    []vote
	majority int
	margin   time.Duration // what is kept back of the time that the nodes give
	phase    phase
	token    fencing.Token  // claimed, once phase is beyond asking
	until    time.Duration  // granted: how long the lease is good for, since the attempt began
	refusal  *fencing.Error // refused: why
	again    bool           // refused: for all that is known nobody else has it, so a new attempt may get it
}

type phase uint8

const (
	asking   phase = iota
	claiming       // a majority has granted the lease
	granted        // a majority has accepted the token
	refused
)

// standing is how a node stands to an attempt.
type standing uint8

const (
	pending  standing = iota // it has not answered
	holding                  // it has granted the lease
	accepted                 // and the token is the one that was claimed
	against                  // it has refused or failed: see vote.err
)

// vote is what an attempt knows of a node.
type vote struct {
	standing standing
	asked    bool           // it is asked for the claim
	unknown  bool           // its answer to the acquire was lost
	claimed  bool           // its token is a claimed one
	token    fencing.Token  // that the lease has there
	end      time.Duration  // when the lease ends there at the earliest, since the attempt began
	err      *fencing.Error // of a node that is against
}

// nodeSet is a set of nodes by number.
type nodeSet uint16

func (s nodeSet) has(node int) bool { return s&(1<<node) != 0 }

func (s nodeSet) count() int { return bits.OnesCount16(uint16(s)) }

// allNodes returns the set of n nodes.
func allNodes(n int) nodeSet { return 1<<n - 1 }

// moves are what is to be sent next: nothing, claims of the attempt's token, or
// take-backs.
type moves struct {
	claim nodeSet
	undo  nodeSet // to be sent until answered, and again once no acquire can be under way any more
}

// majorityOf returns how many of n nodes are a majority.
func majorityOf(n int) int { return n/2 + 1 }

// newAttempt begins an attempt: all nodes are to be asked.
func newAttempt(nodes int, margin time.Duration) *attempt {
	return &attempt{votes: make([]vote, nodes), majority: majorityOf(nodes), margin: margin}
}

// newReturn begins an attempt that brings a lease back to the nodes in missing,
// which are to be asked: a majority has the token.
func newReturn(nodes int, missing nodeSet, token fencing.Token) *attempt {
	a := newAttempt(nodes, 0)
	a.phase, a.token = granted, token
	for i := range a.votes {
		if !missing.has(i) {
			a.votes[i].standing = accepted
		}
	}
	return a
}

// acquired notes that a node has granted the lease, or has it already. All times
// count from the beginning of the attempt.
func (a *attempt) acquired(node int, h *fencing.Holder, end, elapsed time.Duration) moves {
	v := &a.votes[node]
	v.standing, v.token, v.claimed, v.end = holding, h.Token, h.Claimed, end
	switch a.phase {
	case asking:
		return a.weigh(elapsed)
	case refused:
		return moves{undo: 1 << node}
	}
	return a.claimToken(elapsed)
}

// passedOver notes that a node is not asked, for it has not answered lately.
func (a *attempt) passedOver(node int) {
	a.votes[node].standing, a.votes[node].err = against, unavailable("the node does not answer")
}

// notAcquired notes that a node has refused the lease or failed; err says which.
func (a *attempt) notAcquired(node int, err *fencing.Error, elapsed time.Duration) moves {
	v := &a.votes[node]
	v.standing, v.err, v.unknown = against, err, uncertain(err.Code) || err.Unanswered
	if a.phase == granted || a.phase == refused {
		return moves{}
	}
	return a.weigh(elapsed)
}

// claimAccepted notes that a node has accepted the token.
func (a *attempt) claimAccepted(node int, end, elapsed time.Duration) moves {
	v := &a.votes[node]
	v.standing, v.claimed, v.token, v.end = accepted, true, a.token, end
	if a.phase != claiming {
		return moves{}
	}
	return a.weigh(elapsed)
}

// claimRefused notes that a node has refused the token, has lost the lease, or has
// failed.
func (a *attempt) claimRefused(node int, err *fencing.Error, elapsed time.Duration) moves {
	v := &a.votes[node]
	v.standing, v.err = against, err
	switch {
	case a.phase == claiming:
		return a.weigh(elapsed)
	case a.phase == granted && err.Code == fencing.CodeStaleToken:
		return moves{undo: 1 << node} // it is of no use there
	}
	return moves{}
}

// weigh ends the attempt if the answers so far decide it, and returns what is to be sent.
func (a *attempt) weigh(elapsed time.Duration) moves {
	if a.phase == asking {
		if a.count(holding) < a.majority {
			return a.giveUp()
		}
		token, ok := a.choose()
		switch {
		case !ok && a.count(pending) > 0:
			return moves{}
		case !ok:
			return a.refuse(disagreement(), true)
		}
		a.phase, a.token = claiming, token
	}
	return a.claimToken(elapsed)
}

// proposal returns the token that an attempt proposes: as high as those that nodes
// issue, by the clock, and above all that were seen here lately, unless those are from
// a clock that is wrong. Whether it is high enough is for the nodes to say.
func proposal(now fencing.Instant, seen fencing.Token, maxSkew time.Duration) fencing.Token {
	if seen >= fencing.Token(now) && seen <= fencing.Token(now.Add(maxSkew)) {
		return seen + 1
	}
	return fencing.Token(now)
}

// choose returns the token to claim: the one that a majority has claimed, whatever a
// minority has, else the highest that was issued. It reports false while a token is
// claimed, and no majority is known to stand by it. It is not claimed elsewhere then:
// the lease may have been lost meanwhile to one with a higher token, of which a node that
// has forgotten since would not know.
func (a *attempt) choose() (fencing.Token, bool) {
	var issued, agreed fencing.Token
	claimed := false
	for i := range a.votes {
		v := &a.votes[i]
		switch {
		case v.standing != holding:
		case !v.claimed:
			issued = max(issued, v.token)
		default:
			claimed = true
			if a.claimedBy(v.token) >= a.majority {
				agreed = v.token
			}
		}
	}
	if claimed {
		return agreed, agreed != 0
	}
	return issued, true
}

func (a *attempt) claimedBy(token fencing.Token) int {
	n := 0
	for i := range a.votes {
		if v := &a.votes[i]; v.standing == holding && v.claimed && v.token == token {
			n++
		}
	}
	return n
}

// claimToken claims the token where that was not done yet, and ends the attempt if a
// majority has accepted it, or can't any more.
func (a *attempt) claimToken(elapsed time.Duration) moves {
	var m moves
	for i := range a.votes {
		v := &a.votes[i]
		switch {
		case v.standing != holding || v.asked:
		case v.claimed && v.token == a.token:
			v.standing = accepted
		case v.claimed: // it may have been claimed just now
			v.standing, v.err = against, disagreement()
			m.undo |= 1 << i
		default:
			v.asked = true
			m.claim |= 1 << i
		}
	}
	if a.phase == granted {
		return m
	}
	if a.count(accepted) >= a.majority {
		return a.finish(m, elapsed)
	}
	if a.count(accepted)+a.count(holding)+a.count(pending) >= a.majority {
		return m
	}
	return a.refuse(commonest(a.votes), a.stale())
}

// finish grants the lease for as long as a majority of the nodes keeps it, less the
// margin. It refuses if nothing is left of that.
func (a *attempt) finish(m moves, elapsed time.Duration) moves {
	var ends [maxNodes]time.Duration
	n := 0
	for i := range a.votes {
		if v := &a.votes[i]; v.standing == accepted {
			ends[n] = v.end
			n++
		}
	}
	slices.Sort(ends[:n])
	a.until = ends[n-a.majority] - a.margin
	if a.until <= elapsed {
		return a.refuse(tooLate(), false)
	}
	a.phase = granted
	return m
}

// giveUp refuses the lease if a majority can't grant it any more. What no majority
// says is not known before all have answered.
func (a *attempt) giveUp() moves {
	waiting := a.count(pending)
	if a.count(holding)+waiting >= a.majority {
		return moves{}
	}
	if err := agreed(a.votes, a.majority); err != nil {
		return a.refuse(err, err.Code == fencing.CodeLocked && a.contested())
	}
	if waiting > 0 {
		return moves{}
	}
	return a.refuse(commonest(a.votes), a.count(holding) > 0 && a.divided())
}

// divided reports whether some node has refused the lease for that of somebody else.
func (a *attempt) divided() bool {
	return slices.ContainsFunc(a.votes, func(v vote) bool { return v.err != nil && v.err.Code == fencing.CodeLocked })
}

// abandon ends an attempt that is not decided: nobody waits for it any more.
func (a *attempt) abandon(err *fencing.Error) moves {
	if a.phase == granted || a.phase == refused {
		return moves{}
	}
	return a.refuse(err, false)
}

func (a *attempt) refuse(err *fencing.Error, again bool) moves {
	a.phase, a.refusal, a.again = refused, err, again
	return moves{undo: allNodes(len(a.votes))}
}

// contested reports whether no other lease can have a majority, as when several ask at the
// same time and each gets a few nodes.
func (a *attempt) contested() bool {
	for i := range a.votes {
		v := &a.votes[i]
		if v.standing != against || v.err.Lock == nil {
			continue
		}
		if v.err.Lock.HolderCount > len(v.err.Lock.Holders) {
			return false // there are many: they did not come at the same time
		}
		for j := range v.err.Lock.Holders {
			if a.mayHold(v.err.Lock.Holders[j].Lease) {
				return false
			}
		}
	}
	return true
}

// mayHold reports whether a majority may hold somebody else's lease.
func (a *attempt) mayHold(lease fencing.LeasePublic) bool {
	n := 0
	for i := range a.votes {
		v := &a.votes[i]
		switch {
		case v.standing == pending || v.standing == against && v.err.Lock == nil:
			n++
		case v.standing == against:
			if slices.ContainsFunc(v.err.Lock.Holders, func(h fencing.Holder) bool { return h.Lease == lease }) {
				n++
			}
		}
	}
	return n >= a.majority
}

// stale reports whether a claim was refused for a token that stood in its way.
func (a *attempt) stale() bool {
	return slices.ContainsFunc(a.votes, func(v vote) bool { return v.err != nil && v.err.Code == fencing.CodeStaleToken })
}

func (a *attempt) count(s standing) int {
	n := 0
	for i := range a.votes {
		if a.votes[i].standing == s {
			n++
		}
	}
	return n
}
