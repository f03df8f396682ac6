package datadir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"fencepost/internal/fencing"
)

// Directory says where a data directory is, and whether it is there. An error says why no gateway could use
// it.
func Directory(dir string) (fencing.Finding, error) {
	f := fencing.Finding{Check: "directory", OK: true, Detail: dir}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		if link := deadLink(dir); link != "" {
			return f, &fs.PathError{Op: "mkdir", Path: link, Err: syscall.EEXIST}
		}
		f.Detail += " does not exist yet: the gateway creates it"
	case err != nil:
		return f, err
	case !info.IsDir():
		return f, &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	return f, MayWrite(existing(dir))
}

// deadLink returns the symbolic link, in a path that is not there, which leads to nothing; empty if there is none. Nothing
// can be made in its place.
func deadLink(path string) string {
	for above := existing(path); path != above; path = filepath.Dir(path) {
		if _, err := os.Lstat(path); err == nil {
			return path
		}
	}
	return ""
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

// volatile and remote are what is said of file systems that don't keep what they
// are told, or may not.
func volatile(name string) fencing.Finding {
	return fencing.Finding{
		Check: "filesystem", Promise: "P1", Remedy: "put FENCEPOST_DATA_DIR on a disk",
		Detail: "it is in memory (" + name + "): a restart of the machine or container loses all leases",
	}
}

func remote(name string) fencing.Finding {
	return fencing.Finding{
		Check: "filesystem", Promise: "P1", Remedy: "put FENCEPOST_DATA_DIR on a local disk, or use Redis",
		Detail: "it is on another machine (" + name + "): that machine decides whether flushed data is on disk and whether only one gateway opens the directory",
	}
}
