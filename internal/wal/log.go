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
	"sync/atomic"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
)

// DefaultFileSize is Options.FileSize if that is 0: 4,094 small frames.
const DefaultFileSize = 16 << 20

// leastFile has a header, and two frames.
const leastFile = 3 * block

// Options say how a log is kept. The zero value will do.
type Options struct {
	Files    Files        // what the log does with files; nil: the operating system's
	FileSize int64        // of a file, in bytes; 0: DefaultFileSize. One with a larger frame is as large as that takes
	Held     func() error // asked before a file is made, renamed or removed, and after each write, whether the directory is still the one that was opened; nil: nobody else could have it
	Logger   *slog.Logger // nil discards
}

// Log is a log in the files of a directory. All writes are on disk when they return. What fails is final: nothing is
// written any more, for what is on disk is not known then. Its methods may be called from many goroutines.
type Log struct {
	dir   string
	files Files
	size  int64
	held  func() error
	log   *slog.Logger
	id    uint64
	bytes atomic.Int64

	deleting sync.Mutex // one DeleteRange at a time

	writing sync.Mutex // of whoever writes:
	current *segment
	at      int64  // where in it the next frame goes
	number  uint64 // of the last frame
	room    []byte // for a frame, reused; aligned
	ahead   *making
	failed  error

	mu sync.RWMutex // of whoever reads; who writes has writing as well
	state
	segments []*segment // up to the current one
}

// making is a file that is made while the one before it is filled.
type making struct {
	done    chan struct{} // closed when it is made
	segment *segment
	err     error
}

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
	_ raft.StableStore       = (*Log)(nil)
)

// errNotFound is what hashicorp/raft knows by its text.
var errNotFound = errors.New("not found")

