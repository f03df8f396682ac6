package raft

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/wal"
)

// diskLog is the log and the vote of a node, in files. What fails is final: nothing is
// written any more, for what is on disk is not known, and a write that is repeated may be
// taken for durable though the one before it is lost.
type diskLog struct {
	dir    string
	disk   walStore
	fail   func(error)       // the node can't go on
	cut    func(from uint64) // the log ends before an entry that it had; nil: nobody asks
	grown  func()            // its files are large; nil: nobody asks
	mark   func() error      // there are entries; nil: nobody asks
	cutOff func()            // who has sent entries that are not stored gets no answer; nil: nobody has

	// members are those that the log ends with as it was opened; empty if it says nothing of them.
	members raft.Configuration
	any     bool // it has entries

	leaves atomic.Bool // it takes in no more entries

	mu     sync.Mutex
	cause  error
	writes map[int]time.Time // those under way, and when they began
	begun  int
	pace   pace
	bytes  int64 // see large
	closed chan struct{}
	close  sync.Once
}

// walStore is what a diskLog needs of a wal.Log.
type walStore interface {
	raft.LogStore
	raft.StableStore
	io.Closer
	Bytes() int64
	Held() error
	Torn() int64
}

var _ raft.MonotonicLogStore = (*diskLog)(nil)

// segmentSize is how much of the log a file has.
const segmentSize = wal.DefaultFileSize

// grownBytes is by how much the files of the log grow before a snapshot takes its place, however little its entries
// say: each write takes 4 KiB at least.
const grownBytes = 128 << 20

// openLog opens or makes the log in a directory. It fails if any of it is damaged.
func openLog(dir string, o wal.Options, wrap func(walStore) walStore, fail func(error)) (*diskLog, error) {
	w, err := wal.Open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("the log in %s can't be opened: %w", dir, err)
	}
	l := &diskLog{dir: dir, disk: w, fail: fail, writes: map[int]time.Time{}, closed: make(chan struct{})}
	if wrap != nil {
		l.disk = wrap(w)
	}
	if err := l.findMembers(); err != nil {
		return nil, errors.Join(l.explained(err), l.Close())
	}
	return l, nil
}

// findMembers looks for the last configuration in the log.
func (l *diskLog) findMembers() error {
	first, err := l.disk.FirstIndex()
	last, errLast := l.disk.LastIndex()
	if err = errors.Join(err, errLast); err != nil {
		return err
	}
	l.any = last > 0
	for at := last; at >= max(first, 1); at-- {
		var entry raft.Log
		if err := l.disk.GetLog(at, &entry); err != nil {
			return err
		}
		if entry.Type == raft.LogConfiguration {
			l.members = raft.DecodeConfiguration(entry.Data)
			return nil
		}
	}
	return nil
}

func (l *diskLog) explained(err error) error {
	return fmt.Errorf("the log in %s can't be written or read: %w", filepath.Clean(l.dir), err)
}

// ended makes an error the cause of the end.
func (l *diskLog) ended(err error) error {
	l.mu.Lock()
	if l.cause == nil {
		l.cause = err
	}
	err = l.cause
	l.mu.Unlock()
	l.fail(err)
	return err
}

// halt ends the goroutine that calls it when the log is closed: hashicorp/raft would end
// the process without a word to its owner.
func (l *diskLog) halt() {
	<-l.closed
	runtime.Goexit()
}

// FirstIndex implements raft.LogStore.
func (l *diskLog) FirstIndex() (uint64, error) { return l.disk.FirstIndex() }

// LastIndex implements raft.LogStore.
func (l *diskLog) LastIndex() (uint64, error) { return l.disk.LastIndex() }

// IsMonotonic implements raft.MonotonicLogStore.
func (l *diskLog) IsMonotonic() bool { return true }

// GetLog implements raft.LogStore.
func (l *diskLog) GetLog(index uint64, entry *raft.Log) error {
	err := l.disk.GetLog(index, entry)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		_ = l.ended(l.explained(err))
		l.halt()
	}
	return err
}

