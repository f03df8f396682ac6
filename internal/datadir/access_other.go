//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package datadir

import "os"

func ownerOf(os.FileInfo) (uid int, known bool) { return 0, false }

// MayWrite knows nothing where nobody has told it how to ask.
func MayWrite(string) error { return nil }
