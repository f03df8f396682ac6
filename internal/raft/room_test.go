package raft

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// A new node is refused where it would soon have no room. One that has data is started with what there is.
func TestTheRoomForANewNode(t *testing.T) {
	const need = newNode * segmentSize
	free := int64(need)
	c := newCluster(t, 1, func(_ int, o *Options) {
		o.free, o.segment = func(string) (int64, bool) { return free, true }, 0
	})
	n := c.nodes[0]
	n.Close()
	free = 0
	c.reopen(0)
	n.Close()
	o := n.options
	o.Dir, o.Network = t.TempDir(), &hubNetwork{listen(t, o.Self.Address), c.hub, o.Self.Address}
	free = need - 1
	s, err := Open(o)
	if err == nil {
		s.Close()
		t.Fatal("a new node begins with less room than it needs")
	}
	for _, text := range []string{fmt.Sprintf("a new node needs %d.0 MiB", need>>20), fmt.Sprintf("has %d.9 MiB free", need>>20-1), o.Dir} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is not in it: %v", text, err)
		}
	}
}

func TestTheRoomForANewNodeIsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	column := ""
	for _, row := range regexp.MustCompile(`(?m)^\| [^|]+ \| [^|]+ \| ([^|]+) \| [^|]*\|$`).FindAllStringSubmatch(string(page), -1) {
		column += row[1] + "\n"
	}
	for _, said := range []string{
		"a node of a cluster\n",
		fmt.Sprintf("\n%d MiB\n", segmentSize>>20),
		fmt.Sprintf("\n%d MiB, %d,%03d entries and two files\n", grownBytes>>20, trailingLogs/1000, trailingLogs%1000),
		fmt.Sprintf("\n%d MiB free\n", newNode*segmentSize>>20),
	} {
		if !strings.Contains(column, said) {
			t.Errorf("docs/reference.md does not say %q of a node:\n%s", said, column)
		}
	}
}

// While a node runs it tells how much room is left beside its newest snapshot.
func TestTheRoomIsExamined(t *testing.T) {
	free := int64(1 << 40)
	n := newCluster(t, 1, func(_ int, o *Options) {
		o.free, o.segment = func(string) (int64, bool) { return free, true }, 0
	}).nodes[0]
	space := func() fencing.Finding {
		t.Helper()
		found, err := n.Examine(t.Context())
		if err != nil || len(found) != 1 || found[0].Check != "space" {
			t.Fatalf("it finds %+v, %v", found, err)
		}
		return found[0]
	}
	if f := space(); !f.OK {
		t.Errorf("there is much room: %+v", f)
	}
	if _, err := n.Do(t.Context(), acquire("a", time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(snapshotsIn(n.options.Dir), snapshotsOf(t, n)[0])
	if err := os.Truncate(at, 300<<20); err != nil { // as large as of many names
		t.Fatal(err)
	}
	free = 599 << 20
	if f := space(); f.OK || !strings.Contains(f.Detail, "599 MiB are free, and the newest snapshot takes 300") || !strings.Contains(f.Remedy, "at least 600 MiB") {
		t.Errorf("there is little room: %+v", f)
	}
	free = 600 << 20
	if f := space(); !f.OK {
		t.Errorf("there is room for two: %+v", f)
	}
}

// A look from outside says whether a gateway has the directory, and makes nothing there.
func TestExamineADirectory(t *testing.T) {
	about := func(dir, says string) {
		t.Helper()
		found, err := Examine(dir)
		if err != nil || len(found) == 0 || found[0].Check != "directory" || !strings.Contains(found[0].Detail, says) {
			t.Errorf("not %q, but %+v, %v", says, found, err)
		}
	}
	dir := t.TempDir()
	about(dir, "no data yet")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("there is %v, %v", left, err)
	}
	if found, err := Examine(filepath.Join(dir, "none")); err != nil || found != nil {
		t.Errorf("where there is none it finds %+v, %v", found, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := Examine(file); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("of a file: %+v, %v", found, err)
	}
	n := newCluster(t, 1, nil).nodes[0]
	for range 2 {
		about(n.options.Dir, "in use by a gateway")
	}
	n.Close()
	for range 2 {
		about(n.options.Dir, "has the data of a node")
	}
}
