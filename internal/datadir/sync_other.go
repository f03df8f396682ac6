//go:build !linux

package datadir

// syncAll is for a directory that may not be read, and so not be synced alone: that is refused, as systems may return
// before all file systems are on disk.
func syncAll(refused error) error { return refused }
