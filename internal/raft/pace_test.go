package raft

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/wal"
)

// What a disk takes is told by most of its last writes, and not by one, nor by old ones.
func TestPace(t *testing.T) {
	const slow, quick = 1500 * time.Millisecond, time.Millisecond
	of := func(each ...time.Duration) []time.Duration { return each }
	var many []time.Duration
	for range paced {
		many = append(many, slow)
	}
	for _, c := range []struct {
		what  string
		took  []time.Duration // one a second
		later time.Duration
		want  time.Duration
		known bool
	}{
		{"nothing", nil, 0, 0, false},
		{"seven", many[:7], 0, 0, false},
		{"eight", append(of(slow, quick, quick), many[:5]...), 0, slow, true},
		{"two that are slow", of(quick, quick, slow, quick, quick, slow, quick, quick), 0, quick, true},
		{"many, and then quick ones", append(many, many[0], quick, quick, quick, quick, quick, quick, quick, quick, quick), 0, quick, true},
		{"old ones", many, pacedFor, 0, false},
		{"some that are old", many, pacedFor - 8*time.Second, slow, true},
	} {
		var p pace
		now := time.Unix(1, 0)
		for _, took := range c.took {
			now = now.Add(time.Second)
			p.note(took, now)
		}
		if took, known := p.median(now.Add(c.later)); took != c.want || known != c.known {
			t.Errorf("%s: %s, %t; want %s, %t", c.what, took, known, c.want, c.known)
		}
	}
}

// Votes, cuts and writes that fail say nothing of how long a write takes.
func TestOnlyEntriesThatAreWrittenArePaced(t *testing.T) {
	var fails atomic.Bool
	l, err := openLog(t.TempDir(), wal.Options{}, func(w walStore) walStore { return failingDisk{w, &fails} }, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	noted := func(want int) {
		t.Helper()
		n := 0
		for _, ended := range l.pace.ended {
			if !ended.IsZero() {
				n++
			}
		}
		if n != want {
			t.Errorf("%d writes are noted, want %d", n, want)
		}
	}
	for i := uint64(1); i <= 3; i++ {
		if err := l.StoreLog(&raft.Log{Index: i, Term: 1}); err != nil {
			t.Fatal(err)
		}
	}
	noted(3)
	if err := errors.Join(l.Set([]byte("vote"), []byte("a")), l.SetUint64([]byte("term"), 1), l.DeleteRange(3, 3)); err != nil {
		t.Fatal(err)
	}
	noted(3)
	fails.Store(true)
	if l.StoreLog(&raft.Log{Index: 3, Term: 1}) == nil {
		t.Fatal("the disk does not fail")
	}
	noted(3)
}

// slowDisk is a disk on which each write of entries takes longer.
type slowDisk struct {
	walStore
	by *atomic.Int64 // nanoseconds
}

func (d slowDisk) StoreLogs(entries []*raft.Log) error {
	time.Sleep(time.Duration(d.by.Load()))
	return d.walStore.StoreLogs(entries)
}

// A node knows how long its disk takes: while that is slow, after it was, and while a write does not end.
func TestDiskTime(t *testing.T) {
	var by atomic.Int64
	var hangs atomic.Pointer[chan error]
	c := newCluster(t, 1, func(_ int, o *Options) {
		o.Election = 200 * time.Millisecond
		o.wrapLog = func(w walStore) walStore { return hangingDisk{slowDisk{w, &by}, &hangs} }
	})
	n := c.nodes[0]
	letGo := make(chan error)
	goOn := sync.OnceFunc(func() { hangs.Store(nil); close(letGo) })
	t.Cleanup(goOn) // before the node is closed, which waits for its writes
	serves(t, n, "before")
	const slow = 400 * time.Millisecond
	by.Store(int64(slow))
	write := func(until string, is func(took time.Duration, known bool) bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i := 0; ; i++ {
			took, known := n.DiskTime()
			if is(took, known) {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("a write takes %s, %t, and not %s", took, known, until)
			}
			short, stop := context.WithTimeout(ctx, time.Second)
			_, _ = n.Do(short, acquire(fencing.Name(fmt.Sprint(until, ".", i)), time.Hour))
			stop()
		}
	}
	write("slow", func(took time.Duration, known bool) bool { return known && took >= slow })
	by.Store(0)
	write("quick", func(took time.Duration, known bool) bool { return known && took < slow })
	hangs.Store(&letGo)
	write("hung", func(took time.Duration, known bool) bool { return known && took >= stallsFor*n.election })
	goOn()
	write("quick.again", func(took time.Duration, known bool) bool { return known && took < slow })
}
