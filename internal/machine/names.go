package machine

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	"github.com/tidwall/btree"

	"fencepost/internal/fencing"
)

// nameIndex finds the names of a state: those that are held by their order, and all by what is due next. It
// follows from the state, but for what is due, which may be early. Who uses it keeps
// others from the state and from it meanwhile; those who only look may be several.
type nameIndex struct {
	state  *fencing.State
	held   btree.Set[fencing.Name]          // names with a holder, live or not yet ended
	due    *btree.BTreeG[dueName]           // one entry a name, not later than it is due
	queued map[fencing.Name]fencing.Instant // the names in due
}

// newNameIndex returns the index of the names of a state, which are these in order: to put them in one by one, in no order,
// takes many times as long.
func newNameIndex(state *fencing.State, names []fencing.Name) *nameIndex {
	x := &nameIndex{
		state:  state,
		due:    btree.NewBTreeGOptions(dueName.before, btree.Options{NoLocks: true}),
		queued: make(map[fencing.Name]fencing.Instant, len(names)),
	}
	due := make([]dueName, len(names))
	for i, name := range names {
		if state.Records[name].Holders.Len() > 0 {
			x.held.Load(name)
		}
		due[i] = dueName{state.Due(name), name}
		x.queued[name] = due[i].at
	}
	slices.SortFunc(due, dueName.compare)
	for _, d := range due {
		x.due.Load(d)
	}
	return x
}

// namesOf returns the names of a state in order.
func namesOf(state *fencing.State) []fencing.Name {
	names := make([]fencing.Name, 0, len(state.Records))
	for name := range state.Records {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Update follows a change of the record of name. A due time that moved later is found when
// the old one comes up.
func (x *nameIndex) Update(name fencing.Name) {
	r := x.state.Records[name]
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
	if due := x.state.Due(name); !queued || due < at {
		x.due.Delete(dueName{at, name})
		x.due.Set(dueName{due, name})
		x.queued[name] = due
	}
}

// Due returns up to limit names that have something due at now, those first that were due
// first. It corrects what it finds early.
func (x *nameIndex) Due(now fencing.Instant, limit int) (names []fencing.Name) {
	var early []fencing.Name
	x.due.Scan(func(d dueName) bool {
		switch {
		case d.at > now || len(names) == limit:
			return false
		case x.state.Due(d.name) <= now:
			names = append(names, d.name)
		default:
			early = append(early, d.name)
		}
		return true
	})
	for _, name := range early {
		x.due.Delete(dueName{x.queued[name], name})
		delete(x.queued, name)
		x.Update(name)
	}
	return names
}

// Next returns when the first name has something due at the earliest, perhaps too early,
// but for what Due has corrected; false: there is nothing.
func (x *nameIndex) Next() (fencing.Instant, bool) {
	first, ok := x.due.Min()
	return first.at, ok
}

// Queued returns how many names have something due at some time.
func (x *nameIndex) Queued() int { return x.due.Len() }

// Held returns how many names have a holder.
func (x *nameIndex) Held() int { return x.held.Len() }

// HeldBelow returns how many names with a prefix have a holder.
func (x *nameIndex) HeldBelow(prefix string) int {
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

// heldBehind visits the names with a holder behind one, in order.
func (x *nameIndex) heldBehind(name fencing.Name, visit func(fencing.Name) bool) {
	x.held.Ascend(name, func(held fencing.Name) bool { return held == name || visit(held) })
}

// View is what is shown of locks.
type View struct {
	Now    fencing.Instant
	Guard  fencing.Guard // of the gateway to which they are shown
	Prefix string        // of the names
	Limit  int           // how many locks at most, from 1

	// Waiters says that those who wait are listed.
	Waiters bool
}

// Views returns what is shown of the next names behind one. more says that names follow.
func (x *nameIndex) Views(v View, after fencing.Name) (locks []*fencing.Lock, more bool) {
	x.held.Ascend(max(after, fencing.Name(v.Prefix)), func(name fencing.Name) bool {
		switch {
		case after != "" && name <= after:
			return true
		case !strings.HasPrefix(string(name), v.Prefix):
			return false // in order, so no name with the prefix follows
		case len(locks) == v.Limit:
			more = true
			return false
		}
		locks = append(locks, x.state.View(name, v.Now, v.Guard, v.Waiters))
		return true
	})
	return locks, more
}

// dueName is a name by when it is due.
type dueName struct {
	at   fencing.Instant
	name fencing.Name
}

func (d dueName) before(other dueName) bool { return d.compare(other) < 0 }

func (d dueName) compare(other dueName) int {
	return cmp.Or(cmp.Compare(d.at, other.at), cmp.Compare(d.name, other.name))
}
