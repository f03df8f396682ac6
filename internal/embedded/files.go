package embedded

import (
	"errors"
	"io"
	"os"
)

// files is what the store does with files. Tests record it, tear it and let it fail.
type files interface {
	// create makes an empty file that its owner alone may read, over what is there.
	create(path string) (file, error)
	// openSynced opens an existing file for writes of whole blocks that return when
	// they are on disk.
	openSynced(path string) (file, error)
	open(path string) (io.ReadCloser, error)
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

// system is files of the operating system.
type system struct{}

func (system) create(path string) (file, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}
func (system) openSynced(path string) (file, error)    { return openSynced(path) }
func (system) open(path string) (io.ReadCloser, error) { return os.Open(path) }
func (system) rename(from, to string) error            { return os.Rename(from, to) }
func (system) remove(path string) error                { return os.Remove(path) }

func (system) syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
