package machine

import (
	"cmp"
	"iter"
	"slices"
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

// stateIndex finds beside what an index does what only a node of a cluster looks for.
type stateIndex struct {
	*nameIndex
	idle       btree.Set[fencing.Name]                      // those with a record and without a holder
	waiting    btree.Set[fencing.Name]                      // those with a place or a lease that is not confirmed
	streams    map[fencing.Gateway]*btree.Set[fencing.Name] // those on which a lease hangs on a stream of the gateway; none is empty
	streamsOf  map[fencing.Name][]fencing.Gateway           // the gateways under which a name is there, in order
	tombstones *btree.BTreeG[dueTombstone]
}

func newIndex(state *fencing.State) *stateIndex {
	names := namesOf(state)
	x := &stateIndex{
		nameIndex:  newNameIndex(state, names),
		streams:    map[fencing.Gateway]*btree.Set[fencing.Name]{},
		streamsOf:  map[fencing.Name][]fencing.Gateway{},
		tombstones: btree.NewBTreeGOptions(dueTombstone.before, btree.Options{NoLocks: true}),
	}
	for _, name := range names {
		x.note(name, state.Records[name])
	}
	for key, tomb := range state.Tombstones {
		x.tombstones.Set(dueTombstone{until: tomb.Until, key: key})
	}
	return x
}

// update follows a change of the record of name.
func (x *stateIndex) update(state *fencing.State, name fencing.Name) {
	x.Update(name)
	x.note(name, state.Records[name])
}

func (x *stateIndex) note(name fencing.Name, r *fencing.Record) {
	belongs := func(set *btree.Set[fencing.Name], is bool) {
		if is {
			set.Insert(name)
		} else {
			set.Delete(name)
		}
	}
	belongs(&x.idle, r != nil && r.Holders.Len() == 0)
	belongs(&x.waiting, r != nil && (!r.Queue.Empty() || r.Holders.Unconfirmed()))
	x.noteStreams(name, r)
}

// namesBehind returns the next names that have a record behind one, in order, n at most.
func (x *stateIndex) namesBehind(name fencing.Name, n int) []fencing.Name {
	names := make([]fencing.Name, 0, 2*n)
	add := func(found fencing.Name) bool {
		names = append(names, found)
		return len(names) < cap(names)
	}
	x.heldBehind(name, func(found fencing.Name) bool { return add(found) && len(names) < n })
	held := len(names)
	x.idle.Ascend(name, func(found fencing.Name) bool { return found == name || add(found) && len(names) < held+n })
	slices.Sort(names)
	return names[:min(n, len(names))]
}

func (x *stateIndex) noteStreams(name fencing.Name, r *fencing.Record) {
	var is []fencing.Gateway
	if r != nil {
		is = slices.Collect(r.Holders.Streams())
	}
	was := x.streamsOf[name]
	if slices.Equal(was, is) {
		return
	}
	for _, gateway := range was {
		x.streams[gateway].Delete(name)
		if x.streams[gateway].Len() == 0 {
			delete(x.streams, gateway)
		}
	}
	for _, gateway := range is {
		if x.streams[gateway] == nil {
			x.streams[gateway] = &btree.Set[fencing.Name]{}
		}
		x.streams[gateway].Insert(name)
	}
	if x.streamsOf[name] = is; len(is) == 0 {
		delete(x.streamsOf, name)
	}
}

// among visits the names on which there may be something to tell a gateway in a heartbeat, each
// once.
func (x *stateIndex) among(gateway fencing.Gateway) iter.Seq[fencing.Name] {
	return func(yield func(fencing.Name) bool) {
		goOn := true
		x.waiting.Scan(func(name fencing.Name) bool {
			goOn = yield(name)
			return goOn
		})
		names := x.streams[gateway]
		if names == nil || !goOn {
			return
		}
		names.Scan(func(name fencing.Name) bool { return x.waiting.Contains(name) || yield(name) })
	}
}

// tombstonesDue reports whether tombstones are to go at now.
func (x *stateIndex) tombstonesDue(now fencing.Instant) bool {
	first, ok := x.tombstones.Min()
	return ok && first.until <= now
}

// nextDue returns how long nothing will be due. Tombstones can wait for company.
func (x *stateIndex) nextDue(now fencing.Instant) time.Duration {
	next := idlePause
	if at, ok := x.Next(); ok {
		next = min(next, max(0, at.Sub(now)))
	}
	if first, ok := x.tombstones.Min(); ok {
		next = min(next, max(tombstonePause, first.until.Sub(now)))
	}
	return next
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
