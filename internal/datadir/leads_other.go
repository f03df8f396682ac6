//go:build !linux

package datadir

import "os"

func leads(path string, to os.FileInfo) (bool, error) { return leadsByStat(path, to) }
