//go:build unix

package fence

import (
	"errors"
	"os"
	"testing"
)

// TestDirSyncsAgain: a mark that was renamed, and whose directory could not be synced then, is
// on disk before anything is written by a later call with the same token: after a power loss
// there would be new data beside an old mark, which lets a stale holder in.
func TestDirSyncsAgain(t *testing.T) {
	d, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	broken := errors.New("input/output error")
	fail, synced := true, false
	d.sync = func(f *os.File) error {
		if info, err := f.Stat(); err != nil || !info.IsDir() {
			return err
		}
		if fail {
			return broken
		}
		synced = true
		return nil
	}
	write := func() error {
		if !synced {
			t.Error("it is written before the mark is on disk")
		}
		return nil
	}
	for range 2 { // the mark is there after the first
		if err := d.Do(t.Context(), "a", 5, NoSlot, write); !errors.Is(err, broken) {
			t.Errorf("the directory could not be synced, and that is %v", err)
		}
	}
	fail = false
	if err := d.Do(t.Context(), "a", 5, NoSlot, write); err != nil {
		t.Error(err)
	}
	synced = false
	if err := d.Do(t.Context(), "a", 5, NoSlot, write); err != nil { // another process may have failed meanwhile
		t.Error(err)
	}
}
