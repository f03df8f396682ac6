package raft

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
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

// full makes no files any more.
type full struct{ types.SegmentFiler }

func (full) Create(types.SegmentInfo) (types.SegmentWriter, error) {
	return nil, &os.PathError{Op: "fallocate", Path: "x.wal", Err: syscall.ENOSPC}
}

// A log whose next file has no room ends with that, not with what raft-wal says of the file before it.
func TestAFullDiskIsTold(t *testing.T) {
	failed := make(chan error, 1)
	l, err := openLog(t.TempDir(), hclog.NewNullLogger(), 1<<20, nil, func(err error) {
		select {
		case failed <- err:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.files.SegmentFiler = full{l.files.SegmentFiler}
	for index := uint64(1); err == nil; index++ {
		if index > 1000 {
			t.Fatal("a file of 1 MiB has 1,000 entries of 10 KiB")
		}
		err = l.StoreLog(&raft.Log{Index: index, Term: 1, Data: make([]byte, 10<<10)})
	}
	for what, err := range map[string]error{"the write": err, "the end": <-failed} {
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "of 1 MiB: make some") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
