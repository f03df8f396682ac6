package embedded

import (
	"encoding/binary"
	"errors"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
)

// changes is what a batch has to make durable.
type changes struct {
	records map[fencing.Name]struct{}
	holders map[fencing.EndedLease]struct{} // by name and lease, ended or not
	marks   map[markGroup]struct{}
	log     writes // tombstones and history, in order
	clock   bool   // write the clock though nothing else has changed
}

func (c *changes) empty() bool {
	return len(c.records) == 0 && len(c.holders) == 0 && len(c.marks) == 0 && len(c.log.entries) == 0 && !c.clock
}

func (c *changes) record(name fencing.Name) {
	if c.records == nil {
		c.records = map[fencing.Name]struct{}{}
	}
	c.records[name] = struct{}{}
}

func (c *changes) holder(name fencing.Name, lease fencing.LeasePublic) {
	if c.holders == nil {
		c.holders = map[fencing.EndedLease]struct{}{}
	}
	c.holders[fencing.EndedLease{Name: name, Lease: lease}] = struct{}{}
}

func (c *changes) addTombstone(key fencing.EndedLease, tomb fencing.Tombstone) {
	c.log.put(tombstones, tombstoneKey(key, tomb.Until), tombstoneOnDisk(tomb))
}

func (c *changes) forget(key fencing.EndedLease, until fencing.Instant) {
	c.log.remove(tombstones, tombstoneKey(key, until))
}

// encode takes down the changes as they are in state.
func (c *changes) encode(state *fencing.State, now fencing.Instant) writes {
	w := c.log
	for name := range c.records {
		if r := state.Records[name]; r != nil {
			w.put(locks, []byte(name), recordOnDisk(r))
		} else {
			w.remove(locks, []byte(name))
		}
	}
	for key := range c.holders {
		if h, ok := holdingOf(state, key.Name, key.Lease); ok && !h.Provisional {
			w.put(holders, subKey(key.Name, string(key.Lease)), holdingOnDisk(&h))
		} else {
			w.remove(holders, subKey(key.Name, string(key.Lease)))
		}
	}
	c.encodeMarks(&w, state)
	clock := binary.BigEndian.AppendUint64(make([]byte, 0, 16), uint64(state.Counter))
	w.entries = append(w.entries, entry{meta, keyClock, binary.BigEndian.AppendUint64(clock, uint64(now))})
	return w
}

// writes is what a flush puts into the file, in order.
type writes struct {
	entries []entry
	err     error // something could not be encoded
}

// entry is a key of a bucket with its value; nil deletes.
type entry struct {
	bucket     bucket
	key, value []byte
}

func (w *writes) put(b bucket, key []byte, v any) {
	value, err := cbor.Marshal(v)
	w.err = errors.Join(w.err, err)
	w.entries = append(w.entries, entry{b, key, value})
}

func (w *writes) remove(b bucket, key []byte) {
	w.entries = append(w.entries, entry{b, key, nil})
}

// holdingOf returns the holding of a lease, if there is one.
func holdingOf(state *fencing.State, name fencing.Name, lease fencing.LeasePublic) (fencing.Holding, bool) {
	if r := state.Records[name]; r != nil {
		return r.Holders.Find(lease)
	}
	return fencing.Holding{}, false
}
