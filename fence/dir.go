package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Dir guards the files below a directory, for all processes of this machine that write them by a Dir, or by the shell
// function write_fenced of docs/storage: both keep one mark, and one lock. A resource is the path of a file below the
// directory, with slashes; none of its parts begins with a dot, since beside each file lie the guard's own: .NAME.fence,
// the mark, and .NAME.fence-lock, which is locked (flock) from the look at the mark until the write is done. Both must
// be left alone: who deletes the mark admits what is stale, and who deletes the locked file lets two write at once. What
// a crash leaves of .NAME.fence-new is removed by the next write.
//
// The lock is held while the process is stopped, so that nobody comes between its check
// and its write; others wait as long, or until their context ends. It ends with the process.
//
// Processes of several users need a directory that all of them may write to, best one whose
// set-group-ID bit gives its group to new files, and a umask that lets the others read.
//
// It is for a file system of this machine. Over a network (NFS, SMB) a file lock may be
// lost without a word, and the guard with it.
type Dir struct {
	root *os.Root
	sync func(*os.File) error // File.Sync, but for tests
}

var _ Guard = (*Dir)(nil)

// OpenDir returns a guard for the files below a directory, which must exist. Paths that
// lead out of it, by symbolic links too, are refused. Systems without flock, such as
// Windows, get errors.ErrUnsupported.
func OpenDir(name string) (*Dir, error) {
	if !canLock {
		return nil, fmt.Errorf("fence: locking files: %w on this system", errors.ErrUnsupported)
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return &Dir{root, (*os.File).Sync}, nil
}

// Close closes the directory. Nothing must be under way.
func (d *Dir) Close() error { return d.root.Close() }

// Do is that of [Guard], for what WriteFile does not do: appending, deleting, several
// files that belong together. The mark is on disk before write runs, also after a call that
// failed once the mark was there; what write does is
// as durable as write makes it. A write must not call Do or WriteFile for the same resource.
func (d *Dir) Do(ctx context.Context, resource string, token int64, slot int, write func() error) error {
	if err := checkFile(resource); err != nil {
		return err
	}
	if err := checkToken(token, slot); err != nil { // before a file is made
		return err
	}
	lock, err := d.root.OpenFile(beside(resource, ".fence-lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if errors.Is(err, fs.ErrPermission) { // it is another user's; to lock it, reading is enough
		lock, err = d.root.Open(beside(resource, ".fence-lock"))
	}
	if err != nil {
		return err
	}
	defer lock.Close() // which unlocks it
	if err := await(ctx, lock); err != nil {
		return err
	}
	if err := d.checkEarlier(resource); err != nil {
		return err
	}
	var mark Mark
	if err := d.read(resource, &mark); err != nil {
		return err
	}
	raised, err := mark.admit(token, slot)
	if err != nil {
		return err
	}
	if raised {
		var text []byte
		if text, err = json.Marshal(mark); err != nil {
			return err
		}
		err = d.replace(resource, beside(resource, ".fence"), text)
	} else {
		err = d.syncDir(resource) // the mark was renamed before, perhaps by a call that failed right after
	}
	if err != nil {
		return fmt.Errorf("keeping the fencing token: %w", err)
	}
	return write()
}

// WriteFile puts data in place of the file's content, whole or not at all, and returns
// when both it and the token are on disk. Whoever reads sees the old content or the new one.
// The directory of the file must exist; an existing file keeps its mode.
func (d *Dir) WriteFile(ctx context.Context, resource string, token int64, slot int, data []byte) error {
	return d.Do(ctx, resource, token, slot, func() error {
		return d.replace(resource, resource, data)
	})
}

// ReadFile returns the content of a file. Reading needs no token.
func (d *Dir) ReadFile(resource string) ([]byte, error) {
	if err := checkFile(resource); err != nil {
		return nil, err
	}
	return d.root.ReadFile(resource)
}

// read reads the mark of a file; there is none before its first admission. What can't be
// read is an error: a guard that has lost its mark must not begin anew.
func (d *Dir) read(resource string, mark *Mark) error {
	text, err := d.root.ReadFile(beside(resource, ".fence"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = json.Unmarshal(text, mark); err == nil {
		err = mark.check()
	}
	if err == nil && mark.Token == 0 && len(mark.Slots) == 0 {
		err = errors.New("the mark is damaged: it has no token")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(d.root.Name(), beside(resource, ".fence")), err)
	}
	return nil
}

// checkEarlier returns an error if the file has the mark of an earlier write_fenced, which had other
// names for it: to begin anew would admit what is stale.
func (d *Dir) checkEarlier(resource string) error {
	for _, suffix := range []string{".fence-lock", ".fence"} {
		switch _, err := d.root.Lstat(resource + suffix); {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
	}
	return fmt.Errorf("%s is a mark of an earlier write_fenced: once that is in use nowhere, run take_over_fenced of docs/storage/write_fenced.sh",
		filepath.Join(d.root.Name(), resource+".fence"))
}

// replace puts data in place of a file that belongs to the resource, durably: it is
// written aside, synced and renamed, and the directory is synced. The caller has the lock of
// the resource, so that nobody else uses the name aside.
func (d *Dir) replace(resource, name string, data []byte) error {
	aside := beside(resource, ".fence-new")
	mode, kept := fs.FileMode(0o666), false
	switch info, err := d.root.Stat(name); {
	case err == nil:
		mode, kept = info.Mode().Perm(), true
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	// What a crash has left may be of a mode that can't be written, or that is not this file's.
	if err := d.root.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := d.root.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if kept { // whatever the umask is
		err = file.Chmod(mode)
	}
	if err == nil {
		_, err = file.Write(data)
	}
	if err == nil {
		err = d.sync(file)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, d.root.Remove(aside))
	}
	if err := d.root.Rename(aside, name); err != nil {
		return err
	}
	return d.syncDir(name)
}

// syncDir has the names of the files beside a file on disk.
func (d *Dir) syncDir(name string) error {
	dir, err := d.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.sync(dir), dir.Close())
}

// beside returns the path of a file of the guard's own.
func beside(resource, suffix string) string {
	dir, name := path.Split(resource)
	return dir + "." + name + suffix
}

func checkFile(resource string) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	if !fs.ValidPath(resource) || strings.HasPrefix(resource, ".") || strings.Contains(resource, "/.") {
		return fmt.Errorf("%w resource %q: it must be a path below the directory, with no part that is empty or begins with a dot", ErrInvalid, resource)
	}
	return nil
}

// How often a file that another has locked is tried: there is no way to wait for it that
// heeds a context.
const (
	shortestPause = 200 * time.Microsecond
	longestPause  = 20 * time.Millisecond
)

// await locks the file, or returns the context's error.
func await(ctx context.Context, file *os.File) error {
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		if err := ctx.Err(); err != nil {
			return err
		}
		locked, err := tryLock(file)
		if locked || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}
