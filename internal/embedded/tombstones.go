package embedded

import (
	"container/heap"
	"time"

	"fencepost/internal/fencing"
)

const (
	// tombstonesPerCall bounds how many tombstones one call of Expire drops.
	tombstonesPerCall = 4096

	// tombstonePause is how long tombstones that are due wait for others, so that
	// they share a flush.
	tombstonePause = time.Second
)

// dueTombstones are the leases whose tombstones there are, a heap of them by when they may go.
type dueTombstones []dueTombstone

type dueTombstone struct {
	until fencing.Instant
	key   fencing.EndedLease
}

func newTombstones(state *fencing.State) dueTombstones {
	t := make(dueTombstones, 0, len(state.Tombstones))
	for key, tomb := range state.Tombstones {
		t = append(t, dueTombstone{tomb.Until, key})
	}
	heap.Init(&t)
	return t
}

// add queues the tombstone of a lease that has ended.
func (t *dueTombstones) add(key fencing.EndedLease, until fencing.Instant) {
	heap.Push(t, dueTombstone{until, key})
}

// pop returns one that may go at now.
func (t *dueTombstones) pop(now fencing.Instant) (dueTombstone, bool) {
	if len(*t) == 0 || (*t)[0].until > now {
		return dueTombstone{}, false
	}
	return heap.Pop(t).(dueTombstone), true
}

// next returns how long none need go. They can wait for company.
func (t dueTombstones) next(now fencing.Instant) time.Duration {
	if len(t) == 0 {
		return idlePause
	}
	return max(tombstonePause, t[0].until.Sub(now))
}

// Len, Less, Swap, Push and Pop are those of a heap.
func (t dueTombstones) Len() int           { return len(t) }
func (t dueTombstones) Less(i, j int) bool { return t[i].until < t[j].until }
func (t dueTombstones) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *dueTombstones) Push(x any)        { *t = append(*t, x.(dueTombstone)) }
func (t *dueTombstones) Pop() any {
	last := len(*t) - 1
	entry := (*t)[last]
	*t = (*t)[:last]
	return entry
}
