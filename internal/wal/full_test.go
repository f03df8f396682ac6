package wal

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/wal/waltest"
)

// fillUp stores entries until one fails, and returns the last that was stored, and why the next one was not.
func fillUp(t *testing.T, l *Log, size int) (last uint64, err error) {
	t.Helper()
	for last, err = l.LastIndex(); err == nil; last++ {
		if last > 1000 {
			t.Fatal("nothing fails")
		}
		err = l.StoreLog(&raft.Log{Index: last + 1, Term: 1, Data: make([]byte, size)})
		l.making.Wait() // what it comes to the next write says
	}
	return last - 1, err
}

// A disk that has no room for the next file ends the log, which says what has no room and how much it needs. Nothing
// stays of the file, and all that was acknowledged is there when there is room.
func TestTheDiskIsFull(t *testing.T) {
	for what, size := range map[string]int{"small entries": 100, "entries larger than a file": 3 * testFile} {
		t.Run(what, func(t *testing.T) {
			files := waltest.New(nil)
			files.SetRoom(13 * testFile)
			l := openTrace(t, files)
			last, err := fillUp(t, l, size)
			for _, text := range []string{"no room for it in the file system of " + l.dir, "MiB", "make room", "leave them"} {
				if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), text) {
					t.Errorf("no %q in: %v", text, err)
				}
			}
			if errors.Is(err, ErrDamaged) {
				t.Errorf("it is damaged: %v", err)
			}
			files.SetRoom(0)
			if again := l.StoreLog(&raft.Log{Index: last + 1, Term: 1}); !errors.Is(again, syscall.ENOSPC) {
				t.Errorf("a write after one that failed: %v", again)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			for _, name := range namesOf(files.Content()) {
				if strings.HasSuffix(name, newSuffix) {
					t.Errorf("%s is left", name)
				}
			}
			if l, err = Open(l.dir, Options{Files: files, FileSize: testFile}); err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if is, err := l.LastIndex(); err != nil || is != last || last == 0 {
				t.Errorf("the last entry is %d, %v; %d was acknowledged", is, err, last)
			}
			if err := l.StoreLog(&raft.Log{Index: last + 1, Term: 1}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A log of which nothing can be made says so at once.
func TestNoRoomForALog(t *testing.T) {
	files := waltest.New(nil)
	files.SetRoom(testFile - block)
	_, err := Open(t.TempDir(), Options{Files: files, FileSize: testFile})
	if !errors.Is(err, syscall.ENOSPC) || len(files.Content()) != 0 {
		t.Errorf("%v, and there is %v", err, namesOf(files.Content()))
	}
}

// Whatever fails, the write that needed it fails, and nothing is written after that.
func TestNothingIsWrittenAfterAFailure(t *testing.T) {
	for number := 0; ; number++ {
		files, seen, failed := waltest.New(nil), 0, false
		files.Fault = func(op *waltest.Op) error {
			if failed && op.Synced {
				t.Errorf("fault %d: a frame was written after it", number)
			}
			if seen++; seen == number+1 {
				failed = true
				return syscall.EIO
			}
			return nil
		}
		dir := t.TempDir()
		l, err := Open(dir, Options{Files: files, FileSize: testFile})
		for i := uint64(1); err == nil && i < 15; i++ {
			if err = l.StoreLog(&raft.Log{Index: i, Term: 1}); err == nil && i%5 == 0 {
				err = l.DeleteRange(1, i-2)
			}
			l.making.Wait()
		}
		if l != nil {
			for range 2 { // the first one may begin a file
				again := l.Set([]byte("a"), nil)
				if again == nil && err != nil {
					t.Errorf("fault %d: a write after %v", number, err)
				}
				err = again
				l.making.Wait()
			}
			l.Close()
		}
		if !failed {
			if number < 20 {
				t.Errorf("only %d things can fail: the test misses its aim", number)
			}
			return
		}
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("fault %d comes to %v", number, err)
		}
	}
}

// A log whose directory is another's for a second writes nothing that is acknowledged, and makes and removes nothing.
func TestTheDirectoryIsAnothers(t *testing.T) { synctest.Test(t, theDirectoryIsAnothers) }

func theDirectoryIsAnothers(t *testing.T) {
	var taken atomic.Bool
	held := func() error {
		if taken.Load() {
			return errTaken
		}
		return nil
	}
	for what, do := range map[string]func(l *Log) error{
		"an entry":         func(l *Log) error { return l.StoreLog(&raft.Log{Index: 4, Term: 1}) },
		"a large entry":    func(l *Log) error { return l.StoreLog(&raft.Log{Index: 4, Term: 1, Data: make([]byte, 2*testFile)}) },
		"a value":          func(l *Log) error { return l.SetUint64([]byte("a"), 1) },
		"a cut":            func(l *Log) error { return l.DeleteRange(3, 3) },
		"all entries gone": func(l *Log) error { return l.DeleteRange(1, 3) },
	} {
		taken.Store(false)
		files, dir := waltest.New(nil), t.TempDir()
		l, err := Open(dir, Options{Files: files, FileSize: testFile, Held: held})
		if err != nil {
			t.Fatal(err)
		}
		for i := uint64(1); i <= 3; i++ {
			if err := errors.Join(l.StoreLog(&raft.Log{Index: i, Term: 1}), l.next()); err != nil {
				t.Fatal(err)
			}
		}
		taken.Store(true)
		time.Sleep(askEach)
		names := fmt.Sprint(namesOf(files.Content()))
		if err := do(l); !errors.Is(err, errTaken) {
			t.Errorf("%s: %v", what, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := Open(dir, Options{Files: files, FileSize: testFile, Held: held}); !errors.Is(err, errTaken) {
			t.Errorf("%s: opened: %v", what, err)
		}
		if now := fmt.Sprint(namesOf(files.Content())); now != names {
			t.Errorf("%s: there is %s, and was %s", what, now, names)
		}
	}
}

var errTaken = errors.New("the directory was replaced")

// Files go as soon as they have no entry that counts, the oldest first, and values stay.
func TestFilesGo(t *testing.T) {
	files := waltest.New(nil)
	l := openTrace(t, files)
	if err := l.Set([]byte("vote"), []byte("a")); err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); l.current.number < 6; i++ {
		if err := errors.Join(l.StoreLog(&raft.Log{Index: i, Term: 1}), l.next()); err != nil {
			t.Fatal(err)
		}
	}
	keep := l.segments[3]
	at := l.first
	for l.known[at-l.first].in != keep {
		at++
	}
	if err := l.DeleteRange(1, at-1); err != nil {
		t.Fatal(err)
	}
	if is := namesOf(files.Content()); fmt.Sprint(is) != fmt.Sprint([]string{nameOf(4), nameOf(5), nameOf(6), nameOf(7)}) {
		t.Errorf("there is %v", is)
	}
	if l.Bytes() != 4*testFile {
		t.Errorf("they have %d bytes", l.Bytes())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := Open(l.dir, Options{Files: files, FileSize: testFile})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if value, err := l.Get([]byte("vote")); string(value) != "a" || err != nil {
		t.Errorf("the value is %q, %v", value, err)
	}
	if first, err := l.FirstIndex(); first != at || err != nil {
		t.Errorf("the first entry is %d, want %d, %v", first, at, err)
	}
	if filepath.Base(l.segments[0].name) != nameOf(4) {
		t.Errorf("the first file is %s", l.segments[0].name)
	}
}
