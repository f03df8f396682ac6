package embedded

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/snapshots"
	"fencepost/internal/wal"
)

const (
	// lockPatience is how long a predecessor may take that is just shutting down.
	lockPatience = time.Second

	// remedy follows what is wrong with a file.
	remedy = "nothing in it was changed. Wait for the longest TTL that was in use, until all its leases must have ended, and move the directory away: an empty one is made, and tokens keep growing by the clock. Or put back a copy of it, and run gateway restored"
)

// directory is the files of the store:
//
//	fencepost.lock     datadir's
//	begun              internal/disk's
//	log                what was asked: wal's
//	snapshots          what it came to
type directory struct {
	dir       string
	files     wal.Files
	logger    *slog.Logger
	version   string // of the gateway
	rules     int    // Options.rules
	lock      *datadir.Lock
	log       *wal.Log
	snapshots *snapshots.Store
	free      freeSpace
	after     int64 // bytes of entries after which a snapshot takes their place
	logFiles  int64 // bytes of files after which it does
	fresh     bool  // there was no store
	tried     int64 // bytes of files when a snapshot failed last, 0 if it did not; the store's mutex guards it

	term    uint64       // of what is appended: a cluster goes on from it
	behind  int          // bytes of entries that the newest snapshot does not have, when it was opened
	newest  atomic.Int64 // bytes of the newest snapshot
	covered uint64       // what it has; of whoever saves

	members   raft.Configuration // of a cluster of one that this was, and may be again
	membersAt uint64
}

