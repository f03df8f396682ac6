package raft

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"fencepost/internal/datadir"
)

// first opens the files of a node that begins in a directory.
func first(t *testing.T, dir string, sync func(string) error) (*directory, error) {
	t.Helper()
	o := Options{
		Dir: dir, Self: Member{ID: "n1", Address: "127.0.0.1:1"}, Network: &hubNetwork{}, Calls: &hubCalls{}, segment: 1 << 20, sync: sync,
	}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	return openDirectory(&o, func(err error) { t.Errorf("the node has failed: %v", err) })
}

// Each name of a directory that a first start makes is on disk.
func TestFirstStartSyncsTheNamesItMakes(t *testing.T) {
	there := t.TempDir()
	a := filepath.Join(there, "a")
	dir := filepath.Join(a, "data")
	var synced []string
	d, err := first(t, dir, func(dir string) error {
		synced = append(synced, dir)
		return datadir.Sync(dir)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
	made := map[string]int{there: 1, a: 1, dir: 2} // the last one has the log and the snapshots
	for _, at := range synced {
		made[at]--
	}
	for at, left := range made {
		if left > 0 {
			t.Errorf("%s was to be synced %d times more: %v", at, left, synced)
		}
	}
}

// A directory that was there may have been made by a start that was killed before its name was on disk. Who may not read
// the directory above has not made it.
func TestFirstStartInADirectoryThatIsThere(t *testing.T) {
	for _, refused := range []error{nil, fs.ErrPermission} {
		dir := t.TempDir()
		var synced []string
		d, err := first(t, dir, func(at string) error {
			synced = append(synced, at)
			if at == filepath.Dir(dir) && refused != nil {
				return refused
			}
			return datadir.Sync(at)
		})
		if err != nil {
			t.Fatalf("syncing the directory above ends with %v: %v", refused, err)
		}
		if err := d.close(); err != nil {
			t.Error(err)
		}
		if !slices.Contains(synced, filepath.Dir(dir)) {
			t.Errorf("its name was not synced: %v", synced)
		}
	}
}

// What the file system refuses is told with the directory and what to change.
func TestRefusalsOfTheFileSystem(t *testing.T) {
	at := t.TempDir()
	file := filepath.Join(at, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, says := range map[string]string{
		file:                        "is not a directory; move it away",
		filepath.Join(file, "data"): "is not a directory; move it away",
		"/proc/fencepost-data":      "FENCEPOST_DATA_DIR",
	} {
		o := Options{Dir: dir, Self: Member{ID: "n1", Address: "127.0.0.1:1"}, Network: &hubNetwork{}, Calls: &hubCalls{}}
		s, err := Open(o)
		if err == nil {
			s.Close()
			t.Fatalf("%s: it is opened", dir)
		}
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	for _, refusal := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS} {
		o := Options{
			Dir: filepath.Join(at, "data"), Self: Member{ID: "n1", Address: "127.0.0.1:1"}, Network: &hubNetwork{}, Calls: &hubCalls{},
			sync: func(dir string) error {
				if dir == filepath.Join(at, "data") { // of the names in it
					return &fs.PathError{Op: "sync", Path: dir, Err: refusal}
				}
				return nil
			},
		}
		s, err := Open(o)
		if err == nil {
			s.Close()
			t.Fatalf("%v: it is opened", refusal)
		}
		if !errors.Is(err, refusal) || !strings.Contains(err.Error(), "FENCEPOST_DATA_DIR") || !strings.Contains(err.Error(), o.Dir) {
			t.Errorf("%v: %v", refusal, err)
		}
	}
}
