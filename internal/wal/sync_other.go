//go:build !linux

package wal

import "os"

// openSynced opens an existing file for writes of whole blocks that return when they are on disk.
func openSynced(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR|os.O_SYNC, 0) }
