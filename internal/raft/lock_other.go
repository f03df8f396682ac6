//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package raft

import (
	"errors"
	"os"
)

// tryLock takes the lock on a file that is open.
func tryLock(*os.File) (bool, error) {
	return false, errors.New("a node can't make sure on this system that no other process uses its directory; use Redis")
}
