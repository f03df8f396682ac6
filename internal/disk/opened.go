package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/wal"
)

// examinePatience is how long OpenAll waits for the directory's lock: whoever has it is a gateway, which keeps it.
const examinePatience = 100 * time.Millisecond

// Opened is the files of a data directory that were opened while no gateway had them. They stay what they were: a start puts
// others in their place, or appends. It is wal.Files to be looked at.
type Opened map[string]*openedFile

type openedFile struct {
	*os.File
	size int64
}

// OpenAll opens the files of the store in dir, and waits for no gateway: datadir.ErrInUse. It keeps none from the directory
// once it has returned.
func OpenAll(dir string) (Opened, error) {
	lock, err := datadir.Look(dir, examinePatience)
	if err != nil {
		return nil, err
	}
	all := Opened{}
	for _, below := range []string{LogName, SnapshotsName} {
		entries, err := os.ReadDir(filepath.Join(dir, below))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, all.Close(), lock.Close())
		}
		for _, entry := range entries {
			path := filepath.Join(dir, below, entry.Name())
			if strings.HasSuffix(path, ".new") { // a start removes it
				continue
			}
			if err := all.add(path); err != nil {
				return nil, errors.Join(err, all.Close(), lock.Close())
			}
		}
	}
	for _, name := range []string{datadir.IDFile, BegunFile} {
		if err := all.add(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, all.Close(), lock.Close())
		}
	}
	return all, lock.Close()
}

func (o Opened) add(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	o[path] = &openedFile{f, info.Size()}
	return nil
}

// Close closes the files.
func (o Opened) Close() (err error) {
	for _, f := range o {
		err = errors.Join(err, f.Close())
	}
	return err
}

// List implements wal.Files.
func (o Opened) List(dir string) (entries []fs.DirEntry, err error) {
	for path, f := range o {
		if filepath.Dir(path) == dir {
			info, err := f.Stat()
			if err != nil {
				return nil, err
			}
			entries = append(entries, fs.FileInfoToDirEntry(info))
		}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// Open implements wal.Files.
func (o Opened) Open(path string) (wal.Reader, error) {
	f := o[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return section{io.NewSectionReader(f, 0, f.size)}, nil
}

// section is read from its beginning, and is open until all are closed.
type section struct{ *io.SectionReader }

func (section) Close() error { return nil }

// errLooks is of what would change something.
var errLooks = errors.New("it is only looked at")

// Create implements wal.Files: it fails, as all that changes something.
func (Opened) Create(string) (wal.File, error) { return nil, errLooks }

// OpenSynced implements wal.Files.
func (Opened) OpenSynced(string) (wal.File, error) { return nil, errLooks }

// Rename implements wal.Files.
func (Opened) Rename(string, string) error { return errLooks }

// Remove implements wal.Files.
func (Opened) Remove(string) error { return errLooks }

// Same implements wal.Files: what is open stays what it was.
func (Opened) Same(wal.Reader) error { return nil }

// SyncDir implements wal.Files: nothing was changed.
func (Opened) SyncDir(string) error { return nil }
