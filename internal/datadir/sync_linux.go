package datadir

import "syscall"

// syncAll is for a directory that may not be read, and so not be synced alone: Linux returns when all file systems are
// on disk.
func syncAll(error) error {
	syscall.Sync()
	return nil
}
