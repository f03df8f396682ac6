package raft

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// heavy returns a machine on which neighbouring names have many leases with much to say.
func heavy(t *testing.T, names, leases int) *machine {
	m := testMachine(t)
	metadata := map[string]string{}
	for i := range 16 {
		metadata[fmt.Sprint(i)] = strings.Repeat("x", 250)
	}
	e := entry{Term: 1, Now: int64(fencingtest.Epoch)}
	for name := range names {
		b := batch{Gateway: "g"}
		for range leases {
			r := acquire(fencing.Name(fmt.Sprintf("n%03d", name)), time.Hour)
			r.Mode, r.Metadata = fencing.ModeShared, metadata
			b.Ops = append(b.Ops, encodeOp(r))
		}
		e.Batches = append(e.Batches, b)
	}
	m.Apply(&raft.Log{Index: 1, Term: 1, Data: must(e.encode())})
	return m
}

// Neighbours with many leases each do not make a part of a snapshot that is too large to be read.
func TestTheFramesOfASnapshotAreBounded(t *testing.T) {
	m := heavy(t, 30, 10) // of 40 kB each
	written := encoded(t, m)
	r := frameReader{from: bytes.NewReader(written)}
	for frames := 0; ; frames++ {
		kind, content, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		if len(content) > fullFrame+1000 {
			t.Errorf("part %d has %d bytes", frames, len(content))
		}
		if kind == frameEnd {
			break
		}
	}
	again := testMachine(t)
	if err := again.Restore(io.NopCloser(bytes.NewReader(written))); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(encoded(t, again), written) {
		t.Error("it is another state")
	}
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	s.(*snapshot).most = 30 << 10 // less than a name has
	if err := s.(*snapshot).write(io.Discard); err == nil {
		t.Error("a part was written that is too large to be read")
	}
}

// snapshotsOf returns the names of the snapshots of a node.
func snapshotsOf(t *testing.T, n *node) (names []string) {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(n.options.Dir, "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range all {
		names = append(names, entry.Name())
	}
	return names
}

// The log is not cut behind a snapshot that can't be read, which is not there at the next start either.
func TestASnapshotThatCantBeReadIsNotKept(t *testing.T) {
	c := newCluster(t, 1, func(_ int, o *Options) { o.segment = 4 << 10 })
	n := c.nodes[0]
	for i := range 20 {
		if _, err := n.Acquire(t.Context(), acquire(fencing.Name(fmt.Sprint("n", i)), time.Hour)); err != nil {
			t.Fatal(err)
		}
		if i == 10 {
			compacted(t, n)
		}
	}
	kept := snapshotsOf(t, n)
	first, err := n.dir.log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	readBack := n.machine.readBack
	n.machine.readBack = func(id string) error {
		path := filepath.Join(n.options.Dir, "snapshots", id, "state.bin")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return readBack(id)
	}
	if err := n.raft.Snapshot().Error(); err == nil {
		t.Error("a snapshot that can't be read was taken")
	}
	if now := snapshotsOf(t, n); fmt.Sprint(now) != fmt.Sprint(kept) {
		t.Errorf("the snapshots are %v; they were %v", now, kept)
	}
	if now, err := n.dir.log.FirstIndex(); err != nil || now != first {
		t.Errorf("the log begins with entry %d, %v; it began with %d", now, err, first)
	}
	n.Close()
	c.reopen(0)
	c.awaitLeader()
	if stats, err := n.Stats(t.Context()); err != nil || stats.Held != 20 {
		t.Errorf("after a restart %d names are held, %v; it were 20", stats.Held, err)
	}
}

// What a process that died had begun to write of a snapshot does not stay.
func TestAnUnfinishedSnapshotGoes(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	n.Close()
	path := filepath.Join(n.options.Dir, "snapshots", "2-10-1.tmp")
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "state.bin"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.reopen(0)
	if left := snapshotsOf(t, n); len(left) != 0 {
		t.Errorf("%v is still there", left)
	}
}

// A node that is sent a state which it can't read does not go on, and says so; one whose disk has
// failed to read it may try again.
func TestASnapshotThatIsNotTakenOver(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	whole := encoded(t, n.machine)
	if err := n.machine.Restore(io.NopCloser(iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(whole))))); err == nil {
		t.Fatal("what can't be read was taken over")
	}
	if err := n.Cause(); err != nil {
		t.Fatalf("the node has failed: %v", err)
	}
	if err := n.machine.Restore(io.NopCloser(bytes.NewReader(whole[:len(whole)-1]))); !errors.Is(err, errDamaged) {
		t.Fatalf("a state that is cut off: %v", err)
	}
	awaitFailure(t, n)
	if err := n.Check(t.Context()); code(err) != fencing.CodeUnavailable || !errors.Is(err, errDamaged) {
		t.Errorf("the node is checked: %v", err)
	}
}

// A state of another version ends the node as well.
func TestAStateOfAnotherVersionIsNotTakenOver(t *testing.T) {
	m := testMachine(t)
	var failed error
	m.fail = func(err error) { failed = err }
	var b bytes.Buffer
	w := frameWriter{to: bufio.NewWriter(&b), most: maxFrame}
	head := headOf(m.state, 0, 0)
	head.Version++
	if err := errors.Join(w.write(frameHead, head), w.to.Flush()); err != nil {
		t.Fatal(err)
	}
	if err := m.Restore(io.NopCloser(&b)); !errors.Is(err, errVersion) || !errors.Is(failed, errVersion) {
		t.Errorf("it fails with %v, the node with %v", err, failed)
	}
}

// What was read at the start is not read once more, and counts for that snapshot alone.
func TestTheNewestSnapshotIsReadOnce(t *testing.T) {
	of := heavy(t, 1, 1)
	written := encoded(t, of)
	state, head, err := readState(bytes.NewReader(written))
	if err != nil {
		t.Fatal(err)
	}
	m := testMachine(t)
	m.newest = &restored{state, head}
	if err := m.Restore(io.NopCloser(io.MultiReader(bytes.NewReader(written[:frameHeader+len(must(encoding.Marshal(head)))+1]), iotest.ErrReader(errors.New("read on"))))); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(encoded(t, m), written) {
		t.Error("it is another state")
	}
	e := entry{Term: 1, Now: int64(fencingtest.Epoch), Batches: []batch{{Gateway: "g", Ops: []cbor.RawMessage{encodeOp(acquire("more", time.Hour))}}}}
	of.Apply(&raft.Log{Index: 2, Term: 1, Data: must(e.encode())})
	m.newest = &restored{state, head}
	if err := m.Restore(io.NopCloser(bytes.NewReader(encoded(t, of)))); err != nil {
		t.Fatal(err)
	}
	if len(m.state.Records) != 2 || m.newest != nil {
		t.Errorf("%d names are there, want 2", len(m.state.Records))
	}
}
