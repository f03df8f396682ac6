package embedded

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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

// replace makes what fill writes the file of that name, in place of what is there. It
// returns when that is on disk; a crash before leaves the file as it was.
func (d directory) replace(name string, fill func(file) error) error {
	f, err := d.files.create(d.path(name + newSuffix))
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := d.files.rename(d.path(name+newSuffix), d.path(name)); err != nil {
		return err
	}
	return d.files.syncDir(d.dir)
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

func (system) syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
