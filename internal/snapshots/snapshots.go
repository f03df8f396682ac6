// Package snapshots keeps snapshots of a store in a directory, for hashicorp/raft and for a store that has no peers: a
// file each, which is there whole or not at all.
//
//	size of the head (4 bytes), checksum (4), head: CBOR, what the store says
//
// Numbers are big endian. What the store says has checksums of its own.
package snapshots

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/wal"
)

const (
	// suffix ends the name of a snapshot, newSuffix that of one that is being written.
	suffix    = ".snapshot"
	newSuffix = ".new"

	// kept is how many stay, the newest ones.
	kept = 2

	// mostHead bounds the head in bytes: the members of a cluster, and some numbers.
	mostHead = 1 << 20
)

// ErrDamaged is wrapped by what is wrong with a snapshot whose head can't be read.
var ErrDamaged = errors.New("the snapshot is damaged")

// Store is the snapshots in a directory. It implements raft.SnapshotStore.
type Store struct {
	dir   string
	files wal.Files
	held  func() error

	mu     sync.Mutex
	newest wal.Reader // open, so that Held takes no other file for it; nil: there is none
	id     string     // its name

	// Received is asked, where a snapshot up to an entry of a term is begun, whether it comes from elsewhere: its head says so
	// then. nil: it never does.
	Received func(index, term uint64) bool

	By string // the version of the gateway that writes them; empty: they don't say
}

// Head is what a snapshot says of itself.
type Head struct {
	raft.SnapshotMeta
	Received bool   `cbor:",omitempty"` // a leader has sent it: it has entries that the log did not have
	By       string `cbor:",omitempty"` // the version of the gateway that wrote it; empty: not known
}

var _ raft.SnapshotStore = (*Store)(nil)

// Open opens the snapshots in a directory, which is made if it is not there. files are nil for the operating system's. held
// is asked before a file is made, renamed or removed whether the directory is still the one that was opened; nil: nobody else
// could have it. What a process that died had begun to write is removed. It is to be closed.
func Open(dir string, files wal.Files, held func() error) (*Store, error) {
	if held == nil {
		held = func() error { return nil }
	}
	s := &Store{dir: dir, files: wal.FilesOr(files), held: held}
	if err := datadir.Make(dir, s.files.SyncDir); err != nil {
		return nil, err
	}
	all, err := s.files.List(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range all {
		if strings.HasSuffix(entry.Name(), newSuffix) {
			if err := s.held(); err != nil {
				return nil, err
			}
			if err := s.files.Remove(s.path(entry.Name())); err != nil {
				return nil, err
			}
		}
	}
	if err := s.files.SyncDir(dir); err != nil { // who took one may have been killed before its name was on disk
		return nil, err
	}
	names, err := s.names()
	if err != nil || len(names) == 0 {
		return s, err
	}
	return s, s.hold(names[0])
}

// hold has Held be about a snapshot, unless it is about a newer one. The caller holds the mutex, or is alone.
func (s *Store) hold(id string) error {
	f, err := s.files.Open(s.path(id))
	if err != nil {
		return err
	}
	if s.newest != nil && id < s.id {
		return f.Close()
	}
	before := s.newest
	s.newest, s.id = f, id
	if before == nil {
		return nil
	}
	return before.Close()
}

// place gives a snapshot its name.
func (s *Store) place(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.files.Rename(s.path(id+newSuffix), s.path(id)); err != nil {
		return err
	}
	return s.hold(id)
}

// Held returns an error that wraps datadir.ErrGone unless the newest snapshot is still the file that it was: the log alone may not have what that has.
func (s *Store) Held() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		return nil
	}
	return s.files.Same(s.newest)
}

// Close closes the newest snapshot, which Held knows nothing of from then on.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		return nil
	}
	newest := s.newest
	s.newest = nil
	return newest.Close()
}

// Look is the snapshots in a directory, to be looked at: nothing is made there. The directory may be missing.
func Look(dir string, files wal.Files) *Store { return &Store{dir: dir, files: files} }

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// nameOf returns the name of a snapshot: names sort by term and index.
func nameOf(term, index uint64) string { return fmt.Sprintf("%020d-%020d%s", term, index, suffix) }

// isNamed reports whether a name is that of a snapshot. Other files stay where they are, and are none.
func isNamed(name string) bool {
	var term, index uint64
	_, err := fmt.Sscanf(name, "%d-%d"+suffix, &term, &index)
	return err == nil && name == nameOf(term, index)
}

// Newest returns the name of the newest snapshot, whether it can be read or not; empty: there is none.
func (s *Store) Newest() (id string, err error) { return NewestIn(s.dir, s.files) }

// NewestIn is Newest of the snapshots in a directory, which may be missing. It may be asked while another process has them
// open.
func NewestIn(dir string, files wal.Files) (id string, err error) {
	names, err := (&Store{dir: dir, files: files}).names()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil || len(names) == 0 {
		return "", err
	}
	return names[0], nil
}

