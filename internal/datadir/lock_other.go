//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package datadir

import (
	"errors"
	"os"
)

// tryLock takes the lock on a file that is open.
func tryLock(*os.File) (bool, error) {
	return false, errors.New("nothing keeps other processes from a directory on this system; use Redis")
}
