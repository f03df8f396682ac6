package raft

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/machine"
	"fencepost/internal/wal"
)

// lockPatience is how long a predecessor may take that is just shutting down.
const lockPatience = time.Second

// snapshotsKept is how many snapshots stay.
const snapshotsKept = 2

// directory is the files of a node:
//
//	fencepost.lock     datadir's
//	log                the log and the vote: internal/wal's
//	snapshots          hashicorp/raft's
type directory struct {
	path      string
	free      func(dir string) (bytes int64, known bool) // Options.free
	lock      *datadir.Lock
	locked    bool // here: it is to be closed as well
	log       *diskLog
	snapshots raft.SnapshotStore
	transport io.Closer
	newest    *machine.Restored // the newest snapshot, until hashicorp/raft has it restored; nil: there is none
}

// openDirectory opens or makes the files of a node, and reads them all.
func openDirectory(o *Options, fail func(error)) (*directory, error) {
	d := &directory{path: o.Dir, free: o.free, lock: o.Lock}
	if d.lock == nil {
		if err := datadir.Make(o.Dir, o.sync); err != nil {
			return nil, err
		}
		lock, err := datadir.Take(o.Dir, lockPatience)
		if err != nil {
			return nil, err
		}
		d.lock, d.locked = lock, true
	}
	err := d.prepare(o)
	if err == nil {
		err = d.openSnapshots(o.Dir, o.Logger, fail)
	}
	if err == nil {
		d.log, err = openLog(logsIn(o.Dir), wal.Options{FileSize: int64(o.segment), Held: d.lock.Held, Logger: o.Logger}, o.wrapLog, fail)
	}
	if err == nil {
		err = d.fits(o.Dir)
	}
	if err == nil {
		err = d.belongs(o)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func logsIn(dir string) string      { return filepath.Join(dir, "log") }
func snapshotsIn(dir string) string { return filepath.Join(dir, "snapshots") }

// prepare makes the directories of a node that has none, if there is room for a new one. hashicorp/raft would
// make one as well, and neither sync its name nor say what refuses it.
func (d *directory) prepare(o *Options) error {
	found, err := hasLog(o.Dir)
	if err != nil {
		return err
	}
	if !found {
		if err := roomForNew(o.Dir, o.free, o.segment); err != nil {
			return err
		}
		if err := datadir.SyncName(o.Dir, o.sync); err != nil {
			return err
		}
	}
	for _, dir := range []string{logsIn(o.Dir), snapshotsIn(o.Dir)} {
		if err := datadir.Make(dir, o.sync); err != nil {
			return err
		}
	}
	return datadir.MayWrite(snapshotsIn(o.Dir))
}

// hasLog reports whether a directory is that of a node which has begun.
func hasLog(dir string) (bool, error) {
	files, err := os.ReadDir(logsIn(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return slices.ContainsFunc(files, func(f fs.DirEntry) bool { return wal.Named(f.Name()) }), err
}

// newNode is how many files of the log a new node needs: three, as there may be of one that has little to do (what the
// last snapshot does not have, what is being written, and the next one), and as much for snapshots.
const newNode = 4

// roomForNew refuses a directory that has too little room for a new node: it would begin, and end soon.
func roomForNew(dir string, free func(dir string) (bytes int64, known bool), segment int) error {
	return datadir.RoomForNew(dir, free, "a new node", newNode*int64(segment))
}

// openSnapshots opens the snapshots and reads the newest one: hashicorp/raft would pass over
// one that is damaged for an older one. Those that were never finished go.
func (d *directory) openSnapshots(dir string, logger *slog.Logger, fail func(error)) error {
	unfinished, err := filepath.Glob(filepath.Join(snapshotsIn(dir), "*.tmp"))
	if err != nil {
		return err
	}
	for _, path := range unfinished {
		if err := d.remove(path); err != nil {
			return err
		}
	}
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, newLogger(logger, "snapshots"))
	if err != nil {
		return err
	}
	d.snapshots = lockedSnapshots{files, d.lock, fail}
	found, err := d.snapshots.List()
	if err != nil {
		return err
	}
	newest, err := newestSnapshot(snapshotsIn(dir))
	if err != nil || newest == "" {
		return err
	}
	path := filepath.Join(snapshotsIn(dir), newest)
	if len(found) == 0 || found[0].ID != newest {
		return fmt.Errorf("%s is damaged: what it says of itself can't be read", path)
	}
	_, from, err := d.snapshots.Open(newest)
	if err != nil {
		return fmt.Errorf("%s can't be read: %w", path, err)
	}
	is, err := machine.Read(from)
	if err = errors.Join(err, from.Close()); err != nil {
		return fmt.Errorf("%s can't be read: %w", path, err)
	}
	d.newest = is
	return nil
}

// readBack makes sure that a snapshot that was just written can be read, and removes it if not: at the
// next start it would be the newest.
func (d *directory) readBack(dir, id string) error {
	_, from, err := d.snapshots.Open(id)
	if err == nil {
		err = errors.Join(machine.Check(from), from.Close())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("the snapshot that was written can't be read again, so it is not kept: %w", err),
			d.remove(filepath.Join(snapshotsIn(dir), id)))
	}
	return nil
}

// remove removes a snapshot, or what was to be one, of the directory that was locked.
func (d *directory) remove(path string) error {
	if err := d.lock.Held(); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// lockedSnapshots are the snapshots of a directory while it is the one that was locked: a new
// one takes the place of older ones. Else the node can't go on.
type lockedSnapshots struct {
	raft.SnapshotStore
	lock *datadir.Lock
	fail func(error)
}

func (s lockedSnapshots) held() error {
	err := s.lock.Held()
	if err != nil {
		s.fail(err)
	}
	return err
}

func (s lockedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	if err := s.held(); err != nil {
		return nil, err
	}
	sink, err := s.SnapshotStore.Create(version, index, term, members, membersIndex, t)
	if err != nil {
		return nil, err
	}
	return lockedSink{sink, s}, nil
}

type lockedSink struct {
	raft.SnapshotSink
	snapshots lockedSnapshots
}

func (s lockedSink) Close() error {
	if err := s.snapshots.held(); err != nil {
		return err
	}
	return s.SnapshotSink.Close()
}

// newestSnapshot returns the name of the newest directory of a snapshot, empty if there is
// none. They are named by term, index and time.
func newestSnapshot(dir string) (newest string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	at := func(name string) (term, index, millisecond uint64) {
		_, err := fmt.Sscanf(name, "%d-%d-%d", &term, &index, &millisecond)
		if err != nil {
			return 0, 0, 0
		}
		return term, index, millisecond
	}
	var most [3]uint64
	for _, entry := range all {
		if !entry.IsDir() || strings.HasSuffix(entry.Name(), ".tmp") {
			continue
		}
		var is [3]uint64
		is[0], is[1], is[2] = at(entry.Name())
		if newest == "" || is[0] > most[0] || is[0] == most[0] && (is[1] > most[1] || is[1] == most[1] && is[2] > most[2]) {
			newest, most = entry.Name(), is
		}
	}
	return newest, nil
}

// fits makes sure that the log goes on where the newest snapshot ends.
func (d *directory) fits(dir string) error {
	first, err := d.log.FirstIndex()
	if err != nil {
		return err
	}
	found, err := d.snapshots.List()
	if err != nil {
		return err
	}
	covered := uint64(0)
	if len(found) > 0 {
		covered = found[0].Index
	}
	if first > covered+1 {
		return fmt.Errorf("entries %d to %d are missing in %s: the log begins behind them, and no snapshot has them", covered+1, first-1, dir)
	}
	return nil
}

// belongs makes sure that the data is not that of a node that the other members know at another
// address: it may be a copy, and if the node it was copied from runs as well, the two have one vote
// each where there is one. Who has no other members may go to another address, if nothing there
// speaks against it.
func (d *directory) belongs(o *Options) error {
	members := d.log.members
	if len(members.Servers) == 0 {
		found, err := d.snapshots.List()
		if err != nil || len(found) == 0 {
			return err
		}
		members = found[0].Configuration
	}
	if len(members.Servers) == 1 && o.Alone != nil {
		return o.Alone()
	}
	for _, m := range members.Servers {
		if m.ID == raft.ServerID(o.Self.ID) && m.Address != raft.ServerAddress(o.Self.Address) && len(members.Servers) > 1 {
			return fmt.Errorf("the data in %s is that of the member %s, and this node is %s: start it at that address, "+
				"or with an empty directory, so that it is a new node and the cluster takes it in", o.Dir, m.Address, o.Self.Address)
		}
	}
	return nil
}

// close closes the files.
func (d *directory) close() error {
	var err error
	if d.transport != nil {
		err = d.transport.Close()
	}
	if d.log != nil {
		err = errors.Join(err, d.log.Close())
	}
	if d.locked {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}
