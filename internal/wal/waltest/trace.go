// Package waltest has files in memory for the tests of whoever keeps a log or snapshots: what a power loss, a kill or a full
// disk leaves of them at any moment can be made.
package waltest

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing/fstest"
	"unsafe"
)

const (
	// Sector is what a disk writes in one piece.
	Sector = 512

	// block is what a file takes room in, and a synced write has whole ones of: as wal's.
	block = 4096
)

// Trace is files in memory that remember all that was done to them. It is a wal.Files. What is not a method is to be set
// while nobody uses the files.
type Trace struct {
	Begun int                // how many operations made what was there at first
	Fault func(op *Op) error // may be nil; what it refuses is not done
	Lies  bool               // a sync does nothing
	Quota bool               // nobody is told of SetRoom: the file system says that there is plenty

	mu    sync.Mutex
	names map[string]*inode
	ops   []Op
	room  int64 // see SetRoom
}

// inode is a file, whatever its name is.
type inode struct{ content []byte }

// The kinds of Op.
const (
	Link    = "link" // the file gets the name Path
	Empty   = "empty"
	Write   = "write"
	Sync    = "sync"
	Rename  = "rename" // the file loses the name From, and gets Path
	Remove  = "remove"
	SyncDir = "syncdir" // the names in the directory Path are on disk; empty: all are
)

// Op is an operation on files.
type Op struct {
	Kind       string
	Path, From string // of a write or a sync the name that the file was opened by
	Data       []byte // that is written
	Synced     bool   // a write that is on disk when it returns

	node *inode
	at   int64
}

// New returns files that are on disk.
func New(content map[string][]byte) *Trace {
	t := &Trace{names: map[string]*inode{}}
	for path, content := range content {
		node := &inode{}
		t.do(Op{Kind: Link, node: node, Path: path})
		t.do(Op{Kind: Write, node: node, Path: path, Data: content})
		t.do(Op{Kind: Sync, node: node, Path: path})
	}
	t.do(Op{Kind: SyncDir})
	t.Begun = len(t.ops)
	return t
}

// do notes an operation and does it. The caller holds mu.
func (t *Trace) do(op Op) error {
	if t.Fault != nil {
		if err := t.Fault(&op); err != nil {
			return err
		}
	}
	if op.Kind == Write && t.room > 0 {
		before := int64(len(op.node.content))
		if grown := wholeBlocks(max(op.at+int64(len(op.Data)), before)) - wholeBlocks(before); grown > t.room-t.used() {
			return syscall.ENOSPC
		}
	}
	if t.Lies && (op.Kind == Sync || op.Kind == SyncDir) {
		return nil
	}
	op.Synced = op.Synced && !t.Lies
	t.ops = append(t.ops, op)
	apply(&op, t.names, op.node)
	return nil
}

func wholeBlocks(size int64) int64 { return (size + block - 1) / block * block }

// used returns how many bytes all files have. The caller holds mu.
func (t *Trace) used() (bytes int64) {
	for _, node := range t.names {
		bytes += wholeBlocks(int64(len(node.content)))
	}
	return bytes
}

// Used returns how many bytes all files have, in whole blocks.
func (t *Trace) Used() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used()
}

// SetRoom says how many bytes all files may have together, in whole blocks; 0 is any number.
func (t *Trace) SetRoom(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.room = bytes
}

// SetFault sets Fault while the files are in use.
func (t *Trace) SetFault(fault func(op *Op) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Fault = fault
}

// Free is how much room there is, as datadir.Free tells it of a disk.
func (t *Trace) Free(string) (bytes int64, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Quota {
		return 1 << 40, true
	}
	return t.room - t.used(), t.room > 0
}

// Change changes a file as a disk does that has a fault: nobody has asked for it.
func (t *Trace) Change(path string, change func(content []byte)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(t.names[path].content)
}

// apply does an operation to names and node.
func apply(op *Op, names map[string]*inode, node *inode) {
	switch op.Kind {
	case Link:
		names[op.Path] = node
	case Empty:
		node.content = nil
	case Write:
		node.write(op.at, op.Data)
	case Rename:
		if names[op.From] == node {
			delete(names, op.From)
		}
		names[op.Path] = node
	case Remove:
		delete(names, op.Path)
	}
}

func (n *inode) write(at int64, data []byte) {
	if end := int(at) + len(data); end > len(n.content) {
		n.content = append(n.content, make([]byte, end-len(n.content))...)
	}
	copy(n.content[at:], data)
}

// Count returns how many operations there were.
func (t *Trace) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.ops)
}

// Since returns the operations from number cut on.
func (t *Trace) Since(cut int) []Op {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.ops[cut:])
}

// Content returns the files as the process sees them.
func (t *Trace) Content() map[string][]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return contentOf(t.names)
}

func contentOf(names map[string]*inode) map[string][]byte {
	files := map[string][]byte{}
	for path, node := range names {
		files[path] = bytes.Clone(node.content)
	}
	return files
}

// Moved returns files below one directory as those below another.
func Moved(files map[string][]byte, from, to string) map[string][]byte {
	moved := map[string][]byte{}
	for path, content := range files {
		moved[to+strings.TrimPrefix(path, from)] = content
	}
	return moved
}

