package raft

import (
	"os"
	"strings"
	"testing"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/fencing"
)

// A node whose directory was replaced writes nothing more, says so, and leaves alone what is
// there now.
func TestTheDirectoryIsReplaced(t *testing.T) {
	for what, do := range map[string]func(n *node) error{
		"an entry": func(n *node) error {
			_, err := n.Do(t.Context(), acquire("b", time.Minute))
			if code(err) != fencing.CodeUnavailable {
				t.Errorf("an acquire: %v", err)
			}
			return err
		},
		"a snapshot": func(n *node) error { return n.raft.Snapshot().Error() },
	} {
		t.Run(what, func(t *testing.T) {
			n := newCluster(t, 1, nil).nodes[0]
			if _, err := n.Do(t.Context(), acquire("a", time.Minute)); err != nil {
				t.Fatal(err)
			}
			dir := n.options.Dir
			if err := os.Rename(dir, dir+".old"); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			lock, err := datadir.Take(dir, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			err = do(n)
			awaitFailure(t, n)
			for _, err := range []error{err, n.Cause()} {
				if err == nil || !strings.Contains(err.Error(), dir+" was replaced") {
					t.Errorf("it says %v", err)
				}
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != datadir.FileName {
				t.Errorf("there is %v, %v", left, err)
			}
		})
	}
}

// Who removes the file of the lock unlocks nothing.
func TestASecondProcessIsRefused(t *testing.T) {
	n := newCluster(t, 1, nil).nodes[0]
	if err := os.Remove(n.options.Dir + "/" + datadir.FileName); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(n.options); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("opening a directory twice: %v", err)
		s.Close()
	}
	if _, err := n.Do(t.Context(), acquire("a", time.Minute)); err != nil {
		t.Error(err)
	}
}
