package embedded

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"fencepost/internal/datadir"
)

// files is what the store does with files. Tests record it, tear it and let it fail.
type files interface {
	// create makes an empty file that its owner alone may read, over what is there.
	create(path string) (file, error)
	// openSynced opens an existing file for writes of whole blocks that return when
	// they are on disk.
	openSynced(path string) (file, error)
	open(path string) (readable, error)
	rename(from, to string) error
	remove(path string) error
	// syncDir returns when the names in a directory are on disk.
	syncDir(path string) error
	// free returns how many bytes are free for files below path, if that is known.
	free(path string) (bytes int64, known bool)
}

type file interface {
	io.WriterAt
	Sync() error
	Close() error
}

type readable interface {
	io.ReadSeekCloser
	io.ReaderAt
}

// newSuffix ends the name of a file on its way to be the one without.
const newSuffix = ".new"

// directory is where the files of the store are.
type directory struct {
	files files
	dir   string
}

func (d directory) path(name string) string { return filepath.Join(d.dir, name) }

// exists reports whether there is a file of that name.
func (d directory) exists(name string) (bool, error) {
	f, err := d.files.open(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// replace makes what fill writes, about size bytes, the file of that name, in place of what is
// there. It returns when that is on disk; a crash before leaves the file as it was, and so does
// an error, unless it is one of syncing the directory.
func (d directory) replace(name string, size int64, fill func(file) error) error {
	if err := d.write(name+newSuffix, fill); err != nil {
		return datadir.NoRoom(err, d.dir, name, size)
	}
	if err := d.files.rename(d.path(name+newSuffix), d.path(name)); err != nil {
		return err
	}
	return d.files.syncDir(d.dir)
}

// write makes what fill writes a file that is on disk, or none.
func (d directory) write(name string, fill func(file) error) error {
	f, err := d.files.create(d.path(name))
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = d.files.remove(d.path(name)) // it only takes room; the next create is over what is left
	}
	return err
}

// newStore is for how many segments of the journal there has to be room at a first start: two, a table as
// large as one, and a new table beside it.
const newStore = 4

// roomForNew refuses a directory that has no room for a new store, whose segments of the journal have
// that many bytes. A store that is there already is never refused: it may have run with less.
func (d directory) roomForNew(segment int64) error {
	return datadir.RoomForNew(d.dir, d.files.free, "a new store", newStore*segment)
}

// locked is files of a directory while it is the one that was locked. What is in the place
// of another is left alone.
type locked struct {
	files
	lock *datadir.Lock
}

func (l locked) create(path string) (file, error) {
	if err := l.lock.Held(); err != nil {
		return nil, err
	}
	return l.files.create(path)
}

func (l locked) openSynced(path string) (file, error) {
	if err := l.lock.Held(); err != nil {
		return nil, err
	}
	return l.files.openSynced(path)
}

func (l locked) rename(from, to string) error {
	if err := l.lock.Held(); err != nil {
		return err
	}
	return l.files.rename(from, to)
}

func (l locked) remove(path string) error {
	if err := l.lock.Held(); err != nil {
		return err
	}
	return l.files.remove(path)
}

// system is files of the operating system.
type system struct{}

func (system) create(path string) (file, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}
func (system) openSynced(path string) (file, error) { return openSynced(path) }
func (system) open(path string) (readable, error)   { return os.Open(path) }
func (system) rename(from, to string) error         { return os.Rename(from, to) }
func (system) remove(path string) error             { return os.Remove(path) }

func (system) free(path string) (int64, bool) { return datadir.Free(path) }

func (system) syncDir(path string) error { return datadir.Sync(path) }
