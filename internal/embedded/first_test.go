package embedded

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/disk"
	"fencepost/internal/wal"
)

// above is the files of the system, but for directories that may not be read, and tells which
// were synced.
type above struct {
	wal.Files
	closed []string

	mu     sync.Mutex
	synced []string
}

func (f *above) SyncDir(path string) error {
	if slices.Contains(f.closed, path) {
		return &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
	}
	f.mu.Lock()
	f.synced = append(f.synced, path)
	f.mu.Unlock()
	return f.Files.SyncDir(path)
}

// A directory that is there may be below one that may only be searched.
func TestDirectoryBelowOneThatMayNotBeRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Dir: dir, files: &above{Files: wal.FilesOr(nil), closed: []string{filepath.Dir(dir)}}})
	mustAcquire(t, s, acquire("a", time.Minute))
}

// Each name of a directory that a first start makes is on disk before anything in it.
func TestFirstStartSyncsTheNamesItMakes(t *testing.T) {
	there := t.TempDir()
	a := filepath.Join(there, "a")
	b := filepath.Join(a, "b")
	files := &above{Files: wal.FilesOr(nil)}
	open(t, Options{Dir: filepath.Join(b, "data"), files: files})
	files.mu.Lock()
	defer files.mu.Unlock()
	for _, dir := range []string{there, a, b, filepath.Join(b, "data"), filepath.Join(b, "data", disk.LogName)} {
		if !slices.Contains(files.synced, dir) {
			t.Errorf("%s was not synced", dir)
		}
	}
}

// A first start that was killed before the names in the directory were on disk is followed by one that has them there before
// anything is granted. It says that the store is new, and the one after it does not.
func TestTheSecondStartSyncsTheNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{disk.LogName, disk.SnapshotsName} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	files := &above{Files: wal.FilesOr(nil)}
	for life, isNew := range []bool{true, false} {
		var said strings.Builder
		files.synced = nil
		s, err := Open(Options{Dir: dir, files: files, Logger: slog.New(slog.NewTextHandler(&said, nil))})
		if err != nil {
			t.Fatal(err)
		}
		files.mu.Lock()
		if !slices.Contains(files.synced, dir) {
			t.Errorf("start %d: the names in the directory were not synced: %v", life, files.synced)
		}
		files.mu.Unlock()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if warns := strings.Contains(said.String(), "level=WARN msg=\"a new, empty store was made"); warns != isNew {
			t.Errorf("start %d says %s", life, said.String())
		}
		if !strings.Contains(said.String(), "the store is open\" directory="+dir+" locks=0 entry=") {
			t.Errorf("start %d says %s", life, said.String())
		}
	}
}

// Where a store is expected none is begun, and nothing is made.
func TestAStoreIsExpected(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "typo", "data")
	if _, err := Open(Options{Dir: dir, Expect: true}); err == nil || !strings.Contains(err.Error(), "there is no store in "+dir) {
		t.Errorf("it is begun: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
	s := open(t, Options{Dir: dir})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, Options{Dir: dir, Expect: true})
}