// Killed returns what a process finds that is started after another was killed during operation cut: that is done as
// well, but for a sync, and no more of it all is on disk than was.
func (t *Trace) Killed(cut int) *Trace {
	t.mu.Lock()
	defer t.mu.Unlock()
	next, nodes := &Trace{names: map[string]*inode{}, Lies: t.Lies, Quota: t.Quota, room: t.room}, map[*inode]*inode{}
	for i, op := range t.ops[:min(cut+1, len(t.ops))] {
		if op.node != nil {
			if nodes[op.node] == nil {
				nodes[op.node] = &inode{}
			}
			op.node = nodes[op.node]
		}
		if i == cut && (op.Kind == Sync || op.Kind == SyncDir) {
			break
		}
		op.Synced = op.Synced && i < cut
		next.ops = append(next.ops, op)
		apply(&op, next.names, op.node)
	}
	next.Begun = len(next.ops)
	return next
}

// Image returns what may be on the disk when the power is lost during operation cut: all that was synced before, and of
// the rest any part, sector by sector and name by name.
func (t *Trace) Image(cut int, random *rand.Rand) map[string][]byte {
	t.mu.Lock()
	ops := t.ops[:min(cut+1, len(t.ops))]
	t.mu.Unlock()
	synced, dirs, allDirs := map[*inode]int{}, map[string]int{}, -1
	for i, op := range ops[:min(cut, len(ops))] {
		switch {
		case op.Kind == Sync:
			synced[op.node] = i
		case op.Kind == SyncDir && op.Path == "":
			allDirs = i
		case op.Kind == SyncDir:
			dirs[op.Path] = i
		}
	}
	names, nodes := map[string]*inode{}, map[*inode]*inode{}
	mood := random.IntN(4) // drop all that may go, keep all, or toss
	kept := func() bool { return mood == 1 || mood > 1 && random.IntN(2) == 0 }
	for i := range ops {
		op := &ops[i]
		node := nodes[op.node]
		if node == nil && op.node != nil {
			node = &inode{}
			nodes[op.node] = node
		}
		last, written := synced[op.node]
		switch {
		case op.Kind == Sync || op.Kind == SyncDir:
		case op.Kind == Write && (written && i < last || op.Synced && i < cut):
			apply(op, names, node)
		case op.Kind == Write:
			for from := 0; from < len(op.Data); from += Sector {
				if kept() {
					node.write(op.at+int64(from), op.Data[from:min(from+Sector, len(op.Data))])
				}
			}
		case op.Kind == Empty && written && i < last, op.Kind != Empty && i < max(allDirs, dirs[filepath.Dir(op.Path)]), kept():
			apply(op, names, node)
		}
	}
	return contentOf(names)
}

// List implements wal.Files. There is no other directory than those that files are below.
func (t *Trace) List(dir string) ([]fs.DirEntry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := fstest.MapFS{}
	for path := range t.names {
		if below, ok := strings.CutPrefix(path, dir+string(filepath.Separator)); ok {
			all[filepath.ToSlash(below)] = &fstest.MapFile{}
		}
	}
	return all.ReadDir(".")
}

// A handle is a file that is written, and one that is read. Its name stands for what wal calls File and Reader.
type handle = interface {
	io.WriterAt
	Sync() error
	Close() error
}

type reader = interface {
	io.ReadSeekCloser
	io.ReaderAt
}

// Create implements wal.Files.
func (t *Trace) Create(path string) (handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := t.names[path]
	op := Op{Kind: Empty, node: node, Path: path}
	if node == nil {
		node = &inode{}
		op = Op{Kind: Link, node: node, Path: path}
	}
	return &file{trace: t, node: node, path: path}, t.do(op)
}

// OpenSynced implements wal.Files.
func (t *Trace) OpenSynced(path string) (handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := t.names[path]
	if node == nil {
		return nil, fs.ErrNotExist
	}
	return &file{trace: t, node: node, path: path, synced: true}, nil
}

// Open implements wal.Files.
func (t *Trace) Open(path string) (reader, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := t.names[path]
	if node == nil {
		return nil, fs.ErrNotExist
	}
	return &file{trace: t, node: node, path: path}, nil
}

// Rename implements wal.Files.
func (t *Trace) Rename(from, to string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(Op{Kind: Rename, node: t.names[from], From: from, Path: to})
}

// Remove implements wal.Files.
func (t *Trace) Remove(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(Op{Kind: Remove, Path: path})
}

// Same implements wal.Files.
func (t *Trace) Same(opened reader) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := opened.(*file); t.names[f.path] != f.node {
		return fmt.Errorf("%s is another file", f.path)
	}
	return nil
}

// SyncDir implements wal.Files.
func (t *Trace) SyncDir(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(Op{Kind: SyncDir, Path: path})
}

// file is a file that is open.
type file struct {
	trace  *Trace
	node   *inode
	path   string
	synced bool
	at     int64 // of whoever reads
}

func (f *file) WriteAt(b []byte, at int64) (int, error) {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	if f.synced && (len(b)%block != 0 || at%block != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%block != 0) {
		return 0, syscall.EINVAL
	}
	if err := f.trace.do(Op{Kind: Write, node: f.node, Path: f.path, at: at, Data: bytes.Clone(b), Synced: f.synced}); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (f *file) ReadAt(b []byte, at int64) (int, error) {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	return bytes.NewReader(f.node.content).ReadAt(b, at)
}

func (f *file) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.at)
	f.at += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (f *file) Seek(at int64, whence int) (is int64, err error) {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	from := bytes.NewReader(f.node.content)
	if whence == io.SeekCurrent {
		at, whence = at+f.at, io.SeekStart
	}
	f.at, err = from.Seek(at, whence)
	return f.at, err
}

func (f *file) Sync() error {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	return f.trace.do(Op{Kind: Sync, node: f.node, Path: f.path})
}

func (f *file) Close() error { return nil }