// Open opens the log in a directory, or makes one, and reads all of it. It refuses a log that is damaged, or of which
// something is missing that a later frame follows: see ErrDamaged. Of the end a crash may leave a frame that is not
// whole: it was never acknowledged, and is dropped.
func Open(dir string, o Options) (*Log, error) {
	l := &Log{
		dir: dir, files: cmp.Or[Files](o.Files, system{}), size: max(wholeBlocks(cmp.Or(o.FileSize, DefaultFileSize)), leastFile), held: o.Held,
		log: o.Logger, state: state{values: map[string][]byte{}},
	}
	if l.held == nil {
		l.held = func() error { return nil }
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if err := datadir.Make(dir, l.files.SyncDir); err != nil {
		return nil, err
	}
	if err := l.recover(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if l.ahead == nil {
		l.makeAhead()
	}
	return l, nil
}

// append writes a frame of what records appends, and carries it out. An error of records is no failure: nothing was
// written. No frame has no records.
func (l *Log) append(records func([]byte) ([]byte, error)) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.failed != nil {
		return l.failed
	}
	frame, err := records(append(l.room[:0], make([]byte, frameHeader)...))
	if err != nil || len(frame) == frameHeader {
		return err
	}
	if len(frame) > mostFrame {
		return fmt.Errorf("%d bytes are more than the log takes at once, which is %d", len(frame), mostFrame)
	}
	frame = aligned(frame)
	l.room = frame[:0]
	l.failed = l.makeRoom(wholeBlocks(int64(len(frame))))
	if l.failed == nil {
		l.failed = l.write(frame)
	}
	return l.failed
}

// makeRoom goes on with the next file if a frame does not fit into the current one. Where it is larger than a file, that
// is made as large.
func (l *Log) makeRoom(frame int64) error {
	full := l.at+frame > l.current.size
	select {
	case <-l.ahead.done: // if it can't be made, that is told while there is still room
	default:
		if !full {
			return nil
		}
		<-l.ahead.done
	}
	next, err := l.ahead.segment, l.ahead.err
	if err != nil || !full {
		return err
	}
	l.ahead = nil
	if need := block + wholeBlocks(int64(len(l.head()))) + frame; next.size < need {
		l.bytes.Add(-next.size)
		if err := next.close(); err != nil {
			return err
		}
		if next, err = l.create(next.number, need); err != nil {
			return err
		}
	}
	err = l.current.write.Close()
	l.current.write = nil
	return errors.Join(err, l.enter(next))
}

// enter goes on with a file that has no frame.
func (l *Log) enter(s *segment) error {
	l.mu.Lock()
	l.segments = append(l.segments, s)
	l.mu.Unlock()
	l.current, l.at = s, block
	if err := l.write(aligned(l.head())); err != nil {
		return err
	}
	l.makeAhead()
	return nil
}

// head returns the first frame of a file, which lacks its header: what the frames before it come to.
func (l *Log) head() []byte {
	b := appendBounds(make([]byte, frameHeader), l.first, l.last)
	for key, value := range l.values {
		b = appendValue(b, key, value)
	}
	return b
}

// makeAhead makes the file after the current one.
func (l *Log) makeAhead() {
	m, number := &making{done: make(chan struct{})}, l.current.number+1
	l.ahead = m
	go func() {
		defer close(m.done)
		if m.segment, m.err = l.create(number, l.size); m.err != nil {
			l.log.Error("the next file of the log can't be made; nothing more is written", "error", m.err)
		}
	}()
}

// write makes a frame durable, and carries it out.
func (l *Log) write(frame []byte) error {
	l.number++
	l.current.seal(frame, l.number)
	whole := frame[:wholeBlocks(int64(len(frame)))]
	if _, err := l.current.write.WriteAt(whole, l.at); err != nil {
		return err
	}
	if err := l.held(); err != nil { // who has what is there now may have acknowledged something else
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
	if len(entries) == 0 {
		return nil
	}
	return l.append(func(b []byte) ([]byte, error) {
		last := cmp.Or(l.last, entries[0].Index-1)
		for _, e := range entries {
			if last++; e.Index != last || last == 0 {
				return nil, fmt.Errorf("entry %d can't be stored as entry %d", e.Index, last)
			}
			b = appendEntry(b, e)
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

// drop removes the files before the one with the first entry.
func (l *Log) drop() error {
	l.mu.Lock()
	needed := l.segments[len(l.segments)-1]
	if len(l.known) > 0 {
		needed = l.known[0].in
	}
	at := slices.Index(l.segments, needed)
	gone := l.segments[:at]
	l.segments = slices.Clone(l.segments[at:])
	l.mu.Unlock()
	for _, s := range gone {
		if err := l.remove(s); err != nil {
			l.writing.Lock()
			defer l.writing.Unlock()
			l.failed = cmp.Or(l.failed, err)
			return err
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
	if _, err := is.in.read.ReadAt(record, int64(is.at)); err != nil {
		return fmt.Errorf("%s, byte %d, entry %d: %w", l.path(is.in.name), is.at, index, err)
	}
	if crc32.Checksum(record, castagnoli) != is.sum {
		return fmt.Errorf("%s: %w: entry %d at byte %d is not what was written", l.path(is.in.name), ErrDamaged, index, is.at)
	}
	*entry = entryIn(record)
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
	return l.append(func(b []byte) ([]byte, error) { return appendValue(b, string(key), value), nil })
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
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(value), nil
}

// Bytes returns how many bytes the files have.
func (l *Log) Bytes() int64 { return l.bytes.Load() }

// Close closes the files. It waits for a write that is under way.
func (l *Log) Close() error {
	l.deleting.Lock()
	defer l.deleting.Unlock()
	l.writing.Lock()
	defer l.writing.Unlock()
	l.failed = cmp.Or(l.failed, error(os.ErrClosed))
	all := l.segments
	if l.ahead != nil {
		if <-l.ahead.done; l.ahead.segment != nil {
			all = append(all, l.ahead.segment)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state, l.segments, l.ahead = state{}, nil, nil
	var err error
	for _, s := range all {
		err = errors.Join(err, s.close())
	}
	return err
}
