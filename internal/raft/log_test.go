package raft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/wal"
)

// failingDisk is a disk that fails from when fails is set.
type failingDisk struct {
	walStore
	fails *atomic.Bool
}

var errDisk = errors.New("the disk fails")

func (d failingDisk) StoreLogs(entries []*raft.Log) error {
	if d.fails.Load() {
		return errDisk
	}
	return d.walStore.StoreLogs(entries)
}

func (d failingDisk) Set(key, value []byte) error {
	if d.fails.Load() {
		return errDisk
	}
	return d.walStore.Set(key, value)
}

func (d failingDisk) SetUint64(key []byte, value uint64) error {
	if d.fails.Load() {
		return errDisk
	}
	return d.walStore.SetUint64(key, value)
}

// diskOf lets a test fail the disk of a node.
func diskOf(of int, fails *atomic.Bool) func(int, *Options) {
	return func(i int, o *Options) {
		if i == of {
			o.wrapLog = func(w walStore) walStore { return failingDisk{w, fails} }
		}
	}
}

// unreadable is a disk whose entries can't be read from when fails is set.
type unreadable struct {
	walStore
	fails *atomic.Bool
}

func (d unreadable) GetLog(index uint64, entry *raft.Log) error {
	if d.fails.Load() {
		return errDisk
	}
	return d.walStore.GetLog(index, entry)
}

