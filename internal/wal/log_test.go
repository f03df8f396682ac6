package wal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"fencepost/internal/wal/waltest"
)

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
	_ raft.StableStore       = (*Log)(nil)
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What can't be done is refused, changes nothing, and ends nothing.
func TestWhatIsRefused(t *testing.T) {
	l := openTrace(t, waltest.New(nil))
	store := func(indexes ...uint64) error {
		var entries []*raft.Log
		for _, index := range indexes {
			entries = append(entries, &raft.Log{Index: index, Term: 1})
		}
		return l.StoreLogs(entries)
	}
	if err := errors.Join(store(), store(5, 6, 7, 8), l.Set([]byte("short"), []byte("a"))); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"a gap":                        store(10),
		"one that is there":            store(8),
		"a gap within":                 store(9, 11),
		"a part of the middle":         l.DeleteRange(6, 7),
		"a number that is none":        func() error { _, err := l.GetUint64([]byte("short")); return err }(),
		"a value that there is not":    func() error { _, err := l.Get([]byte("none")); return err }(),
		"a number that there is not":   func() error { _, err := l.GetUint64([]byte("none")); return err }(),
		"an entry before the first":    l.GetLog(4, &raft.Log{}),
		"an entry behind the last one": l.GetLog(9, &raft.Log{}),
	} {
		if err == nil {
			t.Errorf("%s is no error", what)
		}
	}
	before := l.number
	for _, r := range [][2]uint64{{1, 4}, {9, 20}, {8, 6}} {
		if err := l.DeleteRange(r[0], r[1]); err != nil || l.number != before {
			t.Errorf("entries %d to %d, which there are not: %v", r[0], r[1], err)
		}
	}
	if err := errors.Join(store(9), l.DeleteRange(1, 100)); err != nil {
		t.Error(err)
	}
	if err := store(0); err == nil {
		t.Error("there is an entry 0")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{"an entry": store(10), "a value": l.Set(nil, nil), "a cut": l.DeleteRange(1, 2)} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after the end: %v", what, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// On a disk, who reads beside who writes and who deletes reads what was written.
func TestReadersBesideWriters(t *testing.T) {
	l, err := Open(filepath.Join(t.TempDir(), "made", "for", "it"), Options{FileSize: 16 * block})
	if err != nil {
		t.Fatal(err)
	}
	data := func(index uint64) []byte {
		return bytes.Repeat(fmt.Appendf(nil, "%d.", index), 1+int(index*index%3000))
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for i := range uint64(3) {
		readers.Go(func() {
			random := rand.New(rand.NewPCG(i, 0))
			for {
				select {
				case <-done:
					return
				default:
				}
				first, _ := l.FirstIndex()
				last, _ := l.LastIndex()
				if last == 0 {
					continue
				}
				if l.Bytes() < 16*block {
					t.Error("the files have less than one")
				}
				at := last - min(random.Uint64N(5), last-first) // near the end, where what follows is written
				var e raft.Log
				switch err := l.GetLog(at, &e); {
				case errors.Is(err, raft.ErrLogNotFound): // it was deleted since
				case err != nil || e.Index != at || !bytes.Equal(e.Data, data(at)):
					t.Errorf("entry %d: %v", at, err)
					return
				}
			}
		})
	}
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := range uint64(300) {
			if err := l.SetUint64([]byte("term"), i); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := uint64(1); i <= 300; i++ {
		err := l.StoreLog(&raft.Log{Index: i, Term: 1, Data: data(i)})
		if err == nil && i%50 == 0 {
			writers.Go(func() {
				if err := l.DeleteRange(1, i-20); err != nil {
					t.Error(err)
				}
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	writers.Wait()
	close(done)
	readers.Wait()
	if first, err := l.FirstIndex(); first != 281 || err != nil {
		t.Errorf("the first entry is %d, %v", first, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkStoreLogs is an append of entries, in one frame.
func BenchmarkStoreLogs(b *testing.B) {
	for _, c := range []struct{ entries, size int }{{1, 300}, {1, 16 << 10}, {64, 300}} {
		b.Run(fmt.Sprintf("%d of %d bytes", c.entries, c.size), func(b *testing.B) {
			l, err := Open(b.TempDir(), Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			data, next := make([]byte, c.size), uint64(1)
			entries := make([]*raft.Log, c.entries)
			b.ReportAllocs()
			for b.Loop() {
				for i := range entries {
					entries[i] = &raft.Log{Index: next, Term: 1, Data: data}
					next++
				}
				if err := l.StoreLogs(entries); err != nil {
					b.Fatal(err)
				}
				if next%4096 < uint64(c.entries) {
					if err := l.DeleteRange(1, next-1000); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// What stands behind the last frame is measured, and is no part of the log.
func TestTorn(t *testing.T) {
	dir := t.TempDir()
	torn := func() int64 {
		t.Helper()
		l, err := Open(dir, Options{FileSize: testFile})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.next(); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return l.Torn()
	}
	for range 2 {
		if n := torn(); n != 0 {
			t.Errorf("of a whole log %d bytes are torn", n)
		}
	}
	for _, c := range []struct {
		file     string
		at, size int64
	}{{"0000000001.log", 2*block + 100, 101}, {"0000000002.log", block + 5, testFile - 2*block + 6}} {
		f, err := os.OpenFile(filepath.Join(dir, c.file), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{1}, c.at); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if n := torn(); n != c.size {
			t.Errorf("%s, byte %d: %d bytes are torn, and %d stand there", c.file, c.at, n, c.size)
		}
	}
}
