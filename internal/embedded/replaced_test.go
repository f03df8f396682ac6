package embedded

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/fencing"
)

// replaced opens a store whose directory is moved away and one of the same name made in its
// place, with a store of its own.
func replaced(t *testing.T) (first, second *Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	first, err := Open(Options{Dir: dir, segment: smallSegment})
	if err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, first, acquire("a", time.Hour))
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	second = open(t, Options{Dir: dir, segment: smallSegment})
	mustAcquire(t, second, acquire("b", time.Hour))
	return first, second, dir
}

// keepsAfterCrash reports whether what the store in dir has granted is there after a crash.
func keepsAfterCrash(t *testing.T, dir string, names ...fencing.Name) {
	t.Helper()
	after := open(t, Options{Dir: writeFiles(t, readFiles(t, dir))})
	for _, name := range names {
		out, err := after.Do(t.Context(), fencing.InspectRequest{Name: name})
		if err != nil || !out.Lock.Held() {
			t.Errorf("%s was granted, and is %+v, %v", name, out.Lock, err)
		}
	}
}

// A store whose directory was replaced grants nothing more, says so, and leaves alone what is
// there now: that may be another gateway's.
func TestTheDirectoryIsReplaced(t *testing.T) {
	says := func(t *testing.T, s *Store, dir string, err error) {
		t.Helper()
		for _, err := range []error{err, s.Cause()} {
			if err == nil || !strings.Contains(err.Error(), dir+" was replaced") {
				t.Errorf("it says %v", err)
			}
		}
	}
	t.Run("it is asked", func(t *testing.T) {
		first, second, dir := replaced(t)
		_, err := first.Do(t.Context(), acquire("b", time.Hour))
		if code(err) != fencing.CodeUnavailable {
			t.Errorf("a lock that the other store has granted: %v", err)
		}
		says(t, first, dir, err)
		first.Close()
		mustAcquire(t, second, acquire("c", time.Hour))
		keepsAfterCrash(t, dir, "b", "c")
		keepsAfterCrash(t, dir+".old", "a")
	})
	t.Run("it is closed", func(t *testing.T) {
		first, second, dir := replaced(t)
		says(t, first, dir, first.Close())
		mustAcquire(t, second, acquire("c", time.Hour))
		keepsAfterCrash(t, dir, "b", "c")
		keepsAfterCrash(t, dir+".old", "a")
	})
}

// Nothing is made, renamed or removed where the directory was.
func TestNothingIsChangedInAnotherDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := datadir.Take(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const there = "there"
	path := filepath.Join(dir, there)
	if err := os.WriteFile(path, []byte(there), 0o600); err != nil {
		t.Fatal(err)
	}
	files := locked{system{}, lock}
	for what, do := range map[string]func() error{
		"create":     func() error { _, err := files.create(path); return err },
		"openSynced": func() error { _, err := files.openSynced(path); return err },
		"rename":     func() error { return files.rename(path, path+newSuffix) },
		"remove":     func() error { return files.remove(path) },
	} {
		if err := do(); err == nil {
			t.Errorf("%s is done", what)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || !slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() == there }) || len(left) != 1 {
		t.Errorf("there is %v, %v", left, err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != there {
		t.Errorf("it has %q, %v", content, err)
	}
}
