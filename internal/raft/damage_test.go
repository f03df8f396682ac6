package raft

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/iotest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// snapshotsOf returns the names of the snapshots of a node.
func snapshotsOf(t *testing.T, n *node) (names []string) {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(n.options.Dir, "snapshots"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // an end removes it where it was made and is empty
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
		if _, err := n.Do(t.Context(), acquire(fencing.Name(fmt.Sprint("n", i)), time.Hour)); err != nil {
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
	n.fsm.check = func(from io.Reader) error {
		b, err := io.ReadAll(from)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		return machine.Check(bytes.NewReader(b))
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
	if err := os.WriteFile(filepath.Join(n.options.Dir, "snapshots", "2-10.snapshot.new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.reopen(0)
	if left := snapshotsOf(t, n); slices.Contains(left, "2-10.snapshot.new") {
		t.Errorf("%v is still there", left)
	}
}

// A node that is sent a state which it can't read does not go on, and says so; one whose disk has
// failed to read it may try again.
func TestASnapshotThatIsNotTakenOver(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	whole := encoded(t, n.fsm)
	if err := n.fsm.Restore(io.NopCloser(iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(whole))))); err == nil {
		t.Fatal("what can't be read was taken over")
	}
	if err := n.Cause(); err != nil {
		t.Fatalf("the node has failed: %v", err)
	}
	if err := n.fsm.Restore(io.NopCloser(bytes.NewReader(whole[:len(whole)-1]))); !errors.Is(err, machine.ErrDamaged) {
		t.Fatalf("a state that is cut off: %v", err)
	}
	awaitFailure(t, n)
	if err := n.Check(t.Context()); code(err) != fencing.CodeUnavailable || !errors.Is(err, machine.ErrDamaged) {
		t.Errorf("the node is checked: %v", err)
	}
}

// What was read at the start is taken over as it is.
func TestTheNewestSnapshotIsReadOnce(t *testing.T) {
	m := testFSM(t)
	m.Apply(entryOf(1, "a"))
	written := encoded(t, m)
	var err error
	if m.newest, err = machine.Read(bytes.NewReader(written)); err != nil {
		t.Fatal(err)
	}
	if err := m.Restore(io.NopCloser(io.MultiReader(bytes.NewReader(written[:len(written)-1])))); err != nil {
		t.Errorf("the state was read once more: %v", err)
	}
	if m.newest != nil || !bytes.Equal(encoded(t, m), written) {
		t.Error("it is another state")
	}
}
