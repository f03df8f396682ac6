package datadir

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// nobody is a user without privileges, if the tests run as root.
const nobody = 65534

// asNobody has a function do what it does with files as a user without privileges, also where root runs the tests.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		do()
		return
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		err := syscall.Setfsuid(nobody)
		if err == nil {
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A first start needs no right to read the directory above: neither where its own is there, nor where it makes it.
func TestMakeBelowOneThatMayNotBeRead(t *testing.T) {
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
	there, made := filepath.Join(above, "there"), filepath.Join(above, "a", "made")
	for _, err := range []error{os.Mkdir(there, 0o700), os.Chmod(above, 0o333)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(there, nobody, -1); err != nil {
			t.Fatal(err)
		}
	}
	asNobody(t, func() {
		if _, err := os.ReadDir(above); !os.IsPermission(err) {
			t.Errorf("the directory above is read: %v", err)
		}
		for _, dir := range []string{there, made} {
			if err := Make(dir, Sync); err != nil {
				t.Error(err)
			}
			if err := SyncName(dir, Sync); err != nil {
				t.Error(err)
			}
			lock, err := Take(dir, 0)
			if err != nil {
				t.Error(err)
				continue
			}
			lock.Close()
		}
	})
}
