package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fencepost/internal/datadir"
	"fencepost/internal/wal"
)

// What shows that there was a store has one not begun without its log.
func TestLogMissing(t *testing.T) {
	files := wal.FilesOr(nil)
	for _, c := range []struct {
		has   string // a file
		shows []string
		says  string
	}{
		{"other", nil, ""}, {datadir.IDFile, nil, ""}, {datadir.IDFile, []string{datadir.IDFile}, datadir.IDFile},
		{BegunFile, nil, BegunFile}, {"snapshots/00000000000000000001-00000000000000000002.snapshot", nil, "00000000000000000002.snapshot"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, c.has)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		err := LogMissing(dir, files, c.shows...)
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("beside %s: %v", c.has, err)
		}
		if there, err := There(dir, files); err != nil || there != (c.says != "" && c.shows == nil) {
			t.Errorf("beside %s there is a store: %t, %v", c.has, there, err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, LogName), 0o700), os.WriteFile(filepath.Join(dir, LogName, "0000000001.log"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := LogMissing(dir, files, c.shows...); err != nil {
			t.Errorf("beside %s and a log: %v", c.has, err)
		}
	}
	if err := LogMissing(filepath.Join(t.TempDir(), "none"), files, datadir.IDFile); err != nil {
		t.Errorf("where there is no directory: %v", err)
	}
}
