package embedded

import (
	"container/heap"
	"time"

	"github.com/tidwall/btree"

	"fencepost/internal/fencing"
)

// examinedPerPage bounds how many locks one page of a search looks at, in
// multiples of the page's limit.
const examinedPerPage = 10

// index finds records by order of name and by what is due next.
type index struct {
	held       btree.Set[fencing.Name] // names with a holder, live or not yet ended
	due        dueHeap[fencing.Name]   // at most one entry a name that is not outdated
	queued     map[fencing.Name]fencing.Instant
	tombstones dueHeap[fencing.EndedLease]
}

func newIndex(state *fencing.State) *index {
	x := &index{queued: make(map[fencing.Name]fencing.Instant, len(state.Records))}
	for name := range state.Records {
		x.update(state, name)
	}
	for key, tomb := range state.Tombstones {
		x.tombstones = append(x.tombstones, dueEntry[fencing.EndedLease]{tomb.Until, key})
	}
	heap.Init(&x.tombstones)
	return x
}

// update follows a change of the record of name. A due time that moved later is
// found when the old one comes up.
func (x *index) update(state *fencing.State, name fencing.Name) {
	r := state.Records[name]
	if r == nil || len(r.Holders) == 0 {
		x.held.Delete(name)
	} else {
		x.held.Insert(name)
	}
	if r == nil {
		delete(x.queued, name)
		return
	}
	due := r.Due()
	if at, ok := x.queued[name]; !ok || due < at {
		x.queued[name] = due
		heap.Push(&x.due, dueEntry[fencing.Name]{due, name})
	}
}

// remember queues the tombstone of a lease that has ended.
func (x *index) remember(key fencing.EndedLease, until fencing.Instant) {
	heap.Push(&x.tombstones, dueEntry[fencing.EndedLease]{until, key})
}

// popDue returns a name that has something due at now.
func (x *index) popDue(state *fencing.State, now fencing.Instant) (fencing.Name, bool) {
	for len(x.due) > 0 && x.due[0].at <= now {
		entry := heap.Pop(&x.due).(dueEntry[fencing.Name])
		if x.queued[entry.key] != entry.at {
			continue // outdated: an earlier entry replaced it, or the name is forgotten
		}
		delete(x.queued, entry.key)
		if state.Records[entry.key].Due() <= now {
			return entry.key, true
		}
		x.update(state, entry.key)
	}
	return "", false
}

func (x *index) popTombstone(now fencing.Instant) (fencing.EndedLease, bool) {
	if len(x.tombstones) == 0 || x.tombstones[0].at > now {
		return fencing.EndedLease{}, false
	}
	return heap.Pop(&x.tombstones).(dueEntry[fencing.EndedLease]).key, true
}

// nextDue returns how long nothing will be due.
func (x *index) nextDue(now fencing.Instant) time.Duration {
	next := idlePause
	if len(x.due) > 0 {
		next = min(next, max(0, x.due[0].at.Sub(now)))
	}
	return next
}

// list returns a page of live locks.
func (x *index) list(state *fencing.State, now fencing.Instant, r fencing.ListRequest) fencing.ListPage {
	var page fencing.ListPage
	var last fencing.Name
	examined := 0
	x.held.Ascend(max(r.After, fencing.Name(r.Prefix)), func(name fencing.Name) bool {
		switch {
		case r.After != "" && name <= r.After:
			return true
		case len(name) < len(r.Prefix) || string(name[:len(r.Prefix)]) != r.Prefix:
			return false // in order, so no name with the prefix follows
		case len(page.Locks) == r.Limit || examined == r.Limit*examinedPerPage:
			page.Next = last
			return false
		}
		last = name
		examined++
		if lock := state.Records[name].View(name, now); lock.Held() && r.Match(lock) {
			page.Locks = append(page.Locks, *lock)
		}
		return true
	})
	return page
}

// dueHeap is a heap of keys by when they are due.
type dueHeap[K any] []dueEntry[K]

type dueEntry[K any] struct {
	at  fencing.Instant
	key K
}

func (h dueHeap[K]) Len() int           { return len(h) }
func (h dueHeap[K]) Less(i, j int) bool { return h[i].at < h[j].at }
func (h dueHeap[K]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap[K]) Push(x any)        { *h = append(*h, x.(dueEntry[K])) }
func (h *dueHeap[K]) Pop() any {
	last := len(*h) - 1
	entry := (*h)[last]
	*h = (*h)[:last]
	return entry
}
