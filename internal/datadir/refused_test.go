package datadir

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What a file system refuses is told with the directory and what to change, and stays
// the error that it is.
func TestRefusalsOfFileSystems(t *testing.T) {
	dir := t.TempDir()
	for _, refusal := range []struct {
		errno syscall.Errno
		says  string
	}{
		{syscall.EROFS, "mount it"}, {syscall.ENOSPC, "no room"}, {syscall.EDQUOT, "no room"}, {syscall.EPERM, "SELinux"},
	} {
		err := Explained(dir, errors.Join(&fs.PathError{Op: "open", Path: filepath.Join(dir, FileName), Err: refusal.errno}))
		for _, text := range []string{dir, refusal.says, "FENCEPOST_DATA_DIR"} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%v: no %q in: %v", refusal.errno, text, err)
			}
		}
		if !errors.Is(err, refusal.errno) {
			t.Errorf("%v is not in: %v", refusal.errno, err)
		}
	}
	if err := Explained(dir, io.ErrUnexpectedEOF); err != io.ErrUnexpectedEOF {
		t.Errorf("%v", err)
	}
}

// A directory that can't be made where the file system takes none is told with a way out.
func TestNoDirectories(t *testing.T) {
	err := Make("/proc/fencepost-data", Sync)
	if err = Explained("/proc/fencepost-data", err); !strings.Contains(err.Error(), "FENCEPOST_DATA_DIR") {
		t.Error(err)
	}
}
