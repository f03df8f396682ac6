package fencing

import (
	"cmp"
	"slices"
	"time"
)

// estimateLeast is from how many ended leases, or hand-offs, it is told how long the next
// ones will take: fewer are chance.
const estimateLeast = 3

// Pace is what the last leases of a name say of how long a wait for it takes. The zero Pace
// says nothing.
type Pace struct {
	held []time.Duration // for how long each was held, the shortest first; at most MaxHistory
	turn time.Duration   // between two hand-offs to those who waited, on average; 0 where that is not known
}

// PaceOf returns the pace of a lock, from the view of it and the leases that ended last, in
// any order, as History returns both.
//
// A turn is what lies between two grants, of which the later one's request waited all the
// time: so it has in it what a hand-off takes, and nothing of the time in which nobody wanted
// the lock; permits and readers that were let in together make it short.
func PaceOf(lock *Lock, past []Ended) Pace {
	var p Pace
	grants := make([]*Holder, 0, len(past)+len(lock.Holders))
	for i := range past {
		p.held = append(p.held, past[i].Held())
		grants = append(grants, &past[i].Holder)
	}
	for i := range lock.Holders {
		grants = append(grants, &lock.Holders[i])
	}
	slices.Sort(p.held)
	slices.SortFunc(grants, func(a, b *Holder) int { return cmp.Compare(a.AcquiredAt, b.AcquiredAt) })
	var sum, turns time.Duration
	for i := 1; i < len(grants); i++ {
		if turn := grants[i].AcquiredAt.Sub(grants[i-1].AcquiredAt); grants[i].Waited >= turn {
			sum += turn
			turns++
		}
	}
	if turns >= estimateLeast {
		p.turn = sum / turns
	}
	return p
}

// Wait estimates how long a request for so many permits (0 as 1), which tolerates limit of them (0
// is any number; ModeShared only), takes from now on to be granted that stands at position, from 1,
// in the queue of a lock, or would. It is at least a millisecond; 0 where too little is
// known: of fewer than three ended leases, or of a lock that nobody holds and that anybody may have.
// Nothing follows from it.
//
// It is what the holders take yet, or the delay that keeps everybody out, and a turn for each who stands before it. Leases of the past
// that were held for longer than a holder has its own say how much longer it will take, on
// average; where there is none, it is as long again as it is longer than all of them.
func (p *Pace) Wait(lock *Lock, mode Mode, limit, permits, position int) time.Duration {
	if len(p.held) < estimateLeast || len(lock.Holders) == 0 && lock.DelayedUntil == 0 || position < 1 {
		return 0
	}
	permits = max(1, permits)
	rests := make([]remaining, len(lock.Holders))
	var sum time.Duration
	for i := range lock.Holders {
		h := &lock.Holders[i]
		rests[i] = remaining{p.rest(lock.Now.Sub(h.AcquiredAt)), h.Permits}
		sum += rests[i].time
	}
	slices.SortFunc(rests, func(a, b remaining) int { return cmp.Compare(a.time, b.time) })
	first, turn := lock.Delayed(), p.turn
	if len(rests) > 0 {
		first = max(first, rests[len(rests)-1].time) // an exclusive lease comes when all have gone
	}
	if len(rests) > 0 && lock.Holders[0].Mode == ModeShared && mode == ModeShared {
		if gone := leavers(lock, rests, tolerates(mode, limit), permits); gone < lock.HolderCount { // and permits when some have
			first = max(lock.Delayed(), sum/time.Duration(len(rests))*time.Duration(gone)/time.Duration(lock.HolderCount))
		}
	}
	if turn == 0 {
		turn = mean(p.held) / time.Duration(max(1, lock.HolderCount))
	}
	return max(first+time.Duration(position-1)*turn, time.Millisecond)
}

// remaining is for how much longer a holder of some permits takes.
type remaining struct {
	time    time.Duration
	permits int
}

// leavers returns how many of the holders have to go, the first ones first, before so many
// permits are free for who bears so many.
func leavers(lock *Lock, rests []remaining, bears, permits int) (gone int) {
	free := bears
	for i := range lock.Holders {
		h := &lock.Holders[i]
		free = min(free, tolerates(h.Mode, h.Limit))
	}
	for i := range rests {
		free -= rests[i].permits
	}
	for gone < len(rests) && free < permits || gone == 0 {
		free += rests[gone].permits
		gone++
	}
	return gone
}

// rest returns for how much longer a lease is held that has been for so long.
func (p *Pace) rest(held time.Duration) time.Duration {
	i, _ := slices.BinarySearch(p.held, held+1)
	longer := p.held[i:]
	if len(longer) == 0 {
		return held - p.held[len(p.held)-1]
	}
	return mean(longer) - held
}

func mean(all []time.Duration) (sum time.Duration) {
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(len(all))
}
