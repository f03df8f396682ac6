package quorum

import (
	"time"

	"fencepost/internal/fencing"
)

// marginOf returns what is kept back of a TTL: a hundredth for clocks that run at
// different rates, 2 ms for what clocks round, and the skew that a node's clock may
// make up by a step while the lease lives.
func marginOf(ttl, maxSkew time.Duration) time.Duration {
	return ttl/100 + 2*time.Millisecond + maxSkew
}

// ShortestTTL returns the shortest TTL that a quorum whose clocks may differ by maxSkew
// grants, in whole milliseconds: a default TTL below it would refuse all who name none.
func ShortestTTL(maxSkew time.Duration) time.Duration {
	return shortestTTL(maxSkew, defaultNodeTimeout)
}

// shortestTTL returns the shortest TTL of which anything is left after the margin
// and a round of requests.
func shortestTTL(maxSkew, nodeTimeout time.Duration) time.Duration {
	least := (maxSkew + 2*time.Millisecond + nodeTimeout) * 100 / 99
	return least.Truncate(time.Millisecond) + time.Millisecond
}

// uncertain reports whether a code leaves open what a node did or would say. Such
// an answer is no vote.
func uncertain(code fencing.Code) bool {
	switch code {
	case fencing.CodeUnavailable, fencing.CodeClockSkew, fencing.CodeQuarantined, fencing.CodeNotReplicated:
		return true
	}
	return false
}

// agreed returns the refusal that a majority gives, nil if none does. Reasons may
// differ: a lease is lost if a majority has lost it, however each came to.
func agreed(votes []vote, majority int) *fencing.Error {
	for i := range votes {
		v := &votes[i]
		if v.standing != against || uncertain(v.err.Code) {
			continue
		}
		n := 0
		for j := range votes {
			if w := &votes[j]; w.standing == against && w.err.Code == v.err.Code {
				n++
			}
		}
		if n < majority {
			continue
		}
		if v.err.Code == fencing.CodeLeaseLost {
			return mostTelling(votes)
		}
		return v.err
	}
	return nil
}

// weight orders the reasons of a loss by what they tell.
func weight(reason fencing.Reason) int {
	switch reason {
	case fencing.ReasonBroken:
		return 5
	case fencing.ReasonReleased:
		return 4
	case fencing.ReasonSuperseded:
		return 3
	case fencing.ReasonExpired:
		return 2
	}
	return 1
}

// mostTelling returns the loss that tells most.
func mostTelling(votes []vote) *fencing.Error {
	var best *fencing.Error
	for i := range votes {
		err := votes[i].err
		if votes[i].standing != against || err.Code != fencing.CodeLeaseLost {
			continue
		}
		if best == nil || weight(err.Reason) > weight(best.Reason) ||
			err.Reason == best.Reason && err.CurrentToken > best.CurrentToken {
			best = err
		}
	}
	return best
}

// commonest returns why nothing could be decided: the code that most of those
// nodes gave that are no vote, CodeUnavailable if several did or none.
func commonest(votes []vote) *fencing.Error {
	var best *fencing.Error
	most, tied := 0, false
	for i := range votes {
		v := &votes[i]
		if v.standing != against || !uncertain(v.err.Code) {
			continue
		}
		n := 0
		for j := range votes {
			if w := &votes[j]; w.standing == against && w.err.Code == v.err.Code {
				n++
			}
		}
		switch {
		case n > most:
			best, most, tied = v.err, n, false
		case n == most && v.err.Code != best.Code:
			tied = true
		}
	}
	if best == nil || tied || best.Code == fencing.CodeUnavailable {
		if err := refusedAt(votes); err != nil {
			return err
		}
		err := unavailable("no majority of the nodes agrees")
		if best != nil {
			err.Err = best.Err
		}
		return err
	}
	return best
}

// refusedAt returns that nodes refuse this gateway, nil if fewer do than are unavailable
// otherwise. What they refuse is for operators.
func refusedAt(votes []vote) *fencing.Error {
	var first error
	faults, others := 0, 0
	for i := range votes {
		v := &votes[i]
		if v.standing != against || v.err.Code != fencing.CodeUnavailable {
			continue
		}
		if fencing.FaultOf(v.err) == nil {
			others++
			continue
		}
		faults++
		if first == nil {
			first = v.err.Err
		}
	}
	if faults == 0 || faults < others {
		return nil
	}
	err := unavailable("nodes of the quorum refuse to serve this gateway, and no majority of the others is left")
	err.Err = first
	return err
}

func unavailable(detail string) *fencing.Error {
	return &fencing.Error{Code: fencing.CodeUnavailable, Detail: detail + "; the outcome is unknown"}
}

func disagreement() *fencing.Error {
	return unavailable("the nodes have different tokens for the lease")
}

func tooLate() *fencing.Error {
	return unavailable("the nodes took so long that nothing is left of the lease")
}
