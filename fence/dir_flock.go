//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package fence

import (
	"errors"
	"os"
	"syscall"
)

const canLock = true

// tryLock locks a file for its description alone, if no other one has it.
func tryLock(file *os.File) (locked bool, err error) {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, &os.PathError{Op: "flock", Path: file.Name(), Err: err}
		}
	}
}
