package raft

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
)

// The log is read again after its end was cut off, once or twice, and after it went on.
func TestEndOfLogCutOff(t *testing.T) {
	dir := t.TempDir()
	open := func() *diskLog {
		t.Helper()
		l, err := openLog(dir, hclog.NewNullLogger(), segmentSize, nil, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	written := map[uint64]string{}
	write := func(l *diskLog, from, to uint64, by string) {
		t.Helper()
		for at := from; at <= to; at++ {
			written[at] = fmt.Sprint(by, at)
			if err := l.StoreLog(&raft.Log{Index: at, Term: 1, Data: []byte(written[at])}); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := open()
	write(l, 1, 10, "a")
	for _, step := range []struct{ cut, last uint64 }{{8, 12}, {3, 5}, {5, 4}, {1, 2}} {
		last, err := l.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.DeleteRange(step.cut, last); err != nil {
			t.Fatal(err)
		}
		write(l, step.cut, step.last, fmt.Sprint("after ", step.cut, ": "))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = open()
		if last, err := l.LastIndex(); err != nil || last != step.last {
			t.Fatalf("cut at %d: the last entry is %d, want %d, %v", step.cut, last, step.last, err)
		}
		for at := uint64(1); at <= step.last; at++ {
			var entry raft.Log
			if err := l.GetLog(at, &entry); err != nil || string(entry.Data) != written[at] {
				t.Errorf("cut at %d: entry %d is %q, want %q, %v", step.cut, at, entry.Data, written[at], err)
			}
		}
		if err := l.GetLog(step.last+1, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("cut at %d: what was cut off is there: %v", step.cut, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// fullDisk has no room for files any more, once it is full: they are made, and are empty.
type fullDisk struct {
	types.VFS
	full bool
}

func (d *fullDisk) Create(dir, name string, size uint64) (types.WritableFile, error) {
	if !d.full {
		return d.VFS.Create(dir, name, size)
	}
	f, err := d.VFS.Create(dir, name, 0)
	if err != nil {
		return nil, err
	}
	return nil, errors.Join(&os.PathError{Op: "fallocate", Path: name, Err: syscall.ENOSPC}, f.Close())
}

// A log whose next file has no room ends with that, not with what raft-wal says of the file before it. So does the next
// start while there is none, and after that the file is made as large as any.
func TestAFullDiskIsTold(t *testing.T) {
	const size = 1 << 20
	dir, disk := t.TempDir(), &fullDisk{VFS: fs.New()}
	failed := make(chan error, 1)
	open := func() (*diskLog, error) {
		return openLogIn(disk, dir, hclog.NewNullLogger(), size, nil, func(err error) {
			select {
			case failed <- err:
			default:
			}
		})
	}
	l, err := open()
	if err != nil {
		t.Fatal(err)
	}
	disk.full = true
	last := uint64(0)
	for ; err == nil; last++ {
		if last > 1000 {
			t.Fatal("a file of 1 MiB has 1,000 entries of 10 KiB")
		}
		err = l.StoreLog(&raft.Log{Index: last + 1, Term: 1, Data: make([]byte, 10<<10)})
	}
	last-- // the one that failed
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, again := open()
	if again == nil {
		defer l.Close()
		t.Fatal("a log begins whose last file has no room")
	}
	for what, err := range map[string]error{"the write": err, "the end": <-failed, "the next start": again} {
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(fmt.Sprint(err), "of 1 MiB: make some") {
			t.Errorf("%s: %v", what, err)
		}
	}
	disk.full = false
	if l, err = open(); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.StoreLog(&raft.Log{Index: last + 1, Term: 1}); err != nil {
		t.Error(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(files) != 2 {
		t.Fatalf("the log has the files %q, %v", files, err)
	}
	for _, path := range files {
		if info, err := os.Stat(path); err != nil || info.Size() < size {
			t.Errorf("%s has not all its room: %v, %v", path, info, err)
		}
	}
}

// sealedDisk is one on which the last file could not be followed by another, for another reason.
type sealedDisk struct{ walStore }

func (sealedDisk) StoreLogs([]*raft.Log) error { return types.ErrSealed }

// Of a log that can't have its next file nothing is said that only who knows raft-wal understands.
func TestASealedFileIsExplained(t *testing.T) {
	l, err := openLog(t.TempDir(), hclog.NewNullLogger(), segmentSize, func(w walStore) walStore { return sealedDisk{w} }, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = l.StoreLog(&raft.Log{Index: 1, Term: 1})
	if !errors.Is(err, types.ErrSealed) || !strings.Contains(err.Error(), "its next file could not be made; the disk may be full") {
		t.Error(err)
	}
}

// deadMeta is what a process that dies has written of the next file of the log: nothing.
type deadMeta struct {
	types.MetaStore
	dead bool
}

func (m *deadMeta) CommitState(s types.PersistentState) error {
	if m.dead {
		return syscall.ENOSPC
	}
	return m.MetaStore.CommitState(s)
}

// A log goes on whose node died after its last file was full, and before raft-wal had noted that, also where a part of
// what was written last, and so the index of the file with it, is not there.
func TestALastFileThatIsFull(t *testing.T) {
	for _, torn := range []bool{false, true} {
		t.Run(fmt.Sprint("torn: ", torn), func(t *testing.T) { lastFileThatIsFull(t, torn) })
	}
}

func lastFileThatIsFull(t *testing.T, torn bool) {
	t.Helper()
	dir, store := t.TempDir(), &metadb.BoltMetaDB{}
	meta := &deadMeta{MetaStore: store}
	w, err := wal.Open(dir, wal.WithMetaStore(meta), wal.WithLogger(hclog.NewNullLogger()), wal.WithSegmentSize(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	meta.dead = true
	last := uint64(0)
	for ; err == nil; last++ {
		err = w.StoreLog(sealed(&raft.Log{Index: last + 1, Term: 1, Data: bytes.Repeat([]byte{byte(last + 1)}, 10<<10)}))
	}
	last--
	if err := errors.Join(w.Close(), store.Close()); err != nil {
		t.Fatal(err)
	}
	if torn {
		files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		content, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		content[bytes.Index(content, bytes.Repeat([]byte{byte(last)}, 100))]++
		if err := os.WriteFile(files[0], content, 0o600); err != nil {
			t.Fatal(err)
		}
		last--
	}
	for range 2 {
		l, err := openLog(dir, hclog.NewNullLogger(), 1<<20, nil, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		if has, err := l.LastIndex(); has != last || err != nil {
			t.Fatalf("the last entry is %d, want %d, %v", has, last, err)
		}
		last++
		if err := l.StoreLog(&raft.Log{Index: last, Term: 1}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
