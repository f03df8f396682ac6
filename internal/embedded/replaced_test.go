package embedded

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/wal"
)

// contentOf returns the files in a directory and those below it, by where they are in it. Nobody is to write entries meanwhile;
// a file of the log may be made.
func contentOf(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	for {
		files, err := readAll(dir)
		if err == nil {
			return files
		}
		if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func readAll(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	return files, fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files[path], err = os.ReadFile(filepath.Join(dir, path))
		}
		return err
	})
}

func writeFiles(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Error(err)
		}
	}
}

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
	copied := t.TempDir()
	writeFiles(t, copied, contentOf(t, dir))
	after := open(t, Options{Dir: copied})
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
			if err == nil || !strings.Contains(err.Error(), dir+" was replaced") && !strings.Contains(err.Error(), dir+" was moved") {
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

// syncing is the files of the system, and has something be done before a file with some ending is synced.
type syncing struct {
	wal.Files
	suffix string
	before func()
}

func (s syncing) Create(path string) (wal.File, error) {
	f, err := s.Files.Create(path)
	if err == nil && strings.HasSuffix(path, s.suffix) {
		f = syncedFile{f, s.before}
	}
	return f, err
}

type syncedFile struct {
	wal.File
	before func()
}

func (f syncedFile) Sync() error {
	f.before()
	return f.File.Sync()
}

// Nothing is made, renamed or removed where the directory was, whether a snapshot is about to begin or is being written,
// or a file of the log is.
func TestNothingIsChangedInAnotherDirectory(t *testing.T) {
	for moment, armed := range map[string]func(o *Options, once func()){
		"a snapshot begins": func(o *Options, once func()) { o.afterFlush = once },
		"a snapshot ends":   func(o *Options, once func()) { o.files = syncing{wal.FilesOr(nil), ".snapshot.new", once} },
		"a file of the log": func(o *Options, once func()) {
			o.snapshotAt = 0 // nothing else is under way
			o.files = syncing{wal.FilesOr(nil), ".log.new", once}
		},
	} {
		t.Run(moment, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			var there map[string][]byte
			opened := false
			once := sync.OnceFunc(func() { there = another(t, dir) })
			o := Options{Dir: dir, segment: smallSegment, snapshotAt: 1}
			var mu sync.Mutex
			armed(&o, func() {
				mu.Lock()
				defer mu.Unlock()
				if opened {
					once()
				}
			})
			s, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the second file of the log", func() bool {
				_, err := os.Stat(filepath.Join(dir, disk.LogName, "0000000002.log"))
				return err == nil
			})
			mu.Lock()
			opened = true
			mu.Unlock()
			for err == nil {
				_, err = s.Do(t.Context(), acquire("a", time.Hour))
				if code(err) == fencing.CodeLocked {
					_, err = s.Do(t.Context(), acquire(fencing.Name(fencing.NewStamp()), time.Hour))
				}
			}
			if s.Close(); s.Cause() == nil {
				t.Error("it goes on where the directory is another's")
			}
			if is := contentOf(t, dir); !maps.EqualFunc(is, there, bytes.Equal) {
				t.Errorf("there is %q, and was %q", slices.Sorted(maps.Keys(is)), slices.Sorted(maps.Keys(there)))
			}
		})
	}
}

// another moves a directory away and makes one with files of the same names, and others that one may be about to make.
func another(t *testing.T, dir string) (there map[string][]byte) {
	t.Helper()
	there = map[string][]byte{}
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Error(err)
	}
	for name := range contentOf(t, dir+".old") {
		for _, name := range []string{name, name + ".new"} {
			there[strings.Replace(name, ".new.new", "", 1)] = []byte("another's")
		}
	}
	writeFiles(t, dir, there)
	return there
}
