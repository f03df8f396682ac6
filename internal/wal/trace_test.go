package wal

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"fencepost/internal/wal/waltest"
)

var _ Files = (*waltest.Trace)(nil)

// times returns how often something is done: often with FENCEPOST_LONG.
func times(usually, long int) int {
	if os.Getenv("FENCEPOST_LONG") != "" {
		return long
	}
	return usually
}

// openTrace opens the log in files.
func openTrace(t *testing.T, files *waltest.Trace) *Log {
	t.Helper()
	l, err := Open(t.TempDir(), Options{Files: files, FileSize: testFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// names returns the names of files, in order.
func namesOf(content map[string][]byte) (names []string) {
	for path := range content {
		names = append(names, filepath.Base(path))
	}
	slices.Sort(names)
	return names
}
