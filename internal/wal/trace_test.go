package wal

import (
	"bytes"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
)

// sector is what a disk writes in one piece.
const sector = 512

// times returns how often something is done: often with FENCEPOST_LONG.
func times(usually, long int) int {
	if os.Getenv("FENCEPOST_LONG") != "" {
		return long
	}
	return usually
}

// trace is files in memory that remember all that was done to them, so that what a power loss at any moment would leave
// can be made: an image.
type trace struct {
	mu    sync.Mutex
	names map[string]*inode
	ops   []fileOp
	begun int                    // how many of them made what was there at first
	fault func(op *fileOp) error // may be nil; what it refuses is not done
	lies  bool                   // a sync does nothing
	room  int64                  // how many bytes all files may have together, in whole blocks; 0 is any number
}

// inode is a file, whatever its name is.
type inode struct{ content []byte }

// The kinds of fileOp.
const (
	opLink   = "link" // node gets the name path
	opEmpty  = "empty"
	opWrite  = "write"
	opSync   = "sync"
	opRename = "rename" // node loses the name from, and gets path
	opRemove = "remove"
	opDir    = "syncdir" // every name is on disk
)

type fileOp struct {
	kind       string
	node       *inode
	path, from string
	at         int64
	data       []byte
	synced     bool // a write that is on disk when it returns
}

// newTrace returns files that are on disk.
func newTrace(content map[string][]byte) *trace {
	t := &trace{names: map[string]*inode{}}
	for path, content := range content {
		node := &inode{}
		t.do(fileOp{kind: opLink, node: node, path: path})
		t.do(fileOp{kind: opWrite, node: node, data: content})
		t.do(fileOp{kind: opSync, node: node})
	}
	t.do(fileOp{kind: opDir})
	t.begun = len(t.ops)
	return t
}

// do notes an operation and does it. The caller holds mu.
func (t *trace) do(op fileOp) error {
	if t.fault != nil {
		if err := t.fault(&op); err != nil {
			return err
		}
	}
	if op.kind == opWrite && t.room > 0 {
		before := int64(len(op.node.content))
		if grown := wholeBlocks(max(op.at+int64(len(op.data)), before)) - wholeBlocks(before); grown > t.room-t.used() {
			return syscall.ENOSPC
		}
	}
	if t.lies && (op.kind == opSync || op.kind == opDir) {
		return nil
	}
	op.synced = op.synced && !t.lies
	t.ops = append(t.ops, op)
	apply(&op, t.names, op.node)
	return nil
}

// used returns how many bytes all files have. The caller holds mu.
func (t *trace) used() (bytes int64) {
	for _, node := range t.names {
		bytes += wholeBlocks(int64(len(node.content)))
	}
	return bytes
}

// apply does an operation to names and node.
func apply(op *fileOp, names map[string]*inode, node *inode) {
	switch op.kind {
	case opLink:
		names[op.path] = node
	case opEmpty:
		node.content = nil
	case opWrite:
		node.write(op.at, op.data)
	case opRename:
		if names[op.from] == node {
			delete(names, op.from)
		}
		names[op.path] = node
	case opRemove:
		delete(names, op.path)
	}
}

func (n *inode) write(at int64, data []byte) {
	if end := int(at) + len(data); end > len(n.content) {
		n.content = append(n.content, make([]byte, end-len(n.content))...)
	}
	copy(n.content[at:], data)
}

func (t *trace) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.ops)
}

