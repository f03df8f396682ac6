package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func take(t *testing.T, dir string) *Lock {
	t.Helper()
	l, err := Take(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// refused takes a directory that another process has.
func refused(t *testing.T, dir string) {
	t.Helper()
	for what, lock := range map[string]func() (*Lock, error){
		"Take": func() (*Lock, error) { return Take(dir, 0) },
		"Look": func() (*Lock, error) { return Look(dir, 0) },
	} {
		if l, err := lock(); !errors.Is(err, ErrInUse) {
			t.Errorf("%s: %v", what, err)
			l.Close()
		}
	}
	if used, err := InUse(dir); !used || err != nil {
		t.Errorf("InUse: %v, %v", used, err)
	}
}

func TestOneAtATime(t *testing.T) {
	dir := t.TempDir()
	first := take(t, dir)
	refused(t, dir)
	if err := os.Remove(filepath.Join(dir, FileName)); err != nil {
		t.Fatal(err)
	}
	refused(t, dir)
	if err := errors.Join(first.Held(), first.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // and it lets go
		if used, err := InUse(dir); used || err != nil {
			t.Errorf("InUse: %v, %v", used, err)
		}
	}
	take(t, dir)
	refused(t, dir)
}

// An earlier version locks the file alone.
func TestBesideAnEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	if locked, err := tryLock(f); !locked || err != nil {
		t.Fatal(locked, err)
	}
	refused(t, dir)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	take(t, dir)
}

func TestALookMakesNothing(t *testing.T) {
	dir := t.TempDir()
	l, err := Look(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("there is %v, %v", left, err)
	}
	refused(t, dir)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestHeld(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l := take(t, dir)
	if err := l.Held(); err != nil {
		t.Error(err)
	}
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := l.Held(); err == nil {
		t.Error("it was moved")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.Held(); err == nil {
		t.Error("it was replaced")
	}
	take(t, dir)
}
