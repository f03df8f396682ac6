package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"fencepost/internal/fencing"
)

const (
	// examinePatience is how long Examine waits for the file's lock: whoever has it is a
	// gateway, which keeps it.
	examinePatience = 100 * time.Millisecond

	// leastSpace is how much room on the disk is little: the journal and the file
	// grow in steps of less.
	leastSpace = 256 << 20
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
	return append([]fencing.Finding{directory, file}, examineFileSystem(where)...), nil
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
		return f, nil
	}
	dir := filepath.Dir(path)
	var lock *os.File
	_, err := os.Stat(filepath.Join(dir, lockName))
	if err == nil {
		lock, err = lockDirectory(dir, examinePatience)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // as in a copy
	case errors.Is(err, errInUse):
		f.Detail = "another process has it open, as a gateway that runs has: what is in it can't be looked at meanwhile"
		return f, nil
	case err != nil:
		return f, err
	}
	d := &disk{directory: directory{system{}, dir}, lock: lock}
	f.Detail, err = d.examine()
	return f, errors.Join(err, d.close())
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

// room says how much space there is.
func room(free uint64) fencing.Finding {
	f := fencing.Finding{Check: "space", OK: true, Detail: fmt.Sprintf("%d MiB are free", free>>20)}
	if free < leastSpace {
		f.OK, f.Remedy = false, "make room: the gateway ends at the first write that fails"
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