// content returns the files as the process sees them.
func (t *trace) content() map[string][]byte {
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

// killed returns what a process finds that is started after another was killed during operation cut: that is done as
// well, but for a sync, and no more of it all is on disk than was.
func (t *trace) killed(cut int) *trace {
	t.mu.Lock()
	defer t.mu.Unlock()
	next, nodes := &trace{names: map[string]*inode{}, lies: t.lies, begun: t.begun}, map[*inode]*inode{}
	for i, op := range t.ops[:min(cut+1, len(t.ops))] {
		if op.node != nil {
			if nodes[op.node] == nil {
				nodes[op.node] = &inode{}
			}
			op.node = nodes[op.node]
		}
		if i == cut && (op.kind == opSync || op.kind == opDir) {
			break
		}
		op.synced = op.synced && i < cut
		next.ops = append(next.ops, op)
		apply(&op, next.names, op.node)
	}
	next.begun = len(next.ops)
	return next
}

// image returns what may be on the disk when the power is lost during operation cut: all that was synced before, and of
// the rest any part, sector by sector and name by name.
func (t *trace) image(cut int, random *rand.Rand) map[string][]byte {
	t.mu.Lock()
	ops := t.ops[:min(cut+1, len(t.ops))]
	t.mu.Unlock()
	synced, dirSynced := map[*inode]int{}, -1
	for i, op := range ops[:min(cut, len(ops))] {
		switch op.kind {
		case opSync:
			synced[op.node] = i
		case opDir:
			dirSynced = i
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
		case op.kind == opSync || op.kind == opDir:
		case op.kind == opWrite && (written && i < last || op.synced && i < cut):
			apply(op, names, node)
		case op.kind == opWrite:
			for from := 0; from < len(op.data); from += sector {
				if kept() {
					node.write(op.at+int64(from), op.data[from:min(from+sector, len(op.data))])
				}
			}
		case op.kind == opEmpty && written && i < last, op.kind != opEmpty && i < dirSynced, kept():
			apply(op, names, node)
		}
	}
	return contentOf(names)
}

func (t *trace) List(dir string) ([]fs.DirEntry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := fstest.MapFS{}
	for path := range t.names {
		all[filepath.Base(path)] = &fstest.MapFile{}
	}
	return all.ReadDir(".")
}

func (t *trace) Create(path string) (File, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := t.names[path]
	op := fileOp{kind: opEmpty, node: node}
	if node == nil {
		node = &inode{}
		op = fileOp{kind: opLink, node: node, path: path}
	}
	return &tracedFile{trace: t, node: node}, t.do(op)
}

func (t *trace) OpenSynced(path string) (File, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := t.names[path]
	if node == nil {
		return nil, fs.ErrNotExist
	}
	return &tracedFile{trace: t, node: node, synced: true}, nil
}

func (t *trace) Open(path string) (Reader, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := t.names[path]
	if node == nil {
		return nil, fs.ErrNotExist
	}
	return &tracedFile{trace: t, node: node}, nil
}

func (t *trace) Rename(from, to string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(fileOp{kind: opRename, node: t.names[from], from: from, path: to})
}

func (t *trace) Remove(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(fileOp{kind: opRemove, path: path})
}

func (t *trace) SyncDir(string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(fileOp{kind: opDir})
}

type tracedFile struct {
	io.ReadSeeker // has the content at no time
	trace         *trace
	node          *inode
	synced        bool
}

func (f *tracedFile) WriteAt(b []byte, at int64) (int, error) {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	if f.synced && (len(b)%block != 0 || at%block != 0 || inBlock(b) != 0) {
		return 0, syscall.EINVAL
	}
	return len(b), f.trace.do(fileOp{kind: opWrite, node: f.node, at: at, data: bytes.Clone(b), synced: f.synced})
}

func (f *tracedFile) ReadAt(b []byte, at int64) (int, error) {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	return bytes.NewReader(f.node.content).ReadAt(b, at)
}

func (f *tracedFile) Seek(at int64, whence int) (int64, error) {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	return bytes.NewReader(f.node.content).Seek(at, whence)
}

func (f *tracedFile) Sync() error {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	return f.trace.do(fileOp{kind: opSync, node: f.node})
}

func (f *tracedFile) Close() error { return nil }

// openTrace opens the log in files.
func openTrace(t *testing.T, files *trace) *Log {
	t.Helper()
	l, err := Open(t.TempDir(), Options{Files: files, FileSize: testFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// names returns the names of files, in order.
func namesOf(content map[string][]byte) (names []string) {
	for path := range content {
		names = append(names, filepath.Base(path))
	}
	slices.Sort(names)
	return names
}
