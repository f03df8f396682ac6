package raft

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/wal"
)

// watcher is told of events.
type watcher struct{ ids []string }

func (w *watcher) Event(e fencing.Event) { w.ids = append(w.ids, e.ID) }
func (w *watcher) Gap()                  {}

// entryOf returns an entry in which gateways acquire names, one each.
func entryOf(index uint64, names ...fencing.Name) *raft.Log {
	e := machine.Entry{Term: 1, Now: int64(1000 + index)}
	for i, name := range names {
		e.Batches = append(e.Batches, machine.Batch{
			Gateway: fmt.Sprintf("%016d", i), Number: 1, Ops: []cbor.RawMessage{machine.EncodeOp(acquire(name, time.Minute))},
		})
	}
	return &raft.Log{Index: index, Term: 1, Data: must(e.Encode())}
}

// Where another leader has other entries at the end of a log that a node began with, these are told like any.
func TestEntriesAfterACutAreTold(t *testing.T) {
	m := testFSM(t)
	l, err := openLog(t.TempDir(), wal.Options{}, nil, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for index := range uint64(10) {
		if err := l.StoreLog(entryOf(index+1, "a")); err != nil {
			t.Fatal(err)
		}
	}
	m.quiet.Store(10)
	l.cut = m.cut
	w := &watcher{}
	defer m.watchers.Add(w)()
	m.Apply(entryOf(5, "b"))
	if len(w.ids) > 0 {
		t.Errorf("what was carried out before is told: %v", w.ids)
	}
	if err := l.DeleteRange(1, 3); err != nil { // a snapshot has them
		t.Fatal(err)
	}
	if m.quiet.Load() != 10 {
		t.Errorf("entries up to %d are quiet after the log was cut at its beginning", m.quiet.Load())
	}
	if err := l.DeleteRange(8, 10); err != nil {
		t.Fatal(err)
	}
	m.Apply(entryOf(7, "c"))
	m.Apply(entryOf(8, "d"))
	if want := []string{"8-0"}; !slices.Equal(w.ids, want) {
		t.Errorf("told of %v, want %v", w.ids, want)
	}
}

// An event has the same id at each node, also where the first watcher comes while its entry is carried out.
func TestEventsHaveTheSameIDs(t *testing.T) {
	early, late := testFSM(t), testFSM(t)
	early.self, late.self = "elsewhere", "0000000000000001"
	before, during := &watcher{}, &watcher{}
	defer early.watchers.Add(before)()
	remove := func() {}
	late.asked = func(uint64) time.Time { // the second batch begins
		if len(during.ids) == 0 {
			remove = late.watchers.Add(during)
		}
		return time.Time{}
	}
	first, second := entryOf(1, "a", "b", "c"), entryOf(2, "d")
	for _, l := range []*raft.Log{first, second} {
		early.Apply(l)
		late.Apply(l)
	}
	remove()
	for _, id := range during.ids {
		if !slices.Contains(before.ids, id) {
			t.Errorf("%s is an id of this node alone: the other has %v", id, before.ids)
		}
	}
	if want := []string{"2-0"}; !slices.Equal(during.ids, want) {
		t.Errorf("told of %v, want %v", during.ids, want)
	}
	if want := []string{"1-0", "1-1", "1-2", "2-0"}; !slices.Equal(before.ids, want) {
		t.Errorf("told of %v, want %v", before.ids, want)
	}
}
