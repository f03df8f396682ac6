//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package datadir

import (
	"os"
	"syscall"
)

// ownerOf returns the user to whom a file belongs.
func ownerOf(info os.FileInfo) (uid int, known bool) {
	if of, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(of.Uid), true
	}
	return 0, false
}

// MayWrite returns an error if this process may not make files in a directory.
func MayWrite(dir string) error {
	const write, search = 2, 1 // access(2)
	if err := syscall.Access(dir, write|search); err != nil {
		return &os.PathError{Op: "access", Path: dir, Err: err}
	}
	return nil
}