// A leader whose log can't be read any more ends: hashicorp/raft sends what it reads to the others in goroutines that wait for each other.
func TestALeaderThatCanNotReadItsLogEnds(t *testing.T) {
	t.Parallel()
	var fails [3]atomic.Bool
	c := newCluster(t, 3, func(i int, o *Options) {
		o.wrapLog = func(w walStore) walStore { return unreadable{w, &fails[i]} }
	})
	leader := c.awaitLeader()
	at := slices.Index(c.nodes, leader)
	for i := range 20 { // so that it sends them in a pipeline
		if _, err := c.nodes[(at+1)%3].Do(t.Context(), acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	fails[at].Store(true)
	asking, stop := context.WithCancel(t.Context())
	var asks sync.WaitGroup
	asks.Go(func() {
		for i := 0; asking.Err() == nil; i++ {
			_, _ = c.nodes[(at+1)%3].Do(asking, acquire(fencing.Name(fmt.Sprint("m", i)), time.Minute)) // until it fails
		}
	})
	awaitFailure(t, leader)
	stop()
	asks.Wait()
	closed := make(chan error, 1)
	go func() { closed <- leader.Close() }()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("a node that has failed does not end")
	}
}

// A disk that fails while a node starts has it not start: it does not wait for ever.
func TestADiskThatFailsAtAStart(t *testing.T) {
	t.Parallel()
	var fails atomic.Bool
	c := newCluster(t, 1, diskOf(0, &fails))
	n := c.nodes[0]
	n.Close()
	fails.Store(true)
	again := n.options
	l := listen(t, "127.0.0.1:0")
	defer l.Close()
	again.Self.Address, again.Members = l.Addr().String(), nil
	again.Network = &hubNetwork{l, c.hub, again.Self.Address}
	opened := make(chan error, 1)
	go func() {
		s, err := Open(again)
		if err == nil {
			<-s.Failed()
			err = errors.Join(s.Cause(), s.Close())
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		if !errors.Is(err, errDisk) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a start does not end")
	}
}

func awaitFailure(t *testing.T, n *node) {
	t.Helper()
	select {
	case <-n.Failed():
	case <-time.After(60 * time.Second):
		t.Fatal("the node goes on")
	}
}

// After a write that failed no other one reaches the disk: it might be taken for durable
// though the one before it is lost.
func TestNothingIsWrittenAfterAFailure(t *testing.T) {
	var fails atomic.Bool
	var failed error
	l, err := openLog(t.TempDir(), wal.Options{}, func(w walStore) walStore { return failingDisk{w, &fails} }, func(err error) { failed = err })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fails.Store(true)
	if err := l.StoreLog(&raft.Log{Index: 1, Term: 1}); !errors.Is(err, errDisk) || failed == nil {
		t.Errorf("a write that fails: %v, told %v", err, failed)
	}
	fails.Store(false)
	if err := l.StoreLog(&raft.Log{Index: 1, Term: 1}); !errors.Is(err, errDisk) {
		t.Errorf("a write after one that failed: %v", err)
	}
	if last, err := l.LastIndex(); err != nil || last != 0 {
		t.Errorf("the log ends with %d, %v", last, err)
	}
}

// A flush that fails is never answered as success, and ends the node: also when the disk
// comes back.
func TestAFailedFlushIsFinal(t *testing.T) {
	var fails atomic.Bool
	c := newCluster(t, 1, diskOf(0, &fails))
	n := c.nodes[0]
	if _, err := n.Do(t.Context(), acquire("a", time.Minute)); err != nil {
		t.Fatal(err)
	}
	fails.Store(true)
	if _, err := n.Do(t.Context(), acquire("b", time.Minute)); code(err) != fencing.CodeUnavailable || !errors.Is(err, errDisk) {
		t.Errorf("an acquire that could not be written: %v", err)
	}
	awaitFailure(t, n)
	if cause := n.Cause(); !errors.Is(cause, errDisk) || !strings.Contains(cause.Error(), n.options.Dir) {
		t.Errorf("the cause is %v; it is to name the directory", cause)
	}
	fails.Store(false)
	for what, err := range map[string]error{
		"Check":  n.Check(t.Context()),
		"Expire": func() error { _, err := n.Expire(t.Context(), 1); return err }(),
	} {
		if code(err) != fencing.CodeUnavailable {
			t.Errorf("%s after a flush failed: %v", what, err)
		}
	}
}

// A follower whose disk fails does not count: the other two go on, and with a second one
// nothing is granted any more.
func TestAFollowerWhoseDiskFailsDoesNotCount(t *testing.T) {
	t.Parallel()
	var second, third atomic.Bool
	c := newCluster(t, 3, func(i int, o *Options) {
		diskOf(1, &second)(i, o)
		diskOf(2, &third)(i, o)
	})
	second.Store(true)
	if _, err := c.nodes[0].Do(t.Context(), acquire("a", time.Minute)); err != nil {
		t.Fatal(err)
	}
	awaitFailure(t, c.nodes[1])
	if err := c.nodes[1].Check(t.Context()); code(err) != fencing.CodeUnavailable {
		t.Errorf("a node that has failed is ready, by what the leader says: %v", err)
	}
	third.Store(true)
	if _, err := c.nodes[0].Do(t.Context(), acquire("b", time.Minute)); code(err) != fencing.CodeUnavailable {
		t.Errorf("an acquire that only the leader has on disk: %v", err)
	}
}

// flip changes one bit of a file.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// A node whose log was changed does not start, and says where.
func TestADamagedLogIsRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	name := fencing.Name("marked.in.the.log")
	for range 3 { // what is damaged is not the end, of which nobody knows whether it was whole
		r := acquire(name, time.Minute)
		if _, err := n.Do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Do(t.Context(), fencing.ReleaseRequest{Name: name, Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
	}
	n.Close()
	file := filepath.Join(n.options.Dir, "log", "0000000001.log")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(b), string(name))
	flip(t, file, int64(at))
	n.options.Network = &hubNetwork{listen(t, n.options.Self.Address), c.hub, n.options.Self.Address}
	s, err := Open(n.options)
	if err == nil {
		s.Close()
		t.Fatal("a node with a damaged log starts")
	}
	n.options.Network.Close()
	if !errors.Is(err, wal.ErrDamaged) || !strings.Contains(err.Error(), file) {
		t.Errorf("the error is %v; it is to name the file", err)
	}
}

// A node whose log raft-wal kept, in an earlier version, does not start, and changes nothing.
func TestALogOfAnEarlierVersionIsRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	n.Close()
	o := n.options
	o.Dir, o.Network = t.TempDir(), &hubNetwork{listen(t, o.Self.Address), c.hub, o.Self.Address}
	defer o.Network.Close()
	path := filepath.Join(o.Dir, "log", "wal-meta.db")
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("a"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(o); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("it says %v", err)
		s.Close()
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("there is %v, %v", left, err)
	}
}

// The log is read again after its end was cut off, once or twice, and after it went on.
func TestEndOfLogCutOff(t *testing.T) {
	dir := t.TempDir()
	open := func() *diskLog {
		t.Helper()
		l, err := openLog(dir, wal.Options{}, nil, func(err error) { t.Error(err) })
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

// The data of a member does not start as a node at another address: it may be a copy, and then there
// would be two that vote as one. A node without other members may move.
func TestDataOfAnotherAddress(t *testing.T) {
	for size, moves := range map[int]bool{1: true, 3: false} {
		c := newCluster(t, size, nil)
		n := c.nodes[size-1]
		if _, err := n.Do(t.Context(), acquire("a", time.Minute)); err != nil {
			t.Fatal(err)
		}
		open := func() error {
			moved := n.options
			l := listen(t, "127.0.0.1:0")
			moved.Self.Address, moved.Members = l.Addr().String(), nil
			moved.Network = &hubNetwork{l, c.hub, moved.Self.Address}
			s, err := Open(moved)
			if err != nil {
				return errors.Join(err, l.Close())
			}
			return s.Close()
		}
		n.Close()
		if err := open(); (err == nil) != moves {
			t.Errorf("one of %d at another address, by its log: %v", size, err)
		}
		c.reopen(size - 1)
		leader := c.awaitLeader()
		if _, err := n.Do(t.Context(), acquire("b", time.Minute)); err != nil {
			t.Fatal(err)
		}
		last, _ := leader.fsm.lastDigest()
		n.fsm.await(last, t.Context().Done())
		if err := n.raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		n.Close()
		forgetMembers(t, n.options.Dir)
		if err := open(); (err == nil) != moves {
			t.Errorf("one of %d at another address, by its snapshot: %v", size, err)
		}
	}
}

// largeDisk is a disk on which the log has so many bytes.
type largeDisk struct {
	walStore
	bytes *int64
}

func (d largeDisk) Bytes() int64 { return *d.bytes }

// A log whose files have grown is told of once, and again when they have grown as much again, or since some went.
func TestALargeLogIsTold(t *testing.T) {
	var bytes int64
	l, err := openLog(t.TempDir(), wal.Options{}, func(w walStore) walStore { return largeDisk{w, &bytes} }, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	told, index := 0, uint64(0)
	l.grown = func() { told++ }
	for i, step := range []struct {
		bytes int64
		told  int
	}{{32 << 20, 0}, {grownBytes - 1, 0}, {grownBytes, 1}, {grownBytes + 1, 1}, {2 * grownBytes, 2}, {48 << 20, 2}, {grownBytes + 47<<20, 2}, {grownBytes + 48<<20, 3}} {
		bytes = step.bytes
		index++
		if err := l.StoreLog(&raft.Log{Index: index, Term: 1}); err != nil {
			t.Fatal(err)
		}
		if told != step.told {
			t.Errorf("step %d: it was told %d times, want %d", i, told, step.told)
		}
	}
}

// The members that a log ends with are known when it is opened.
func TestTheMembersInALog(t *testing.T) {
	dir := t.TempDir()
	members := configurationOf([]Member{{"a", "a:1"}, {"b", "b:1"}})
	for _, want := range []int{0, 2} {
		l, err := openLog(dir, wal.Options{}, nil, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		if len(l.members.Servers) != want {
			t.Errorf("the members are %v, want %d", l.members, want)
		}
		last, err := l.LastIndex()
		if err != nil {
			t.Fatal(err)
		}
		err = l.StoreLogs([]*raft.Log{
			{Index: last + 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(members)}, {Index: last + 2, Term: 1},
		})
		if err := errors.Join(err, l.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// forgetMembers leaves the last entry of a log, so that the snapshot alone says who the members are.
func forgetMembers(t *testing.T, dir string) {
	t.Helper()
	w, err := wal.Open(logsIn(dir), wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := w.FirstIndex()
	last, errLast := w.LastIndex()
	if err = errors.Join(err, errLast); err == nil {
		err = w.DeleteRange(first, last-1)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
}
