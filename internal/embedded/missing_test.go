package embedded

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/wal/waltest"
)

// twice returns what a store leaves that ended cleanly and was opened again, and whether it then was killed.
func twice(t *testing.T, dir string, clean bool) map[string][]byte {
	t.Helper()
	files := waltest.New(nil)
	for life := range 2 {
		s := open(t, Options{Dir: dir, Now: newTestClock().read, files: files, segment: smallSegment})
		for i := range 5 {
			mustAcquire(t, s, acquire(fencing.Name(fmt.Sprintf("n%d%d", life, i)), time.Hour))
		}
		if killed := files.Content(); life == 1 && !clean {
			return killed
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return files.Content()
}

// isRefused starts and examines a store that has lost files, and checks that both refuse it with all of some texts, and
// change nothing.
func isRefused(t *testing.T, o Options, left map[string][]byte, texts ...string) {
	t.Helper()
	dir := t.TempDir()
	writeFiles(t, dir, waltest.Moved(left, o.Dir+"/", ""))
	at := o
	at.Dir, at.files = dir, nil
	had := directoriesIn(t, dir)
	_, examined := Examine(dir)
	s, opened := Open(at)
	if opened == nil {
		s.Close()
	}
	for what, err := range map[string]error{"a look": examined, "a start": opened} {
		for _, text := range texts {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: no %q in: %v", what, text, err)
			}
		}
	}
	is, was := contentOf(t, dir), waltest.Moved(left, o.Dir+"/", "")
	was["fencepost.lock"] = []byte{}
	if !maps.EqualFunc(is, was, bytes.Equal) {
		t.Errorf("there is %q now, and was %q", slices.Sorted(maps.Keys(is)), slices.Sorted(maps.Keys(was)))
	}
	if has := directoriesIn(t, dir); !slices.Equal(has, had) {
		t.Errorf("there are the directories %q now, and were %q", has, had)
	}
}

// directoriesIn returns the names of the directories in one.
func directoriesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names
}

// What is missing is not taken for nothing: neither the snapshot that the log builds on, however the store ended, nor
// the log behind a snapshot.
func TestWhatIsMissingIsRefused(t *testing.T) {
	for _, clean := range []bool{true, false} {
		o := Options{Dir: t.TempDir()}
		left := twice(t, o.Dir, clean)
		newest := ""
		for path := range left {
			if filepath.Base(filepath.Dir(path)) == disk.SnapshotsName {
				newest = max(newest, path)
			}
		}
		without := func(gone func(path string) bool) map[string][]byte {
			some := maps.Clone(left)
			maps.DeleteFunc(some, func(path string, _ []byte) bool { return gone(path) })
			return some
		}
		below := func(dir string) func(path string) bool {
			return func(path string) bool { return filepath.Base(filepath.Dir(path)) == dir }
		}
		isRefused(t, o, without(func(path string) bool { return path == newest }), "are missing", remedy)
		isRefused(t, o, without(below(disk.SnapshotsName)), "entries 1 to ", "are missing", remedy)
		isRefused(t, o, without(below(disk.LogName)), disk.LogName, filepath.Base(newest), remedy)
	}
}

// A log of another store is not taken for what follows a snapshot.
func TestTheLogOfAnotherStoreIsRefused(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	left := twice(t, o.Dir, true)
	files, dir := waltest.New(nil), t.TempDir()
	other := open(t, Options{Dir: dir, files: files, segment: smallSegment})
	mustAcquire(t, other, acquire("a", time.Hour))
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	isLog := func(path string, _ []byte) bool { return filepath.Base(filepath.Dir(path)) == disk.LogName }
	maps.DeleteFunc(left, isLog)
	for path, content := range waltest.Moved(files.Content(), dir, o.Dir) {
		if isLog(path, nil) {
			left[path] = content
		}
	}
	isRefused(t, o, left, disk.LogName, "ends with entry 3", remedy)
}

// Nor is a snapshot of another store taken, though the log has as many entries as it says: that would have the leases of the other one.
func TestTheSnapshotOfAnotherStoreIsRefused(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	for _, clean := range []bool{true, false} {
		left := twice(t, o.Dir, clean)
		dir := t.TempDir()
		other := waltest.Moved(twice(t, dir, true), dir, o.Dir)
		isSnapshot := func(path string, _ []byte) bool { return filepath.Base(filepath.Dir(path)) == disk.SnapshotsName }
		maps.DeleteFunc(left, isSnapshot)
		for path, content := range other {
			if isSnapshot(path, nil) {
				left[path] = content
			}
		}
		isRefused(t, o, left, "do not belong together", "of another store", remedy)
	}
}
