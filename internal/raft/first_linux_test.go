package raft

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// A node begins below a directory that it may search and not read, whether its own is there or is made.
func TestFirstStartBelowADirectoryThatMayNotBeRead(t *testing.T) {
	const nobody = 65534
	above, err := os.MkdirTemp("", "fencepost-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Chmod(above, 0o700); err != nil {
			t.Error(err)
		}
		os.RemoveAll(above)
	})
	there := filepath.Join(above, "there")
	if err := os.Mkdir(there, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(above, 0o333); err != nil {
		t.Fatal(err)
	}
	root := os.Geteuid() == 0
	if root {
		if err := os.Chown(there, nobody, -1); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if root {
			runtime.LockOSThread() // and the thread ends with the goroutine
			if err := syscall.Setfsuid(nobody); err != nil {
				t.Error(err)
				return
			}
		}
		if _, err := os.ReadDir(above); !os.IsPermission(err) {
			t.Errorf("the directory above is read: %v", err)
		}
		for _, dir := range []string{there, filepath.Join(above, "a", "made")} {
			d, err := first(t, dir, nil)
			if err != nil {
				t.Error(err)
			} else if err := d.close(); err != nil {
				t.Error(err)
			}
		}
	}()
	<-done
}
