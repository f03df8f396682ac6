package wal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
)

// DefaultFileSize is Options.FileSize if that is 0: 4,094 small frames.
const DefaultFileSize = 16 << 20

// leastFile has a header, and two frames.
const leastFile = 3 * block

// Options say how a log is kept. The zero value will do.
type Options struct {
	// Files is what the log does with files; nil is the operating system's.
	Files Files
	// FileSize is how many bytes a file has; 0 is DefaultFileSize. One with a larger frame is as large as that takes.
	FileSize int64
	// Held is asked before a file is made, renamed or removed, and once a second after a write, whether the directory is still
	// the one that was opened; nil: nobody else could have it. The files themselves the log looks after.
	Held func() error
	// Look says that nothing is to be written: neither by Open nor later.
	Look bool
	// Logger is told where the next file can't be made; nil discards.
	Logger *slog.Logger
}

// Log is a log in the files of a directory. All writes are on disk when they return. What fails is final: nothing is
// written any more, for what is on disk is not known then. Its methods may be called from many goroutines.
type Log struct {
	dir    string
	files  Files
	size   int64
	held   func() error
	log    *slog.Logger
	id     uint64
	torn   int64 // see Torn
	making sync.WaitGroup

	deleting sync.Mutex // one DeleteRange at a time

	writing sync.Mutex   // of whoever writes:
	at      int64        // where in it the next frame goes
	number  uint64       // of the last frame
	room    []byte       // for a frame, reused; aligned
	next    func() error // waits for the file after current, which is made while that is filled
	asked   time.Time    // when Held was asked behind a write
	failed  error

	mu sync.RWMutex // of whoever reads; who writes has writing as well
	state
	current  *segment   // the last file that has a frame
	segments []*segment // all files, in order; the last one is current or has no frame
}

// errNotFound is what hashicorp/raft knows by its text.
var errNotFound = errors.New("not found")

// Open opens the log in a directory, or makes one, and reads all of it. It refuses a log that is damaged, or of which
// something is missing that a later frame follows: see ErrDamaged. Of the end a crash may leave a frame that is not
// whole: it was never acknowledged, and is dropped.
func Open(dir string, o Options) (*Log, error) {
	l := &Log{dir: dir, files: FilesOr(o.Files), held: o.Held, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	l.size = max(wholeBlocks(cmp.Or(o.FileSize, DefaultFileSize)), leastFile)
	l.values = map[string][]byte{}
	if l.held == nil {
		l.held = func() error { return nil }
	}
	if !o.Look {
		if err := datadir.Make(dir, l.files.SyncDir); err != nil {
			return nil, err
		}
	}
	if err := l.recover(o.Look); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Voted reports whether the log in a directory is that of a node of a cluster, which knows in which term it is, and last is
// its last index. That of a store without peers has entries, and no term. It reads all of it, and changes nothing.
func Voted(dir string) (voted bool, last uint64, err error) {
	l, err := Open(dir, Options{Look: true})
	if err != nil {
		return false, 0, err
	}
	_, unknown := l.Get([]byte("CurrentTerm")) // hashicorp/raft's
	last, err = l.LastIndex()
	return unknown == nil, last, errors.Join(err, l.Close())
}

// append writes a frame of the records that are appended by whom it is given, and carries it out. An error of that is
// no failure: nothing was written. Without a record there is no frame.
func (l *Log) append(records func([]byte) ([]byte, error)) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.failed != nil {
		return l.failed
	}
	frame, err := records(append(l.room[:0], make([]byte, frameHeader)...))
	if err == nil && len(frame) > mostFrame {
		err = fmt.Errorf("%d bytes are more than the log takes at once, which is %d", len(frame), mostFrame)
	}
	if err != nil || len(frame) == frameHeader {
		return err
	}
	frame = aligned(frame)
	l.room = frame[:0]
	if l.failed = l.makeRoom(wholeBlocks(int64(len(frame)))); l.failed == nil {
		l.failed = l.write(frame)
	}
	return l.failed
}

// makeRoom goes on with the next file if a frame does not fit into the current one. Where it is larger than a file,
// that is made as large.
func (l *Log) makeRoom(frame int64) error {
	if l.at+frame <= l.current.size {
		return nil
	}
	if err := l.next(); err != nil {
		return err
	}
	next, need := l.newest(), block+wholeBlocks(int64(len(l.head())))+frame
	if next.size < need {
		l.mu.Lock()
		l.segments = l.segments[:len(l.segments)-1]
		l.mu.Unlock()
		if err := inOrder(next.close, func() error { return l.create(next.number, need) }); err != nil {
			return err
		}
	}
	full := l.current.write
	l.current.write = nil
	return inOrder(full.Close, l.enter)
}

// enter goes on with the last file, which has no frame.
func (l *Log) enter() error {
	next := l.newest()
	l.mu.Lock()
	l.current, l.at = next, block
	l.mu.Unlock()
	err := l.write(aligned(l.head()))
	if err == nil {
		l.makeNext()
	}
	return err
}

// head returns the first frame of a file, which lacks its header: what the frames before it come to.
func (l *Log) head() []byte {
	b := appendBounds(make([]byte, frameHeader), l.first, l.last)
	for key, value := range l.values {
		b = appendRecord(b, recordValue, &raft.Log{Extensions: []byte(key), Data: value})
	}
	return b
}

// makeNext makes the file after the current one. If it can't be made, nothing more is written, though there is room
// in this one.
func (l *Log) makeNext() {
	number := l.current.number + 1
	next := sync.OnceValue(func() error { return l.create(number, l.size) })
	l.next = next
	l.making.Go(func() {
		if err := next(); err != nil {
			l.log.Error("the next log file can't be created", "error", l.fail(err))
		}
	})
}

// fail has nothing be written any more, and returns why.
func (l *Log) fail(err error) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.failed = cmp.Or(l.failed, err)
	return l.failed
}