func openDisk(o *Options) (*directory, error) {
	d := &directory{dir: o.Dir, logger: o.Logger, version: o.Version, rules: o.rules, free: o.free, after: int64(cmp.Or(o.snapshotAt, snapshotAfter)), term: 1}
	if d.free == nil {
		d.free = datadir.Free
	}
	files := wal.FilesOr(o.files)
	if o.Expect {
		if there, err := d.there(files); err != nil {
			return nil, err
		} else if !there {
			return nil, disk.Expected(o.Dir)
		}
	}
	if err := datadir.Make(o.Dir, files.SyncDir); err != nil {
		return nil, fmt.Errorf("the data directory can't be made: %w", err)
	}
	var err error
	if d.lock, err = datadir.Take(o.Dir, lockPatience); err != nil {
		return nil, err
	}
	if err = d.open(o, files); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// open opens or makes the files. A directory that has a store is never refused for lack of room: it may have run with
// less. The directory's name has to be as durable as what is in it.
func (d *directory) open(o *Options, files wal.Files) error {
	size := cmp.Or(o.segment, fileSize)
	d.logFiles = snapshotAfterFiles * size
	there, err := d.there(files)
	if d.fresh = !there; err == nil && !there {
		if err = d.roomForNew(size); err == nil {
			err = datadir.SyncName(d.dir, files.SyncDir)
		}
	}
	if err != nil {
		return err
	}
	if err := d.lock.Use(files.SyncDir, filepath.Join(d.dir, disk.LogName), filepath.Join(d.dir, disk.SnapshotsName)); err != nil {
		return err
	}
	if o.files == nil {
		if err := disk.MayWrite(d.dir); err != nil {
			return err
		}
	}
	return d.openFiles(wal.Options{Files: files, FileSize: size, Held: d.kept, Logger: o.Logger})
}

// held returns an error unless what is written goes to the files that were opened, and they are still in the directory.
func (d *directory) held() error {
	if d.lock == nil {
		return nil
	}
	if d.log == nil {
		return d.kept()
	}
	return d.log.Held() // which asks kept
}

// kept returns an error unless the directories and the newest snapshot are still those that were opened.
func (d *directory) kept() error {
	if err := d.lock.Held(); err != nil || d.snapshots == nil {
		return err
	}
	return d.snapshots.Held()
}

func (d *directory) openFiles(o wal.Options) (err error) {
	d.files = wal.FilesOr(o.Files)
	if err = disk.LogMissing(d.dir, d.files, datadir.IDFile); err != nil {
		return fmt.Errorf("%w; %s", err, remedy)
	}
	if dir := filepath.Join(d.dir, disk.SnapshotsName); o.Look {
		d.snapshots = snapshots.Look(dir, d.files)
	} else if d.snapshots, err = snapshots.Open(dir, o.Files, d.held); err != nil {
		return err
	}
	if d.log, err = wal.Open(filepath.Join(d.dir, disk.LogName), o); err != nil {
		if errors.Is(err, wal.ErrDamaged) {
			err = fmt.Errorf("%w; %s", err, remedy)
		}
		return fmt.Errorf("the log, which has the newest changes, can't be used: %w", err)
	}
	return nil
}

// there reports whether there is a store in the directory. One of an earlier version is refused.
func (d *directory) there(files wal.Files) (bool, error) {
	for _, name := range []string{earlierFile, disk.BegunFile, disk.LogName, disk.SnapshotsName} {
		all, err := files.List(d.dir)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(all, func(entry fs.DirEntry) bool { return entry.Name() == name }) {
			if name == earlierFile {
				return false, fmt.Errorf("%s is of an earlier version, which this one can't read: start that version, or, when all its leases must have ended "+
					"(after the longest TTL), move the file away: a new store is made, and tokens keep growing by the clock", filepath.Join(d.dir, name))
			}
			if name == disk.BegunFile {
				return true, nil
			}
			below, err := files.List(filepath.Join(d.dir, name))
			if err != nil || len(below) > 0 {
				return true, err
			}
		}
	}
	return false, nil
}

const (
	earlierFile = "fencepost.db" // of versions that had a table and a journal
	theStore    = "the store"    // what takes room
)

const (
	// fileSize is how many bytes a file of the log has: 2,047 small flushes.
	fileSize = 8 << 20

	// newStore is for how many files of the log there has to be room at a first start: those after which a snapshot is taken, one
	// more by then and one that a start may begin, and the snapshots while they are small.
	newStore = snapshotAfterFiles + 3
)

// roomForNew refuses a directory that has no room for a new store.
func (d *directory) roomForNew(fileSize int64) error {
	return datadir.RoomForNew(d.dir, d.free, "a new store", newStore*fileSize)
}

// carriedOut returns what the files come to. An operation that panics, of a cluster of one, is refused, as it was there: see machine.Refused.
func (d *directory) carriedOut() (m *machine.Machine, err error) {
	for refused := (machine.Refused{}); ; {
		m = machine.New()
		m.Refuse(refused)
		m.Know(cmp.Or(d.rules, m.Known()))
		d.behind = 0
		err = d.recover(m)
		p, panicked := errors.AsType[*machine.Panic](err)
		if !panicked || !refused.Add(p) {
			return m, err
		}
		d.logger.Warn(errPanicked, "error", p, "asked", p.Asked(), "stack", p.Stack)
	}
}

// recover has a machine come to what the files say.
func (d *directory) recover(m *machine.Machine) error {
	p := progress{log: d.logger, next: time.Now().Add(tellAfter)}
	head, err := d.readSnapshot(m)
	if err != nil {
		return err
	}
	last := d.covered
	overtaken, err := disk.Fits(d.dir, d.log, head, func(entry *raft.Log) bool { return belongs(m, entry) }, d.files)
	if err != nil {
		return fmt.Errorf("%w; %s", err, remedy)
	}
	if overtaken { // it has other members
		return cmp.Or(d.alone(), errOvertaken)
	}
	first, err := d.log.FirstIndex()
	end, errEnd := d.log.LastIndex()
	if err = errors.Join(err, errEnd); err != nil {
		return err
	}
	for at := max(first, 1); at <= end; at++ {
		var entry raft.Log
		if err := d.log.GetLog(at, &entry); err != nil {
			return fmt.Errorf("%w; %s", err, remedy)
		}
		d.term = max(d.term, entry.Term)
		if entry.Type == raft.LogConfiguration {
			d.members, d.membersAt = raft.DecodeConfiguration(entry.Data), at
		}
		if at > last {
			d.behind += len(entry.Data)
			if err := carryOut(m, &entry, d.version); err != nil {
				return fmt.Errorf("%s: %w", d.dir, err)
			}
		}
		p.tell(at, end)
	}
	return d.alone()
}

// alone returns why the data is not that of a store without peers: it is that of a node which has others, or was removed by
// them.
func (d *directory) alone() error {
	members := d.members.Servers
	if len(members) == 0 {
		return nil
	}
	id, err := readID(filepath.Join(d.dir, datadir.IDFile), d.files)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the data is that of a node of a cluster, and which one can't be read: %w", err)
	}
	var addresses []string
	member := err != nil
	for _, m := range members {
		member = member || string(m.ID) == id
		addresses = append(addresses, string(m.Address[strings.Index(string(m.Address), "@")+1:]))
	}
	switch {
	case !member:
		return fmt.Errorf("the data is that of a node that was removed from its cluster, which went on without it: the leases are in the directories of its members, %s", strings.Join(addresses, ", "))
	case len(members) > 1:
		return fmt.Errorf("the data is that of a node of a cluster of %d: start it as that, or remove the other nodes from the cluster first", len(members))
	}
	return nil
}

