package embedded

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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