// Held returns an error unless what is written goes to the directory and the file of it that were opened.
func (l *Log) Held() error {
	l.mu.RLock()
	current := l.current
	l.mu.RUnlock()
	if err := l.held(); err != nil || current == nil {
		return err
	}
	return l.files.Same(current.read)
}

// askEach is how often Held is asked behind a write at most.
const askEach = time.Second

// there is Held for each write. The file's name, which leads through the directories above it, is followed each time; what Held asks
// beside that takes some microseconds more.
func (l *Log) there() error {
	now := time.Now()
	if now.Sub(l.asked) < askEach && l.files.Same(l.current.read) == nil {
		return nil
	}
	l.asked = now
	return l.Held()
}

// write makes a frame durable, and carries it out.
func (l *Log) write(frame []byte) error {
	l.number++
	l.current.seal(frame, l.number)
	whole := frame[:wholeBlocks(int64(len(frame)))]
	if _, err := l.current.write.WriteAt(whole, l.at); err != nil {
		return err
	}
	if err := l.there(); err != nil { // who has what is there now may have acknowledged something else
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.take(frame, l.current, l.at)
	l.at += int64(len(whole))
	return err
}

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore: entries that follow one another and the last one, in one frame. They are all
// there after a crash, or none is. When they were appended is not kept.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	return l.append(func(b []byte) ([]byte, error) {
		last := l.last
		for i, e := range entries {
			if e.Index == 0 || e.Index != last+1 && (last != 0 || i > 0) {
				return nil, fmt.Errorf("entry %d can't follow entry %d", e.Index, last)
			}
			b, last = appendRecord(b, recordEntry, e), e.Index
		}
		return b, nil
	})
}