// readID returns which node the data is that of, as internal/raft/cluster has written it.
func readID(path string, files wal.Files) (string, error) {
	from, err := files.Open(path)
	if err != nil {
		return "", err
	}
	id, err := io.ReadAll(io.LimitReader(from, 256))
	return strings.TrimSpace(string(id)), errors.Join(err, from.Close())
}

// errOvertaken is of a snapshot that a leader has sent.
var errOvertaken = errors.New("the data is that of a node of a cluster, which was stopped while it took over a snapshot: start it as that")

// readSnapshot has a machine come to what the newest snapshot says, and returns what that says of itself; nil if there is
// none.
func (d *directory) readSnapshot(m *machine.Machine) (*snapshots.Head, error) {
	id, err := d.snapshots.Newest()
	if err != nil || id == "" {
		return nil, err
	}
	head, from, err := d.snapshots.OpenHead(id)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, remedy)
	}
	is, err := machine.Read(from)
	if err = errors.Join(err, from.Close()); err != nil {
		return nil, fmt.Errorf("%s can't be used: %w; %s", filepath.Join(d.dir, disk.SnapshotsName, id), err, remedy)
	}
	if err := m.Restore(is); err != nil {
		return nil, err
	}
	m.Reached(head.Index)
	d.newest.Store(head.Size)
	d.covered = head.Index
	d.term, d.members, d.membersAt = max(d.term, head.Term), head.Configuration, head.ConfigurationIndex
	return head, nil
}

// belongs reports whether the last entry that a snapshot has is the one in the log, from which the machine learns more then.
func belongs(m *machine.Machine, entry *raft.Log) bool {
	if entry.Type != raft.LogCommand {
		return true
	}
	e, err := machine.Decode(entry.Data)
	if err != nil {
		return true // what can't be read is not needed
	}
	if !m.Belongs(entry.Index, e) {
		return false
	}
	if e.Term == entry.Term {
		m.Covered(e)
	}
	return true
}

// carryOut has a machine carry out an entry of the log.
func carryOut(m *machine.Machine, entry *raft.Log, version string) error {
	if entry.Type != raft.LogCommand { // of a cluster of one
		m.Reached(entry.Index)
		return nil
	}
	e, err := machine.Decode(entry.Data)
	if err != nil {
		return fmt.Errorf("%w; %s", m.Unread(entry.Index, entry.Data, err), remedy)
	}
	if e.Term != entry.Term { // of a cluster of one, which had another term by then
		m.Reached(entry.Index)
		return nil
	}
	writer := m.Writer()
	_, err = m.Apply(entry.Index, e, &machine.Telling{Quiet: true}, false)
	switch {
	case errors.Is(err, machine.ErrDiffers) && writer == version && version != "":
		return fmt.Errorf("%w. This gateway has that version, so the machine was faulty or the files are of two stores; %s", err, remedy)
	case errors.Is(err, machine.ErrDiffers):
		return fmt.Errorf("%w. That one was not stopped cleanly: start version %s once and stop it with SIGTERM, then start this one", err, cmp.Or(m.Writer(), "that was there before"))
	}
	return err
}