// names returns those of all snapshots, the newest first.
func (s *Store) names() (names []string, err error) {
	all, err := s.files.List(s.dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range all {
		if isNamed(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(b, a) })
	return names, nil
}

// NewestSize returns how many bytes the newest snapshot in a directory has, 0 if there is none. It may be asked while another
// process has the snapshots open.
func NewestSize(dir string) (int64, error) {
	for {
		newest, err := NewestIn(dir, wal.FilesOr(nil))
		if err != nil || newest == "" {
			return 0, err
		}
		info, err := os.Stat(filepath.Join(dir, newest))
		if errors.Is(err, fs.ErrNotExist) { // newer ones have taken its place
			continue
		}
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
}

// List implements raft.SnapshotStore. One whose head is damaged is not passed over for an older one.
func (s *Store) List() ([]*raft.SnapshotMeta, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var list []*raft.SnapshotMeta
	for _, name := range names {
		meta, from, err := s.Open(name)
		if err != nil {
			return nil, err
		}
		list = append(list, meta)
		if err := from.Close(); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Open implements raft.SnapshotStore.
func (s *Store) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	head, f, err := s.OpenHead(id)
	if err != nil {
		return nil, nil, err
	}
	return &head.SnapshotMeta, f, nil
}

// OpenHead is Open that returns all that a snapshot says of itself.
func (s *Store) OpenHead(id string) (*Head, io.ReadCloser, error) {
	f, err := s.files.Open(s.path(id))
	if err != nil {
		return nil, nil, err
	}
	head, err := readHead(f)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", s.path(id), err), f.Close())
	}
	head.ID = id
	return head, f, nil
}

func readHead(f wal.Reader) (*Head, error) {
	var header [8]byte
	damaged := func(err error) (*Head, error) {
		if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: its head is not what was written", ErrDamaged)
		}
		return nil, err
	}
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return damaged(err)
	}
	size := binary.BigEndian.Uint32(header[:])
	if size > mostHead {
		return damaged(nil)
	}
	content := make([]byte, size)
	if _, err := io.ReadFull(f, content); err != nil {
		return damaged(err)
	}
	if crc32.Checksum(content, castagnoli) != binary.BigEndian.Uint32(header[4:]) {
		return damaged(nil)
	}
	var head Head
	if err := cbor.Unmarshal(content, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	begins := int64(len(header) + len(content))
	end, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(begins, io.SeekStart)
	}
	head.Size = end - begins
	return &head, err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Remove removes a snapshot.
func (s *Store) Remove(id string) error {
	if err := s.held(); err != nil {
		return err
	}
	return errors.Join(s.files.Remove(s.path(id)), s.files.SyncDir(s.dir))
}

// Create implements raft.SnapshotStore.
func (s *Store) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if err := s.held(); err != nil {
		return nil, err
	}
	head, err := cbor.Marshal(&Head{
		raft.SnapshotMeta{Version: version, Index: index, Term: term, Configuration: members, ConfigurationIndex: membersIndex},
		s.Received != nil && s.Received(index, term),
		s.By,
	})
	if err != nil {
		return nil, err
	}
	name := nameOf(term, index)
	f, err := s.files.Create(s.path(name + newSuffix))
	if err != nil {
		return nil, err
	}
	k := &sink{of: s, name: name, file: f}
	begins := binary.BigEndian.AppendUint32(nil, uint32(len(head)))
	begins = binary.BigEndian.AppendUint32(begins, crc32.Checksum(head, castagnoli))
	if _, err := k.Write(append(begins, head...)); err != nil {
		return nil, errors.Join(err, k.Cancel())
	}
	return k, nil
}

// sink is a snapshot that is being written.
type sink struct {
	of     *Store
	name   string
	file   wal.File
	at     int64
	closed bool
	check  func(io.Reader) error // nil: nobody reads it
}

// ID implements raft.SnapshotSink.
func (k *sink) ID() string { return k.name }

// Write implements raft.SnapshotSink.
func (k *sink) Write(b []byte) (int, error) {
	n, err := k.file.WriteAt(b, k.at)
	k.at += int64(n)
	return n, err
}

// Close implements raft.SnapshotSink: it returns when the snapshot is on disk. Older ones go.
func (k *sink) Close() error {
	if k.closed {
		return nil
	}
	if err := k.file.Sync(); err != nil {
		return errors.Join(err, k.Cancel())
	}
	k.closed = true
	s := k.of
	err := k.file.Close()
	if err == nil {
		err = k.verify()
	}
	if err != nil {
		return errors.Join(err, k.drop())
	}
	if err := s.held(); err != nil {
		return err
	}
	if err := s.place(k.name); err != nil {
		return errors.Join(err, k.drop())
	}
	if err := s.files.SyncDir(s.dir); err != nil {
		return err
	}
	names, err := s.names()
	if err != nil {
		return err
	}
	for _, name := range names[min(kept, len(names)):] {
		if err := s.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// Checked has a snapshot that Create returned read by check before it takes the place of others: one that check returns an
// error for is not kept, and those before it stay.
func Checked(to raft.SnapshotSink, check func(io.Reader) error) {
	if k, is := to.(*sink); is {
		k.check = check
	}
}

// verify reads what was written.
func (k *sink) verify() error {
	if k.check == nil {
		return nil
	}
	_, from, err := k.of.Open(k.name + newSuffix)
	if err == nil {
		err = errors.Join(k.check(from), from.Close())
	}
	if err != nil {
		return fmt.Errorf("the snapshot that was written can't be read again, so it is not kept: %w", err)
	}
	return nil
}

// Cancel implements raft.SnapshotSink: nothing is left of the snapshot.
func (k *sink) Cancel() error {
	if k.closed {
		return nil
	}
	k.closed = true
	return errors.Join(k.file.Close(), k.drop())
}

// drop removes what was written, unless the directory is another's now: what has the name there is not of this snapshot.
func (k *sink) drop() error {
	if err := k.of.held(); err != nil {
		return err
	}
	return k.of.files.Remove(k.of.path(k.name + newSuffix))
}
