package embedded

import (
	"container/heap"
	"sort"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"fencepost/internal/fencing"
)

const (
	// tombstonesPerCall bounds how many tombstones one call of Expire drops.
	tombstonesPerCall = 4096

	// tombstonePause is how long tombstones that are due wait for others, so that
	// they share a flush.
	tombstonePause = time.Second
)

// index finds records by order of name and by what is due next.
type index struct {
	held       btree.Set[fencing.Name]          // names with a holder, live or not yet ended
	due        *btree.BTreeG[dueName]           // one entry a name, not later than it is due
	queued     map[fencing.Name]fencing.Instant // the names in due
	tombstones tombstoneHeap
}

func newIndex(state *fencing.State) *index {
	x := &index{
		due:    btree.NewBTreeGOptions(dueName.before, btree.Options{NoLocks: true}),
		queued: make(map[fencing.Name]fencing.Instant, len(state.Records)),
	}
	for name := range state.Records {
		x.update(state, name)
	}
	for key, tomb := range state.Tombstones {
		x.tombstones = append(x.tombstones, dueTombstone{tomb.Until, key})
	}
	heap.Init(&x.tombstones)
	return x
}

// update follows a change of the record of name. A due time that moved later is
// found when the old one comes up.
func (x *index) update(state *fencing.State, name fencing.Name) {
	r := state.Records[name]
	if r == nil || r.Holders.Len() == 0 {
		x.held.Delete(name)
	} else {
		x.held.Insert(name)
	}
	at, queued := x.queued[name]
	if r == nil {
		x.due.Delete(dueName{at, name})
		delete(x.queued, name)
		return
	}
	if due := state.Due(name); !queued || due < at {
		x.due.Delete(dueName{at, name})
		x.due.Set(dueName{due, name})
		x.queued[name] = due
	}
}

// remember queues the tombstone of a lease that has ended.
func (x *index) remember(key fencing.EndedLease, until fencing.Instant) {
	heap.Push(&x.tombstones, dueTombstone{until, key})
}

// popDue returns a name that has something due at now.
func (x *index) popDue(state *fencing.State, now fencing.Instant) (fencing.Name, bool) {
	for {
		first, ok := x.due.Min()
		if !ok || first.at > now {
			return "", false
		}
		x.due.Delete(first)
		delete(x.queued, first.name)
		if state.Due(first.name) <= now {
			return first.name, true
		}
		x.update(state, first.name)
	}
}

func (x *index) popTombstone(now fencing.Instant) (fencing.EndedLease, bool) {
	if len(x.tombstones) == 0 || x.tombstones[0].until > now {
		return fencing.EndedLease{}, false
	}
	return heap.Pop(&x.tombstones).(dueTombstone).key, true
}

// nextDue returns how long nothing will be due. Tombstones can wait for company.
func (x *index) nextDue(now fencing.Instant) time.Duration {
	next := idlePause
	if first, ok := x.due.Min(); ok {
		next = min(next, max(0, first.at.Sub(now)))
	}
	if len(x.tombstones) > 0 {
		next = min(next, max(tombstonePause, x.tombstones[0].until.Sub(now)))
	}
	return next
}

// views returns what is shown of the next names behind one, up to limit of them and only
// those with a prefix; with waiters it lists them. more says that names follow.
func (x *index) views(state *fencing.State, now fencing.Instant, prefix string, after fencing.Name, limit int, waiters bool) (locks []*fencing.Lock, more bool) {
	x.held.Ascend(max(after, fencing.Name(prefix)), func(name fencing.Name) bool {
		switch {
		case after != "" && name <= after:
			return true
		case !strings.HasPrefix(string(name), prefix):
			return false // in order, so no name with the prefix follows
		case len(locks) == limit:
			more = true
			return false
		}
		locks = append(locks, state.View(name, now, guard, waiters))
		return true
	})
	return locks, more
}

// countHeld returns how many names with a prefix have a holder.
func (x *index) countHeld(prefix string) int {
	before := func(bound string) int {
		return sort.Search(x.held.Len(), func(at int) bool {
			name, _ := x.held.GetAt(at)
			return string(name) >= bound
		})
	}
	if prefix == "" {
		return x.held.Len()
	}
	return before(prefix+"\xff") - before(prefix) // names are ASCII
}

// dueName is a name by when it is due.
type dueName struct {
	at   fencing.Instant
	name fencing.Name
}

func (d dueName) before(other dueName) bool {
	return d.at < other.at || d.at == other.at && d.name < other.name
}

// tombstoneHeap is a heap of tombstones by when they may go.
type tombstoneHeap []dueTombstone

type dueTombstone struct {
	until fencing.Instant
	key   fencing.EndedLease
}

func (h tombstoneHeap) Len() int           { return len(h) }
func (h tombstoneHeap) Less(i, j int) bool { return h[i].until < h[j].until }
func (h tombstoneHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *tombstoneHeap) Push(x any)        { *h = append(*h, x.(dueTombstone)) }
func (h *tombstoneHeap) Pop() any {
	last := len(*h) - 1
	entry := (*h)[last]
	*h = (*h)[:last]
	return entry
}