// append makes an entry durable.
func (d *directory) append(index uint64, e *machine.Entry) (uint64, []byte, error) {
	data, err := e.Encode()
	if err != nil {
		return 0, nil, err
	}
	return index, data, d.log.StoreLog(&raft.Log{Index: index, Term: e.Term, Type: raft.LogCommand, Data: data})
}

// large reports whether a snapshot is to take the place of so many bytes of entries.
func (d *directory) large(grown int) bool {
	return int64(grown) > max(d.after, d.newest.Load()/4) || d.log.Bytes() > max(d.mostFiles(), d.tried) && grown > 0
}

// mostFiles is how many bytes the files of the log may have before a snapshot takes the place of what is in them.
func (d *directory) mostFiles() int64 { return max(d.logFiles, d.newest.Load()) }

// save writes a snapshot, and drops what it has of the log, but for the last entry, by which a start knows that there is
// one. lock is what guards the machine. check reads it before it counts. With an error of goesOn it is given up, and nothing changes.
func (d *directory) save(snapshot *machine.Snapshot, lock sync.Locker, check func(io.Reader) error, goesOn func() error) error {
	index := snapshot.Applied()
	if index == d.covered { // there is one of the same state
		return nil
	}
	to, err := d.snapshots.Create(raft.SnapshotVersionMax, index, d.term, d.members, d.membersAt, nil)
	if err != nil {
		return datadir.NoRoom(err, d.dir, "a snapshot", d.newest.Load())
	}
	size := counting{to: to, goesOn: goesOn}
	w := bufio.NewWriterSize(&size, 1<<20)
	if err = snapshot.Write(w, lock); err == nil {
		err = w.Flush()
	}
	if err != nil {
		return errors.Join(datadir.NoRoom(err, d.dir, "a snapshot", size.n), to.Cancel())
	}
	snapshots.Checked(to, func(from io.Reader) error { return check(reading{from, goesOn}) })
	if err := to.Close(); err != nil {
		return err
	}
	d.newest.Store(size.n)
	d.covered = index
	first, err := d.log.FirstIndex()
	if err != nil || first == 0 || first >= index {
		return err
	}
	return d.log.DeleteRange(first, index-1)
}

// counting counts what is written, until goesOn returns an error.
type counting struct {
	to     raft.SnapshotSink
	n      int64
	goesOn func() error
}

func (c *counting) Write(b []byte) (int, error) {
	if err := c.goesOn(); err != nil {
		return 0, err
	}
	n, err := c.to.Write(b)
	c.n += int64(n)
	return n, err
}

// reading reads until goesOn returns an error.
type reading struct {
	io.Reader
	goesOn func() error
}

func (r reading) Read(b []byte) (int, error) {
	if err := r.goesOn(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}

// room says how much room there is beside the files.
func (d *directory) room() []fencing.Finding {
	return datadir.Room(d.dir, d.free, theStore, d.log.Bytes()+2*d.newest.Load())
}

func (d *directory) close() (err error) {
	if d.log != nil {
		err = d.log.Close()
	}
	if d.snapshots != nil {
		err = errors.Join(err, d.snapshots.Close())
	}
	return errors.Join(err, d.lock.Close())
}

// progress has the log say how far a start is, every so often.
type progress struct {
	log  *slog.Logger
	next time.Time
}

func (p *progress) tell(at, of uint64) {
	if at%256 == 0 && !time.Now().Before(p.next) {
		p.log.Info("replaying the log", "entry", at, "of", of)
		p.next = time.Now().Add(tellAfter)
	}
}