// DeleteRange implements raft.LogStore: a range from the first entry on, or one up to the last. Files that have no
// other entry go.
func (l *Log) DeleteRange(least, most uint64) error {
	l.deleting.Lock()
	defer l.deleting.Unlock()
	err := l.append(func(b []byte) ([]byte, error) {
		switch {
		case least > most || most < l.first || least > l.last:
			return b, nil
		case least <= l.first && most >= l.last:
			return appendBounds(b, 0, 0), nil
		case least <= l.first:
			return appendBounds(b, most+1, l.last), nil
		case most >= l.last:
			return appendBounds(b, l.first, least-1), nil
		}
		return nil, fmt.Errorf("entries %d to %d can't be deleted from the middle of %d to %d", least, most, l.first, l.last)
	})
	if err == nil {
		err = l.drop()
	}
	return err
}

// drop removes the files before the one with the first entry. Each is off the disk before the next one goes.
func (l *Log) drop() error {
	l.mu.Lock()
	needed := l.current
	if len(l.known) > 0 {
		needed = l.known[0].in
	}
	n := slices.Index(l.segments, needed)
	gone := l.segments[:n]
	l.segments = slices.Clone(l.segments[n:])
	l.mu.Unlock()
	for _, s := range gone {
		err := inOrder(l.Held, func() error { return l.files.Same(s.read) }, s.close,
			func() error { return l.files.Remove(l.path(s.name)) }, func() error { return l.files.SyncDir(l.dir) })
		if err != nil {
			return l.fail(err)
		}
	}
	return nil
}

// GetLog implements raft.LogStore.
func (l *Log) GetLog(index uint64, entry *raft.Log) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if index < l.first || index > l.last || l.last == 0 {
		return raft.ErrLogNotFound
	}
	is := l.known[index-l.base]
	record := make([]byte, is.size)
	if err := is.in.readAt(record, int64(is.at)); err != nil {
		return err
	}
	if crc32.Checksum(record, castagnoli) != is.sum {
		return fmt.Errorf("%s: %w: entry %d, at byte %d, is not what was written", l.path(is.in.name), ErrDamaged, index, is.at)
	}
	_, *entry, _ = firstRecord(record)
	return nil
}

// FirstIndex implements raft.LogStore.
func (l *Log) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.first, nil
}

// LastIndex implements raft.LogStore.
func (l *Log) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.last, nil
}

// IsMonotonic implements raft.MonotonicLogStore.
func (l *Log) IsMonotonic() bool { return true }

// Set implements raft.StableStore. Each value is written again with each file: they are to be few and short.
func (l *Log) Set(key, value []byte) error {
	return l.append(func(b []byte) ([]byte, error) {
		return appendRecord(b, recordValue, &raft.Log{Extensions: key, Data: value}), nil
	})
}

// Get implements raft.StableStore.
func (l *Log) Get(key []byte) ([]byte, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	value, ok := l.values[string(key)]
	if !ok {
		return nil, errNotFound
	}
	return slices.Clone(value), nil
}

// SetUint64 implements raft.StableStore.
func (l *Log) SetUint64(key []byte, value uint64) error {
	return l.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 implements raft.StableStore.
func (l *Log) GetUint64(key []byte) (uint64, error) {
	value, err := l.Get(key)
	if err == nil && len(value) != 8 {
		err = fmt.Errorf("the value of %q has %d bytes, and is no number", key, len(value))
	}
	return binary.BigEndian.Uint64(append(value, make([]byte, 8)...)), err
}

// Torn returns how many bytes there were behind the last frame when the log was opened, zeros at their end not counted: a write
// that a crash cut off, or frames that the disk has lost. They are no part of the log.
func (l *Log) Torn() int64 { return l.torn }

// Bytes returns how many bytes the files have.
func (l *Log) Bytes() (n int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, s := range l.segments {
		n += s.size
	}
	return n
}

// Close closes the files. It waits for a write that is under way, and for a file that is made.
func (l *Log) Close() error {
	_ = l.fail(os.ErrClosed)
	l.making.Wait()
	l.deleting.Lock()
	defer l.deleting.Unlock()
	return l.closeFiles()
}

func (l *Log) closeFiles() (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.segments {
		err = errors.Join(err, s.close())
	}
	l.state, l.segments = state{values: map[string][]byte{}}, nil
	return err
}
