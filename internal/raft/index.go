package raft

import (
	"cmp"
	"sort"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"fencepost/internal/fencing"
)

const (
	// idlePause is how long Expire tells its caller to rest when nothing is due.
	idlePause = time.Minute

	// tombstonesPerEntry bounds how many tombstones one entry drops.
	tombstonesPerEntry = 4096

	// tombstonePause is how long tombstones that are due wait for others, so that they
	// share an entry.
	tombstonePause = time.Second
)

// index finds records by order of name and by what is due next, and tombstones by when
// they go. It follows from the state, but for due, which may be early.
type index struct {
	names      btree.Set[fencing.Name]          // all that have a record
	held       btree.Set[fencing.Name]          // those with a holder, live or not yet ended
	waiting    btree.Set[fencing.Name]          // those with a place or a lease that is not confirmed
	due        *btree.BTreeG[dueName]           // one entry a name, not later than it is due
	queued     map[fencing.Name]fencing.Instant // the names in due
	tombstones *btree.BTreeG[dueTombstone]
}

func newIndex(state *fencing.State) *index {
	unlocked := btree.Options{NoLocks: true}
	x := &index{
		due:        btree.NewBTreeGOptions(dueName.before, unlocked),
		queued:     make(map[fencing.Name]fencing.Instant, len(state.Records)),
		tombstones: btree.NewBTreeGOptions(dueTombstone.before, unlocked),
	}
	for name := range state.Records {
		x.update(state, name)
	}
	for key, tomb := range state.Tombstones {
		x.tombstones.Set(dueTombstone{until: tomb.Until, key: key})
	}
	return x
}

// update follows a change of the record of name. A due time that moved later is found when
// the old one comes up.
func (x *index) update(state *fencing.State, name fencing.Name) {
	r := state.Records[name]
	belongs := func(set *btree.Set[fencing.Name], is bool) {
		if is {
			set.Insert(name)
		} else {
			set.Delete(name)
		}
	}
	belongs(&x.names, r != nil)
	belongs(&x.held, r != nil && r.Holders.Len() > 0)
	belongs(&x.waiting, r != nil && (!r.Queue.Empty() || r.Holders.Unconfirmed()))
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

// dueNames returns up to limit names that have something due at now. It corrects what it
// finds early.
func (x *index) dueNames(state *fencing.State, now fencing.Instant, limit int) (names []fencing.Name) {
	var early []fencing.Name
	x.due.Scan(func(d dueName) bool {
		switch {
		case d.at > now || len(names) == limit:
			return false
		case state.Due(d.name) <= now:
			names = append(names, d.name)
		default:
			early = append(early, d.name)
		}
		return true
	})
	for _, name := range early {
		x.due.Delete(dueName{x.queued[name], name})
		delete(x.queued, name)
		x.update(state, name)
	}
	return names
}

// firstDue returns when the first name has something due at the earliest; there may be none.
func (x *index) firstDue() (fencing.Instant, bool) {
	first, ok := x.due.Min()
	return first.at, ok
}

// tombstonesDue reports whether tombstones are to go at now.
func (x *index) tombstonesDue(now fencing.Instant) bool {
	first, ok := x.tombstones.Min()
	return ok && first.until <= now
}

// nextDue returns how long nothing will be due. Tombstones can wait for company.
func (x *index) nextDue(now fencing.Instant) time.Duration {
	next := idlePause
	if at, ok := x.firstDue(); ok {
		next = min(next, max(0, at.Sub(now)))
	}
	if first, ok := x.tombstones.Min(); ok {
		next = min(next, max(tombstonePause, first.until.Sub(now)))
	}
	return next
}

// views returns what guard.Gateway is shown of the next names behind one, up to limit of them and only
// those with a prefix; with waiters it lists them. more says that names follow.
func (x *index) views(state *fencing.State, now fencing.Instant, guard fencing.Guard, prefix string, after fencing.Name, limit int, waiters bool) (locks []*fencing.Lock, more bool) {
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
	return cmp.Or(cmp.Compare(d.at, other.at), cmp.Compare(d.name, other.name)) < 0
}

// dueTombstone is a tombstone by when it goes. No two are equal, so that each node drops
// the same ones first.
type dueTombstone struct {
	until fencing.Instant
	key   fencing.EndedLease
	born  uint64 // the entry of the log that made it; 0 of one that was restored
}

func (d dueTombstone) before(other dueTombstone) bool {
	return cmp.Or(cmp.Compare(d.until, other.until), cmp.Compare(d.key.Name, other.key.Name), cmp.Compare(d.key.Lease, other.key.Lease)) < 0
}
