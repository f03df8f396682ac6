package sql

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"fencepost/internal/sql/sqltest"
)

// A database whose disk is full says so, and all goes on when there is room.
func TestSystemFullDisk(t *testing.T) {
	dir, err := os.MkdirTemp("", "full") // a server's user can't get into one of the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1000m,mode=0777"); err != nil {
		t.Fatalf("this test mounts a file system; run it as root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", dir)
	fills := func(b *broken) func() {
		ballast := filepath.Join(dir, "ballast")
		f, err := os.Create(ballast)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		f.Close()
		return func() {
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
		}
	}
	newBroken(t, sqltest.StartPostgres(t)).isTold(fills, full.detail, full.remedy)
}
