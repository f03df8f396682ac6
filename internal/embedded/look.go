package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"fencepost/internal/fencing"
)

const (
	// lookTimeout is how long Look waits for the file's lock: whoever has it is a
	// gateway, which keeps it.
	lookTimeout = 100 * time.Millisecond

	// leastSpace is how much room on the disk is little: the journal and the file
	// grow in steps of less.
	leastSpace = 256 << 20
)

// Look says how it is with the store in dir, and changes nothing there; it may be
// called while another process has the store open. An error says why no gateway
// could open it.
func Look(dir string) ([]fencing.Finding, error) {
	where, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	directory, err := lookAtDirectory(where)
	if err != nil {
		return nil, err
	}
	file, err := lookAtFile(filepath.Join(where, fileName))
	if err != nil {
		return nil, err
	}
	return append([]fencing.Finding{directory, file}, lookAtFileSystem(where)...), nil
}

func lookAtDirectory(dir string) (fencing.Finding, error) {
	f := fencing.Finding{Check: "directory", OK: true, Detail: dir}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		f.Detail += " is not there yet: the gateway makes it"
	case err != nil:
		return f, err
	case !info.IsDir():
		return f, fmt.Errorf("%s is not a directory", dir)
	}
	return f, nil
}

func lookAtFile(path string) (fencing.Finding, error) {
	f := fencing.Finding{Check: "file", OK: true}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		f.Detail = "there is none yet: nothing was ever locked here"
		return f, nil
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lookTimeout})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		f.Detail = "another process has it open, as a gateway that runs has: what is in it can't be looked at meanwhile"
		return f, nil
	case err != nil:
		return f, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	err = db.View(func(tx *bolt.Tx) error {
		m := meta.in(tx)
		switch {
		case m == nil:
			f.Detail = "it is empty: nothing was ever locked here"
		case string(m.Get(keyFormat)) != format:
			return fmt.Errorf("%s has format %q; this version reads format %q", path, m.Get(keyFormat), format)
		case m.Get(keyJournal) != nil:
			f.Detail = "the gateway that had it has not ended cleanly: the next start reads its journal"
		default:
			f.Detail = "it can be read, and no gateway has it open"
		}
		return nil
	})
	return f, errors.Join(err, db.Close())
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
