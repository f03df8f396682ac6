package embedded

import (
	"bytes"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
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

// trace is files in memory that remember all that was done to them, so that what a
// power loss at any moment would leave can be made: an image.
type trace struct {
	mu    sync.Mutex
	names map[string]*inode
	ops   []fileOp
	begun int                    // how many of them made what was there at first
	fault func(op *fileOp) error // may be nil; what it refuses is not done
	lies  bool                   // a sync does nothing
	slow  func(path string)      // may be nil; a create waits for it
	room  int64                  // how many bytes all files may have together, in whole blocks; 0 is any number
	quota bool                   // nobody is told of room: the file system says that there is plenty
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
		grown := wholeBlocks(max(op.at+int64(len(op.data)), int64(len(op.node.content)))) - wholeBlocks(int64(len(op.node.content)))
		if grown > t.room-t.used() {
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

func (t *trace) free(string) (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.quota {
		return 1 << 40, true
	}
	return t.room - t.used(), t.room > 0
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

// asOf returns the files as the process sees them before operation cut.
func (t *trace) asOf(cut int) map[string][]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	names, nodes := map[string]*inode{}, map[*inode]*inode{}
	for i := range t.ops[:cut] {
		op := &t.ops[i]
		node := nodes[op.node]
		if node == nil && op.node != nil {
			node = &inode{}
			nodes[op.node] = node
		}
		apply(op, names, node)
	}
	return contentOf(names)
}

// killed returns what a process finds that is started after another was killed before operation cut: all
// that had been done, and no more of it on disk than was.
func (t *trace) killed(cut int) *trace {
	t.mu.Lock()
	defer t.mu.Unlock()
	next, nodes := &trace{names: map[string]*inode{}, begun: t.begun, room: t.room, quota: t.quota}, map[*inode]*inode{}
	for _, op := range t.ops[:cut] {
		if op.node != nil {
			if nodes[op.node] == nil {
				nodes[op.node] = &inode{}
			}
			op.node = nodes[op.node]
		}
		next.ops = append(next.ops, op)
		apply(&op, next.names, op.node)
	}
	return next
}

// image returns what may be on the disk when the power is lost during operation cut:
// all that was synced before, and of the rest any part, sector by sector and name by
// name.
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

func (t *trace) create(path string) (file, error) {
	if t.slow != nil {
		t.slow(path)
	}
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

func (t *trace) openSynced(path string) (file, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := t.names[path]
	if node == nil {
		return nil, fs.ErrNotExist
	}
	return &tracedFile{trace: t, node: node, synced: true}, nil
}

func (t *trace) open(path string) (readable, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	node := t.names[path]
	if node == nil {
		return nil, fs.ErrNotExist
	}
	return readBytes{bytes.NewReader(bytes.Clone(node.content))}, nil
}

// readBytes is a file that is read as it was when it was opened.
type readBytes struct{ *bytes.Reader }

func (readBytes) Close() error { return nil }

func (t *trace) rename(from, to string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(fileOp{kind: opRename, node: t.names[from], from: from, path: to})
}

func (t *trace) remove(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(fileOp{kind: opRemove, path: path})
}

func (t *trace) syncDir(string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.do(fileOp{kind: opDir})
}

type tracedFile struct {
	trace  *trace
	node   *inode
	synced bool
}

func (f *tracedFile) WriteAt(b []byte, at int64) (int, error) {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	return len(b), f.trace.do(fileOp{kind: opWrite, node: f.node, at: at, data: bytes.Clone(b), synced: f.synced})
}

func (f *tracedFile) Sync() error {
	f.trace.mu.Lock()
	defer f.trace.mu.Unlock()
	return f.trace.do(fileOp{kind: opSync, node: f.node})
}

func (f *tracedFile) Close() error { return nil }
