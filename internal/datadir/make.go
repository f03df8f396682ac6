package datadir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Make makes a directory and those above it, as far as there are none, with mode 0700. Their names are
// as durable then as what is in them: each directory that has a new one is given to sync, which is Sync
// but for tests.
func Make(dir string, sync func(dir string) error) error {
	var made []string
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); err == nil || !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, at)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, at := range made {
		err := sync(filepath.Dir(at))
		if errors.Is(err, fs.ErrPermission) { // it may be written and not read
			err = syncAll(err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// SyncName has the name of a directory be as durable as what is to be in it, where nothing is yet: whoever made it may have
// been killed before Make gave it to sync. Who may not read the directory above has not made it, unless Make has said so.
func SyncName(dir string, sync func(dir string) error) error {
	if err := sync(filepath.Dir(filepath.Clean(dir))); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

// Sync returns when the names in a directory are on disk.
func Sync(dir string) error {
	opened, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(opened.Sync(), opened.Close())
}
