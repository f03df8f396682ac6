package raft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
)

// An entry has a checksum in what hashicorp/raft leaves to middleware: raft-wal itself does
// not notice when what it has written changes.

// sealed returns an entry with its checksum.
func sealed(entry *raft.Log) *raft.Log {
	with := *entry
	with.Extensions = binary.BigEndian.AppendUint32(make([]byte, 0, crc32.Size), checksumOf(entry))
	return &with
}

// unseal takes the checksum off again.
func unseal(entry *raft.Log) error {
	if len(entry.Extensions) != crc32.Size || checksumOf(entry) != binary.BigEndian.Uint32(entry.Extensions) {
		return errChanged
	}
	entry.Extensions = nil
	return nil
}

func checksumOf(entry *raft.Log) uint32 {
	head := binary.BigEndian.AppendUint64(make([]byte, 0, 17), entry.Index)
	head = append(binary.BigEndian.AppendUint64(head, entry.Term), byte(entry.Type))
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, entry.Data)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errChanged = errors.New("it is not what was written")

// diskLog is the log and the vote of a node, in files. What fails is final: nothing is
// written any more, for what is on disk is not known, and a write that is repeated may be
// taken for durable though the one before it is lost.
type diskLog struct {
	dir  string
	disk walStore
	meta io.Closer
	fail func(error)       // the node can't go on
	held func() error      // looks whether dir is still the one that was opened; nil if nobody else could have it
	cut  func(from uint64) // the log ends before an entry that it had; nil: nobody asks

	// members are those that the log ends with as it was opened; empty if it says nothing of them.
	members raft.Configuration

	mu     sync.Mutex
	cause  error
	writes map[int]time.Time // those under way, and when they began
	begun  int
	pace   pace
	closed chan struct{}
	close  sync.Once
}

// walStore is what a diskLog needs of raft-wal.
type walStore interface {
	raft.LogStore
	raft.StableStore
	io.Closer
}

var _ raft.MonotonicLogStore = (*diskLog)(nil)

// segmentSize is how much of the log a file has.
const segmentSize = 16 << 20

// openLog opens or makes the log in a directory. It fails if any entry is damaged.
func openLog(dir string, logger hclog.Logger, segment int, wrap func(walStore) walStore, fail func(error)) (*diskLog, error) {
	return openLogIn(fs.New(), dir, logger, segment, wrap, fail)
}

// openLogIn is openLog with the files of its own choice.
func openLogIn(vfs types.VFS, dir string, logger hclog.Logger, segment int, wrap func(walStore) walStore, fail func(error)) (*diskLog, error) {
	meta, files := &metadb.BoltMetaDB{}, newSegments(dir, vfs)
	err := files.completeLast(meta)
	var w *wal.WAL
	if err == nil {
		w, err = wal.Open(dir, wal.WithMetaStore(meta), wal.WithLogger(logger), wal.WithSegmentSize(segment), wal.WithSegmentFiler(files))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the log in %s can't be opened: %w", dir, err), meta.Close())
	}
	l := &diskLog{dir: dir, disk: w, meta: meta, fail: fail, writes: map[int]time.Time{}, closed: make(chan struct{})}
	failed := func(err error) { l.ended(l.explained(err)) }
	files.failed.Store(&failed)
	if wrap != nil {
		l.disk = wrap(w)
	}
	if err := l.check(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// check reads all of the log.
func (l *diskLog) check() error {
	first, err := l.disk.FirstIndex()
	if err != nil {
		return l.explained(err)
	}
	last, err := l.disk.LastIndex()
	if err != nil {
		return l.explained(err)
	}
	for at := max(first, 1); at <= last; at++ {
		var entry raft.Log
		if err := l.read(at, &entry); err != nil {
			return err
		}
		if entry.Type == raft.LogConfiguration {
			l.members = raft.DecodeConfiguration(entry.Data)
		}
	}
	return nil
}

func (l *diskLog) read(index uint64, entry *raft.Log) error {
	err := l.disk.GetLog(index, entry)
	switch {
	case errors.Is(err, raft.ErrLogNotFound):
		return err
	case err != nil:
	case entry.Index == index:
		err = unseal(entry)
	default:
		err = fmt.Errorf("it is entry %d", entry.Index)
	}
	if err != nil {
		return fmt.Errorf("entry %d of the log in %s is damaged: %w", index, l.dir, err)
	}
	return nil
}

func (l *diskLog) explained(err error) error {
	if errors.Is(err, types.ErrSealed) { // raft-wal has logged why, and says here only that the file is full
		err = fmt.Errorf("its next file could not be made; the disk may be full (%w)", err)
	}
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
	err := l.read(index, entry)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		l.ended(err)
		l.halt()
	}
	return err
}

// StoreLog implements raft.LogStore.
func (l *diskLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l *diskLog) StoreLogs(entries []*raft.Log) error {
	all := make([]*raft.Log, len(entries))
	for i, entry := range entries {
		all[i] = sealed(entry)
	}
	return l.write(true, func() error { return l.disk.StoreLogs(all) })
}

// DeleteRange implements raft.LogStore.
func (l *diskLog) DeleteRange(least, most uint64) error {
	if last, err := l.disk.LastIndex(); err == nil && most >= last && l.cut != nil {
		l.cut(least)
	}
	return l.write(false, func() error { return l.disk.DeleteRange(least, most) })
}

// write has do write. How long it takes is noted for entries alone: a vote and a cut are other work.
func (l *diskLog) write(entries bool, do func() error) error {
	write, err := l.beginWrite()
	if err != nil {
		return err
	}
	if l.held != nil {
		err = l.held()
	}
	if err == nil {
		err = do()
	}
	l.endWrite(write, entries && err == nil)
	if err != nil {
		return l.ended(l.explained(err))
	}
	return nil
}

func (l *diskLog) beginWrite() (write int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		return 0, l.cause
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
	return errors.Join(l.disk.Close(), l.meta.Close())
}
