//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package fence

import (
	"errors"
	"os"
)

const canLock = false

func tryLock(*os.File) (bool, error) { return false, errors.ErrUnsupported }
