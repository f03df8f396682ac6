package raft

import (
	"bytes"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"

	"fencepost/internal/machine"
)

// testFSM returns what carries out the log of a node, without the node.
func testFSM(t testing.TB) *fsm {
	m := newFSM("0000000000000001", &Options{})
	m.asked = func(uint64) time.Time { return time.Time{} }
	m.leads = func(uint64) bool { return false }
	m.push, m.compact = func([]machine.Told) {}, func() {}
	m.fail = func(err error) { t.Error(err) }
	return m
}

// encoded returns all that a node remembers.
func encoded(t testing.TB, m *fsm) []byte {
	t.Helper()
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	if err := s.(snapshot).Write(&b, &m.mu); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unknownOp returns an operation of a later version.
func unknownOp() cbor.RawMessage { return must(machine.Encoding.Marshal(map[int]int{1: 99})) }

// An entry that can't be read ends the node: it must not go on without it.
func TestAnUnknownEntryEndsTheNode(t *testing.T) {
	m := testFSM(t)
	var failed error
	m.fail = func(err error) { failed = err }
	e := machine.Entry{Term: 1, Now: 1, Batches: []machine.Batch{{Ops: []cbor.RawMessage{unknownOp()}}}}
	m.Apply(&raft.Log{Index: 1, Term: 1, Data: must(e.Encode())})
	if failed == nil {
		t.Fatal("an operation that is not known is passed over")
	}
	log := []*raft.Log{entryOf(2, "a")}
	m.Apply(log[0])
	if m.machine.Applied() != 0 || len(m.machine.State().Records) != 0 {
		t.Error("the node goes on")
	}
	if _, err := m.Snapshot(); err == nil {
		t.Error("the node takes a snapshot")
	}
}

// What a leader of an earlier term proposed late is not carried out in another one.
func TestAnEntryOfAnotherTermDoesNotCount(t *testing.T) {
	m := testFSM(t)
	for index := range uint64(20) {
		l := entryOf(index+1, "a")
		l.Term = 2
		m.Apply(l)
	}
	if len(m.machine.State().Records) != 0 || m.machine.Now() != 0 || m.machine.Applied() != 20 {
		t.Errorf("%d records at %d, after entry %d", len(m.machine.State().Records), m.machine.Now(), m.machine.Applied())
	}
}
