package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/fencing"
)

const (
	// examinePatience is how long Examine waits for the file's lock: whoever has it is a
	// gateway, which keeps it.
	examinePatience = 100 * time.Millisecond

	// leastSpace is how much room on the disk is little, however small the table is.
	leastSpace = 256 << 20

	// leastTables is how many times the table is little: it is written anew beside itself, and a
	// segment of the journal that is made anew has as much at most.
	leastTables = 2
)

// Examine says how it is with the store in dir, and changes nothing there; it may be
// called while another process has the store open. An error says why no gateway
// could open it.
func Examine(dir string) ([]fencing.Finding, error) {
	where, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	directory, err := examineDirectory(where)
	if err != nil {
		return nil, explained(where, err)
	}
	file, err := examineFile(filepath.Join(where, fileName))
	if err != nil {
		return nil, explained(where, err)
	}
	return slices.Concat([]fencing.Finding{directory, file}, examineFileSystem(where), examineRoom(where)), nil
}

func examineDirectory(dir string) (fencing.Finding, error) {
	f := fencing.Finding{Check: "directory", OK: true, Detail: dir}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		f.Detail += " is not there yet: the gateway makes it"
	case err != nil:
		return f, err
	case !info.IsDir():
		return f, &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	return f, mayWrite(existing(dir))
}

func examineFile(path string) (fencing.Finding, error) {
	f := fencing.Finding{Check: "file", OK: true}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		f.Detail = "there is none yet: nothing was ever locked here"
		return f, directory{system{}, filepath.Dir(path)}.roomForNew(leastSegment)
	}
	files, err := openAll(filepath.Dir(path))
	switch {
	case errors.Is(err, datadir.ErrInUse):
		f.Detail = "another process has it open, as a gateway that runs has: what is in it can't be looked at meanwhile"
		return f, nil
	case err != nil:
		return f, err
	}
	d := &disk{directory: directory{files, filepath.Dir(path)}}
	f.Detail, err = d.examine()
	return f, errors.Join(err, files.close())
}

// opened is files that were opened while no gateway had them. They stay what they were: a
// start puts others in their place.
type opened struct {
	system
	all map[string]*os.File
}

// openAll opens the files of the store in dir. It keeps no gateway from the directory once it has
// returned.
func openAll(dir string) (opened, error) {
	lock, err := datadir.Look(dir, examinePatience)
	if err != nil {
		return opened{}, err
	}
	o := opened{all: map[string]*os.File{}}
	for _, name := range append(segmentNames[:], fileName) {
		path := filepath.Join(dir, name)
		switch f, err := os.Open(path); {
		case err == nil:
			o.all[path] = f
		case !errors.Is(err, fs.ErrNotExist):
			return opened{}, errors.Join(err, o.close(), lock.Close())
		}
	}
	return o, lock.Close()
}

func (o opened) open(path string) (readable, error) {
	f := o.all[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return openedFile{io.NewSectionReader(f, 0, info.Size())}, nil
}

// openedFile is read from its beginning, and is open until all are closed.
type openedFile struct{ *io.SectionReader }

func (openedFile) Close() error { return nil }

func (o opened) close() (err error) {
	for _, f := range o.all {
		err = errors.Join(err, f.Close())
	}
	return err
}

// examine reads all that a start would.
func (d *disk) examine() (detail string, err error) {
	flushed, err := d.flushed()
	if err != nil {
		return "", err
	}
	l := newLoading(0)
	each, end := onTop(latest(flushed), l.entry)
	if err := d.each(each); err != nil {
		return "", err
	}
	if err := end(); err != nil {
		return "", err
	}
	if flushed != nil {
		return "the gateway that had it has not ended cleanly: the next start reads its journal", nil
	}
	return "it can be read, and no gateway has it open", nil
}

// existing returns the nearest directory above path that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// examineRoom says how much room is left there.
func examineRoom(dir string) []fencing.Finding {
	free, known := datadir.Free(existing(dir))
	if !known {
		return nil
	}
	return []fencing.Finding{room(uint64(free), tableSize(dir))}
}

// tableSize returns the size of the table in dir, 0 if there is none.
func tableSize(dir string) uint64 {
	info, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil {
		return 0
	}
	return uint64(info.Size())
}

// room says how much space there is beside a table of that size.
func room(free, table uint64) fencing.Finding {
	f := fencing.Finding{Check: "space", OK: true, Detail: fmt.Sprintf("%d MiB are free, and %s has %d", free>>20, fileName, table>>20)}
	if least := max(leastSpace, leastTables*table); free < least {
		f.OK, f.Remedy = false, fmt.Sprintf("make room, %d MiB at least: the gateway ends at the first write that fails", least>>20)
	}
	return f
}

// volatile and remote are what is said of file systems that don't keep what they
// are told, or may not.
func volatile(name string) fencing.Finding {
	return fencing.Finding{
		Check: "filesystem", Promise: "P1", Remedy: "put FENCEPOST_DATA_DIR on a disk",
		Detail: "it is in memory (" + name + "): a restart of the machine or container forgets all leases",
	}
}

func remote(name string) fencing.Finding {
	return fencing.Finding{
		Check: "filesystem", Promise: "P1", Remedy: "put FENCEPOST_DATA_DIR on a local disk, or use Redis",
		Detail: "it is on another machine (" + name + "): whether what is flushed is on disk, and only one gateway has the file, is up to that",
	}
}
