package raft

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/snapshots"
	"fencepost/internal/wal"
)

// logFiles is a part of a directory: all files of the log.
const logFiles = "the files of the log"

// newest is a part of a directory that has snapshots: the last of them.
const newest = "the newest snapshot"

// tamper removes a part of a directory, renames it, or puts a copy of it in its place.
func tamper(t *testing.T, dir, part, act string) {
	t.Helper()
	if part == logFiles {
		names, err := filepath.Glob(filepath.Join(dir, disk.LogName, "*.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			tamper(t, filepath.Dir(name), filepath.Base(name), act)
		}
		return
	}
	if part == newest {
		of := snapshots.Look(snapshotsIn(dir), wal.FilesOr(nil))
		name, err := of.Newest()
		if err != nil || name == "" {
			t.Fatal(name, err)
		}
		part = filepath.Join(disk.SnapshotsName, name)
	}
	from, to := filepath.Join(dir, part), filepath.Join(t.TempDir(), "away")
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
	switch info, err := os.Stat(to); {
	case err != nil:
		t.Fatal(err)
	case act == "removed":
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	case act == "copied" && info.IsDir():
		if err := errors.Join(os.MkdirAll(from, 0o700), os.CopyFS(from, os.DirFS(to))); err != nil {
			t.Fatal(err)
		}
	case act == "copied":
		content, err := os.ReadFile(to)
		if err = errors.Join(err, os.WriteFile(from, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever is taken away of the directory of a node, it fails with the next entry or at its end, or has everything at the
// next start, or that is refused.
func TestFilesThatGoAway(t *testing.T) {
	for _, snapshot := range []bool{true, false} {
		for _, when := range []string{"an entry follows", "the end follows", "it is down"} {
			for _, part := range []string{disk.LogName, logFiles, disk.SnapshotsName, newest, disk.BegunFile, datadir.FileName} {
				for _, act := range []string{"removed", "renamed", "copied"} {
					if part == newest && !snapshot && when != "it is down" { // there is none
						continue
					}
					t.Run(fmt.Sprintf("%s %s, %s, snapshot %t", part, act, when, snapshot), func(t *testing.T) {
						c := newCluster(t, 1, func(_ int, o *Options) { o.segment = 64 << 10 })
						n := c.nodes[0]
						if _, err := n.Do(t.Context(), acquire("a", time.Hour)); err != nil {
							t.Fatal(err)
						}
						if snapshot {
							compacted(t, n)
						}
						used := part != disk.BegunFile && part != datadir.FileName
						var err error
						if when == "it is down" {
							err = n.Close()
						}
						if tamper(t, n.options.Dir, part, act); when == "an entry follows" {
							_, err = n.Do(t.Context(), acquire("b", time.Hour))
						}
						if err = errors.Join(err, n.Close(), n.Cause()); (err != nil) != (used && when != "it is down") {
							t.Errorf("it has ended with %v", err)
						}
						if err != nil && !errors.Is(err, datadir.ErrGone) {
							t.Errorf("it has failed with %v", err)
						}
						_, examined := Examine(n.options.Dir)
						had := namesIn(t, n.options.Dir)
						d, err := openAgain(t, n)
						if has := namesIn(t, n.options.Dir); err != nil && has != had {
							t.Errorf("a start that is refused leaves %s where there was %s", has, had)
						}
						if (err == nil) != (examined == nil) {
							t.Errorf("a start says %v, a look %v", err, examined)
						}
						if err != nil {
							if !strings.Contains(err.Error(), n.options.Dir) || !strings.Contains(err.Error(), "gateway restored") {
								t.Errorf("it is refused with %v", err)
							}
							return
						}
						if err := d.close(); err != nil {
							t.Fatal(err)
						}
						c.reopen(0)
						c.awaitLeader()
						if out, err := n.Do(t.Context(), fencing.InspectRequest{Name: "a"}); err != nil || !out.Lock.Held() {
							t.Errorf("what was granted is %+v, %v", out.Lock, err)
						}
					})
				}
			}
		}
	}
}

// namesIn returns what there is in a directory, but for the lock, which a start may make anew.
func namesIn(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, entry := range entries {
		if entry.Name() != datadir.FileName {
			names += entry.Name() + " "
		}
	}
	return names
}

// openAgain opens the files of a node that is closed.
func openAgain(t *testing.T, n *node) (*directory, error) {
	t.Helper()
	o := n.options
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	return openDirectory(&o, func(err error) { t.Error(err) })
}

// overtakenBy leaves a node as it is that was stopped while it took over a snapshot of a leader, which has more entries than
// its log. received is what the snapshot says of that.
func overtakenBy(t *testing.T, received bool, term uint64) (n *node, c *cluster, index uint64) {
	t.Helper()
	c = newCluster(t, 1, nil)
	n = c.nodes[0]
	if _, err := n.Do(t.Context(), acquire("a", time.Hour)); err != nil {
		t.Fatal(err)
	}
	last, err := n.dir.log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	index = last + 100
	n.fsm.reached(index)
	n.fsm.mu.Lock()
	n.fsm.saved = index // it writes none of its own when it stops
	n.fsm.mu.Unlock()
	content := encoded(t, n.fsm)
	members := n.raft.GetConfiguration().Configuration()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	of, err := snapshots.Open(snapshotsIn(n.options.Dir), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer of.Close()
	of.Received = func(uint64, uint64) bool { return received }
	sink, err := of.Create(raft.SnapshotVersionMax, index, term, members, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(sink, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	return n, c, index
}

// A node that was stopped while it took over a snapshot starts, keeps its vote, and goes on behind the snapshot.
func TestStoppedWhileItTookOverASnapshot(t *testing.T) {
	n, c, index := overtakenBy(t, true, 1)
	voted := func() string {
		l, err := wal.Open(logsIn(n.options.Dir), wal.Options{Look: true})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		term, errTerm := l.GetUint64([]byte("CurrentTerm"))
		last, errLast := l.LastIndex()
		return fmt.Sprint(term, errTerm, last, errLast)
	}
	before := voted()
	if found, err := Examine(n.options.Dir); err != nil || !strings.Contains(found[0].Detail, "was stopped while it took over a snapshot") {
		t.Errorf("a look: %v, %v", found, err)
	}
	if after := voted(); after != before {
		t.Errorf("a look has changed %s to %s", before, after)
	}
	d, err := openAgain(t, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if after := voted(); strings.Fields(after)[0] != strings.Fields(before)[0] || !strings.HasSuffix(after, " 0 <nil>") {
		t.Errorf("the log had %s, and has %s", before, after)
	}
	c.reopen(0)
	c.awaitLeader()
	if _, err := n.Do(t.Context(), acquire("b", time.Hour)); err != nil {
		t.Error(err)
	}
	if first, err := n.dir.log.FirstIndex(); err != nil || first != index+1 {
		t.Errorf("the log begins with %d, %v; the snapshot has %d", first, err, index)
	}
}

// A log that ends before a snapshot of the node's own, or whose vote is older than a snapshot, has lost something.
func TestALogThatEndsEarlyIsRefused(t *testing.T) {
	for what, c := range map[string]struct {
		received bool
		term     uint64
		says     string
	}{
		"its own snapshot": {false, 1, "ends with entry"},
		"an older vote":    {true, 1000, "the log is older"},
	} {
		n, _, _ := overtakenBy(t, c.received, c.term)
		if _, err := Examine(n.options.Dir); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: a look: %v", what, err)
		}
		d, err := openAgain(t, n)
		if err == nil {
			t.Errorf("%s: it starts: %v", what, d.close())
		} else if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What can't be read of the newest snapshot a look says as a start does, and changes nothing.
func TestALookReadsTheSnapshot(t *testing.T) {
	n := newCluster(t, 1, nil).nodes[0]
	if _, err := n.Do(t.Context(), acquire("a", time.Hour)); err != nil {
		t.Fatal(err)
	}
	compacted(t, n)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if found, err := Examine(n.options.Dir); err != nil || !strings.Contains(found[0].Detail, "has the data of a node") {
		t.Errorf("before: %v, %v", found, err)
	}
	all := snapshotsOf(t, n) // the last one is of its end
	path := filepath.Join(snapshotsIn(n.options.Dir), all[len(all)-1])
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)-3] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, examined := Examine(n.options.Dir)
	d, err := openAgain(t, n)
	if err == nil {
		d.close()
	}
	for what, err := range map[string]error{"a look": examined, "a start": err} {
		if err == nil || !strings.Contains(err.Error(), path) || !errors.Is(err, machine.ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A node marks that it has begun before its first entry is known to anybody, and says at each start where its data are.
func TestTheFirstEntryIsMarked(t *testing.T) {
	var said strings.Builder
	c := newCluster(t, 1, func(_ int, o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	n := c.nodes[0]
	if _, err := os.Stat(filepath.Join(n.options.Dir, disk.BegunFile)); err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "level=WARN msg=\"there is no data in the directory of this node: it starts as a new node\" directory="+n.options.Dir) {
		t.Errorf("the first start says %s", said.String())
	}
	said.Reset()
	c.reopen(0)
	c.awaitLeader()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"the data of this node is open\" directory=" + n.options.Dir, "torn_bytes=0", "this node leads the cluster", " locks=0"} {
		if !strings.Contains(said.String(), text) {
			t.Errorf("the second start says %s", said.String())
		}
	}
}
