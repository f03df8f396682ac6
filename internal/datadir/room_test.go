package datadir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What is little goes with what is written anew beside itself.
func TestRoom(t *testing.T) {
	for _, c := range []struct {
		free, size int64
		ok         bool
	}{
		{100 << 20, 0, false}, {300 << 20, 0, true}, {10 << 30, 0, true},
		{300 << 20, 100 << 20, true}, {300 << 20, 200 << 20, false}, {1 << 30, 500 << 20, true}, {1 << 30, 600 << 20, false},
	} {
		found := Room("a", func(string) (int64, bool) { return c.free, true }, "the table", c.size)
		if len(found) != 1 || found[0].OK != c.ok || c.ok != (found[0].Remedy == "") || found[0].Promise != "" || !strings.Contains(found[0].Detail, "the table takes") {
			t.Errorf("%d free, a table of %d: %+v", c.free, c.size, found)
		}
	}
	if found := Room("a", func(string) (int64, bool) { return 0, false }, "the table", 0); len(found) > 0 {
		t.Errorf("of a file system that does not tell it is said %+v", found)
	}
}

func TestRoomForNew(t *testing.T) {
	const need = 32 << 20
	for _, c := range []struct {
		free  int64
		known bool
		says  string
	}{
		{need, true, ""}, {0, false, ""}, {need - 1, true, "/a: a new store needs 32.0 MiB, and its file system has 31.9 MiB free"},
	} {
		err := RoomForNew("/a", func(string) (int64, bool) { return c.free, c.known }, "a new store", need)
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d bytes free: %v", c.free, err)
		}
	}
}

// What is said of a full disk once is not said again.
func TestNoRoom(t *testing.T) {
	err := Explained("/a", NoRoom(syscall.ENOSPC, "/a", "table", 5<<19))
	if !errors.Is(err, ErrNoRoom) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "about 3 MiB") || strings.Contains(err.Error(), "FENCEPOST_DATA_DIR") {
		t.Errorf("%v", err)
	}
	if err := NoRoom(io.EOF, "/a", "table", 0); err != io.EOF {
		t.Errorf("%v", err)
	}
}

func TestLittleRoomIsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	said := fmt.Sprintf("\n| the check `space` fails below | twice its files, at least %[1]d MiB | twice its newest snapshot, at least %[1]d MiB |", leastSpace>>20)
	if leastTimes != 2 || !strings.Contains(string(page), said) {
		t.Errorf("docs/reference.md does not say %q", said)
	}
}
