package datadir

import (
	"cmp"
	"math"
	"syscall"
)

// Free returns how many bytes are free for files in a directory, which may be still to be made. Some file systems don't tell, and have none in all
// then, as a tmpfs without a bound.
func Free(path string) (bytes int64, known bool) {
	var at syscall.Statfs_t
	if err := syscall.Statfs(existing(path), &at); err != nil {
		return 0, false
	}
	block := uint64(cmp.Or(at.Frsize, at.Bsize)) // the other one is how much is best written at once
	if at.Blocks == 0 || block == 0 {
		return 0, false
	}
	if at.Bavail > math.MaxInt64/block { // as those that have no bound may say
		return math.MaxInt64, true
	}
	return int64(at.Bavail * block), true
}
