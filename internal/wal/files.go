package wal

import (
	"io"
	"io/fs"
	"os"

	"fencepost/internal/datadir"
)

// Files is what a log does with files. Tests record it, tear it and let it fail.
type Files interface {
	// List returns what is in a directory, in order of the names.
	List(dir string) ([]fs.DirEntry, error)
	// Create makes an empty file that its owner alone may read, over what is there.
	Create(path string) (File, error)
	// OpenSynced opens an existing file for writes of whole blocks that return when they are on disk.
	OpenSynced(path string) (File, error)
	Open(path string) (Reader, error)
	Rename(from, to string) error
	Remove(path string) error
	// Same returns an error unless the name by which a file was opened to be read still leads to it.
	Same(opened Reader) error
	// SyncDir returns when the names in a directory are on disk.
	SyncDir(path string) error
}

// File is a file that is written. It has no type of its own, so that files of tests, which this package's import, can be
// Files too.
type File = interface {
	io.WriterAt
	Sync() error
	Close() error
}

// Reader is a file that is read. It has what is written to the file later as well. It has no type of its own, as File.
type Reader = interface {
	io.ReadSeekCloser
	io.ReaderAt
}

// system is Files of the operating system.
type system struct{}

func (system) Create(path string) (File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}
func (system) OpenSynced(path string) (File, error) { return openSynced(path) }
func (system) Open(path string) (Reader, error)     { return datadir.OpenPlace(path) }
func (system) Rename(from, to string) error         { return os.Rename(from, to) }
func (system) Remove(path string) error             { return os.Remove(path) }
func (system) Same(opened Reader) error             { return opened.(datadir.Place).Held() }
func (system) SyncDir(path string) error            { return datadir.Sync(path) }

func (system) List(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }

// FilesOr returns files, or those of the operating system where they are nil.
func FilesOr(files Files) Files {
	if files == nil {
		return system{}
	}
	return files
}

// inOrder does one thing after the other until one fails.
func inOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
