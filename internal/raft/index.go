package raft

import (
	"cmp"
	"time"

	"github.com/tidwall/btree"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/index"
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
	*index.Index
	names      btree.Set[fencing.Name] // all that have a record
	waiting    btree.Set[fencing.Name] // those with a place or a lease that is not confirmed
	tombstones *btree.BTreeG[dueTombstone]
}

func newIndex(state *fencing.State) *stateIndex {
	x := &stateIndex{
		Index:      index.New(state),
		tombstones: btree.NewBTreeGOptions(dueTombstone.before, btree.Options{NoLocks: true}),
	}
	for name, r := range state.Records {
		x.note(name, r)
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
	belongs(&x.names, r != nil)
	belongs(&x.waiting, r != nil && (!r.Queue.Empty() || r.Holders.Unconfirmed()))
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
