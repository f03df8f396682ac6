package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/fencing"
)

// tampering is what somebody does to a data directory: to a part of it, or to all that is in it.
type tampering struct{ part, act string }

const (
	all      = "all"
	log1     = "the log's file"
	newest   = "the newest snapshot"
	removed  = "removed"
	renamed  = "renamed"
	copied   = "replaced by a copy of itself"
	outdated = "replaced by an older copy"
)

// tamperings are each part of a data directory, and each act.
func tamperings() (each []tampering) {
	for _, part := range []string{all, disk.LogName, disk.SnapshotsName, newest, log1, disk.BegunFile, datadir.FileName} {
		for _, act := range []string{removed, renamed, copied, outdated} {
			each = append(each, tampering{part, act})
		}
	}
	return each
}

// do does it to dir, of which there is an older copy.
func (of tampering) do(t *testing.T, dir, older string) {
	t.Helper()
	parts := []string{of.part}
	switch of.part {
	case all:
		parts = nil
		for name := range contentOf(t, dir) {
			parts = append(parts, strings.Split(name, "/")[0])
		}
		slices.Sort(parts)
		parts = slices.Compact(parts)
	case newest:
		names, err := filepath.Glob(filepath.Join(dir, disk.SnapshotsName, "*.snapshot"))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		parts = []string{filepath.Join(disk.SnapshotsName, filepath.Base(names[len(names)-1]))}
	case log1:
		names, err := filepath.Glob(filepath.Join(dir, disk.LogName, "*.log"))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		parts = nil
		for _, name := range names {
			parts = append(parts, filepath.Join(disk.LogName, filepath.Base(name)))
		}
	}
	away := t.TempDir()
	for _, part := range parts {
		from, to := filepath.Join(dir, part), filepath.Join(away, part)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.Rename(from, to)); err != nil {
			t.Fatal(err)
		}
		source := to
		if of.act == outdated {
			source = filepath.Join(older, part)
		}
		if _, err := os.Stat(source); err == nil && (of.act == copied || of.act == outdated) {
			copyTree(t, source, from)
		}
		if of.act == removed {
			os.RemoveAll(to)
		}
	}
}

// copyTree copies a file, or a directory and what is below it, in which a store may make the next file of its log: the first
// name of that may be gone when it is to be opened.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if info, err := os.Stat(from); err != nil {
		t.Fatal(err)
	} else if info.IsDir() {
		err := fs.ErrNotExist
		for errors.Is(err, fs.ErrNotExist) {
			err = errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o700), os.CopyFS(to, os.DirFS(from)))
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	content, err := os.ReadFile(from)
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, content, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// keeper acquires names for an hour each.
type keeper struct {
	*Store
	held []fencing.Name
}

func (k *keeper) acquire(n int) error {
	for range n {
		name := fencing.Name(fmt.Sprintf("n%d", len(k.held)))
		if _, err := k.Do(context.Background(), acquire(name, time.Hour)); err != nil {
			return err
		}
		k.held = append(k.held, name)
	}
	return nil
}

// Whatever is taken away, renamed or replaced of a data directory, the next grant or the end says so and changes nothing
// there, or all that was granted is there at the next start, or that is refused. Only of a directory in which nothing is left
// nobody can tell.
func TestFilesThatGoAway(t *testing.T) {
	for _, clean := range []bool{true, false} {
		for _, when := range []string{"running, and a grant follows", "running, and the end follows", "down", "killed"} {
			for _, of := range tamperings() {
				if of.part == newest && !clean && when != "down" { // there is none
					continue
				}
				t.Run(fmt.Sprintf("%s %s, %s, snapshot %t", of.part, of.act, when, clean), func(t *testing.T) {
					goneOnce(t, of, when, clean)
				})
			}
		}
	}
}

func goneOnce(t *testing.T, of tampering, when string, clean bool) {
	dir, older := filepath.Join(t.TempDir(), "data"), t.TempDir()
	o := Options{Dir: dir, segment: smallSegment}
	k := &keeper{}
	reopen := func() (err error) {
		k.Store, err = Open(o)
		return err
	}
	if err := errors.Join(reopen(), k.acquire(3)); err != nil {
		t.Fatal(err)
	}
	if clean { // so there is a snapshot, and the log begins behind it
		if err := errors.Join(k.Close(), reopen(), k.acquire(1)); err != nil {
			t.Fatal(err)
		}
	}
	copyTree(t, dir, older)
	known := len(k.held)
	if err := k.acquire(3); err != nil {
		t.Fatal(err)
	}
	stopped := false
	switch when {
	case "down":
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		of.do(t, dir, older)
	case "killed": // what it leaves is moved, as its locks don't end
		left := filepath.Join(t.TempDir(), "data")
		copyTree(t, dir, left)
		defer k.Close()
		o.Dir, dir = left, left
		of.do(t, dir, older)
	default:
		of.do(t, dir, older)
		there := contentOf(t, dir)
		var err error
		if strings.Contains(when, "grant") {
			err = k.acquire(1)
		}
		err = errors.Join(err, k.Close(), k.Cause())
		if stopped = err != nil; stopped && !errors.Is(err, datadir.ErrGone) {
			t.Errorf("it ends with: %v", err)
		}
		is := contentOf(t, dir)
		if of.part == disk.SnapshotsName || of.part == newest { // the log is still what was opened
			for _, files := range []map[string][]byte{is, there} {
				maps.DeleteFunc(files, func(path string, _ []byte) bool { return strings.HasPrefix(path, disk.LogName) })
			}
		}
		if stopped && !maps.EqualFunc(is, there, bytes.Equal) {
			t.Errorf("there is %q now, and was %q", slices.Sorted(maps.Keys(is)), slices.Sorted(maps.Keys(there)))
		}
		if used := of.part != disk.BegunFile && of.part != datadir.FileName; used != stopped {
			t.Errorf("it has stopped: %t", stopped)
		}
	}
	_, examined := Examine(dir)
	err := reopen()
	if (err == nil) != (examined == nil) {
		t.Errorf("a start says %v, a look %v", err, examined)
	}
	if err != nil {
		if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), remedy) {
			t.Errorf("it is refused with: %v", err)
		}
		return
	}
	defer k.Close()
	switch is := of.part == all || of.part == disk.LogName || of.part == log1; {
	case of.part == all && of.act != copied && of.act != outdated:
		known = 0
	case !is || of.act != outdated: // else it is as of that time: see Restored
		known = len(k.held)
	}
	for _, name := range k.held[:known] {
		if out, err := k.Do(t.Context(), fencing.InspectRequest{Name: name}); err != nil || !out.Lock.Held() {
			t.Errorf("%s is free: %v; the start should have been refused, or have it", name, err)
		}
	}
}
