//go:build unix

package fence

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
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

// TestDirSyncFails: whichever syncs fail, of two processes that write in turn, the mark is on disk before
// anything is written under its token, and what WriteFile says to have written is on disk, too.
func TestDirSyncFails(t *testing.T) {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 0))
	broken := errors.New("input/output error")
	content := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(dir, name)) // there may be none
		return string(text)
	}
	synced, durable := map[string]bool{}, map[string]string{} // contents of files; what is there after a power loss
	sync := func(f *os.File) error {
		if random.IntN(4) == 0 {
			return broken
		}
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if !info.IsDir() {
			synced[content(filepath.Base(f.Name()))] = true
			return nil
		}
		for _, name := range []string{"a", ".a.fence"} {
			if text := content(name); text == "" || synced[text] {
				durable[name] = text
			} else {
				t.Errorf("%s has its name before its content %q is on disk", name, text)
			}
		}
		return nil
	}
	kept := func() int64 {
		var mark Mark
		if text := durable[".a.fence"]; text != "" {
			if err := json.Unmarshal([]byte(text), &mark); err != nil {
				t.Fatal(err)
			}
		}
		return mark.Token
	}
	var processes [2]*Dir
	for i := range processes {
		d, err := OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		d.sync, processes[i] = sync, d
	}
	failed, written := 0, 0
	for token := int64(1); token < 500; token += random.Int64N(2) {
		d := processes[random.IntN(len(processes))]
		data := strconv.FormatInt(token, 10)
		var err error
		if random.IntN(2) == 0 {
			if err = d.WriteFile(t.Context(), "a", token, NoSlot, []byte(data)); err == nil && durable["a"] != data {
				t.Fatalf("%q was written, and %q is on disk", data, durable["a"])
			}
		} else {
			err = d.Do(t.Context(), "a", token, NoSlot, func() error {
				if kept() < token {
					t.Errorf("token %d writes, and the mark on disk is %d", token, kept())
				}
				return nil
			})
		}
		if n, _ := strconv.ParseInt(content("a"), 10, 64); n > kept() {
			t.Fatalf("%d is written, and the mark on disk is %d", n, kept())
		}
		if err == nil {
			written++
		} else if failed++; !errors.Is(err, broken) {
			t.Fatal(err)
		}
	}
	if failed < 100 || written < 100 {
		t.Errorf("%d calls failed, %d did not: this proves little", failed, written)
	}
}