// StoreLog implements raft.LogStore.
func (l *diskLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore. A leader that gets the answer of hashicorp/raft to an error believes that this node lacks the entry before
// as well, and goes back by one: behind the first one that the log has, if that is the only one (see dropOthers), it never finds what they both have.
func (l *diskLog) StoreLogs(entries []*raft.Log) error {
	err := l.write(true, func() error {
		if err := l.disk.StoreLogs(entries); err != nil || l.mark == nil {
			return err
		}
		return l.mark()
	})
	if err != nil && l.cutOff != nil {
		l.cutOff()
	}
	if err == nil && l.large() && l.grown != nil {
		l.grown()
	}
	return err
}

// DeleteRange implements raft.LogStore.
func (l *diskLog) DeleteRange(least, most uint64) error {
	if last, err := l.disk.LastIndex(); err == nil && most >= last && l.cut != nil {
		l.cut(least)
	}
	return l.write(false, func() error { return l.disk.DeleteRange(least, most) })
}

// empty drops all entries, before anybody else uses the log. Its values stay.
func (l *diskLog) empty() error {
	first, err := l.FirstIndex()
	last, errLast := l.LastIndex()
	if err = errors.Join(err, errLast); err == nil {
		err = l.DeleteRange(first, last)
	}
	l.members, l.any = raft.Configuration{}, false
	return err
}

// large reports whether the files have grown by grownBytes since they were the smallest, or since it was so last.
func (l *diskLog) large() bool {
	bytes := l.disk.Bytes()
	l.mu.Lock()
	defer l.mu.Unlock()
	large := bytes >= l.bytes+grownBytes
	if large || bytes < l.bytes {
		l.bytes = bytes
	}
	return large
}

// write has do write. How long it takes is noted for entries alone: a vote and a cut are other work.
func (l *diskLog) write(entries bool, do func() error) error {
	write, err := l.beginWrite(entries)
	if err != nil {
		return err
	}
	err = do()
	l.endWrite(write, entries && err == nil)
	if err != nil {
		return l.ended(l.explained(err))
	}
	return nil
}

func (l *diskLog) beginWrite(entries bool) (write int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.cause != nil:
		return 0, l.cause
	case entries && l.leaves.Load():
		return 0, errLeaves
	}
	l.begun++
	l.writes[l.begun] = time.Now()
	return l.begun, nil
}

func (l *diskLog) endWrite(write int, note bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if note {
		now := time.Now()
		l.pace.note(now.Sub(l.writes[write]), now)
	}
	delete(l.writes, write)
}

// writing reports whether a write is under way.
func (l *diskLog) writing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.writes) > 0
}

// busyFor returns how long the oldest write has been under way; 0 if none is.
func (l *diskLog) busyFor() (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, began := range l.writes {
		longest = max(longest, time.Since(began))
	}
	return longest
}

// Set implements raft.StableStore.
func (l *diskLog) Set(key, value []byte) error {
	err := l.write(false, func() error { return l.disk.Set(key, value) })
	if err != nil {
		l.halt()
	}
	return err
}

// SetUint64 implements raft.StableStore.
func (l *diskLog) SetUint64(key []byte, value uint64) error {
	err := l.write(false, func() error { return l.disk.SetUint64(key, value) })
	if err != nil {
		l.halt()
	}
	return err
}

// Get implements raft.StableStore.
func (l *diskLog) Get(key []byte) ([]byte, error) { return l.disk.Get(key) }

// GetUint64 implements raft.StableStore.
func (l *diskLog) GetUint64(key []byte) (uint64, error) { return l.disk.GetUint64(key) }

// release has the goroutines end that wait in halt. The node is about to stop.
func (l *diskLog) release() { l.close.Do(func() { close(l.closed) }) }

// Close closes the files, once nothing uses them.
func (l *diskLog) Close() error {
	l.release()
	return l.disk.Close()
}
