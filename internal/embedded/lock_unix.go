//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package embedded

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the lock on a file that is open, and reports whether it could. It
// ends with the file, or the process.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// ownerOf returns the user to whom a file belongs.
func ownerOf(info os.FileInfo) (uid int, known bool) {
	if of, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(of.Uid), true
	}
	return 0, false
}

// mayWrite returns an error if this process may not make files in a directory.
func mayWrite(dir string) error {
	const write, search = 2, 1 // access(2)
	if err := syscall.Access(dir, write|search); err != nil {
		return &os.PathError{Op: "access", Path: dir, Err: err}
	}
	return nil
}
