package raft

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/machine"
	"fencepost/internal/snapshots"
	"fencepost/internal/wal"
)

// lockPatience is how long a predecessor may take that is just shutting down.
const lockPatience = time.Second

// directory is the files of a node:
//
//	fencepost.lock     datadir's
//	begun              internal/disk's
//	log                the log and the vote: internal/wal's
//	snapshots          internal/snapshots'
type directory struct {
	path      string
	free      func(dir string) (bytes int64, known bool) // Options.free
	lock      *datadir.Lock
	locked    bool // here: it is to be closed as well
	log       *diskLog
	snapshots *snapshots.Store
	transport *leaving          // nil until hashicorp/raft has started
	newest    *machine.Restored // the newest snapshot, until hashicorp/raft has it restored; nil: there is none
	head      *snapshots.Head   // what that says of itself; nil: there is none
	begun     sync.Once         // see begin
	begunErr  error
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
		err = d.openSnapshots(o.Version, fail)
	}
	if err == nil {
		d.log, err = openLog(logsIn(o.Dir), wal.Options{FileSize: int64(o.segment), Held: d.kept, Logger: o.Logger}, o.wrapLog, fail)
		if errors.Is(err, wal.ErrDamaged) {
			err = fmt.Errorf("%w; %s", err, disk.NodeRemedy)
		}
	}
	if err == nil {
		err = d.fit(o.Logger)
	}
	if err == nil {
		err = d.belongs(o)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func logsIn(dir string) string      { return filepath.Join(dir, disk.LogName) }
func snapshotsIn(dir string) string { return filepath.Join(dir, disk.SnapshotsName) }

// prepare makes the directories of a node that has none, if there is room for a new one.
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
	if err := d.lock.Use(o.sync, logsIn(o.Dir), snapshotsIn(o.Dir)); err != nil {
		return err
	}
	return disk.MayWrite(o.Dir)
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
// one that is damaged for an older one. A node whose directory is another one by then can't go on.
func (d *directory) openSnapshots(version string, fail func(error)) (err error) {
	d.snapshots, err = snapshots.Open(snapshotsIn(d.path), nil, func() error {
		err := d.held()
		if err != nil {
			fail(err)
		}
		return err
	})
	if err != nil {
		return err
	}
	d.snapshots.By = version
	if err := disk.LogMissing(d.path, wal.FilesOr(nil)); err != nil {
		return fmt.Errorf("%w; %s", err, disk.NodeRemedy)
	}
	d.head, d.newest, err = readNewest(d.snapshots, d.path)
	return err
}

// readNewest reads the newest snapshot of a node, and returns what it says of itself; nil if there is none.
func readNewest(of *snapshots.Store, dir string) (*snapshots.Head, *machine.Restored, error) {
	newest, err := of.Newest()
	if err != nil || newest == "" {
		return nil, nil, err
	}
	head, from, err := of.OpenHead(newest)
	if err != nil {
		return nil, nil, fmt.Errorf("%w; %s", err, disk.NodeRemedy)
	}
	is, err := machine.Read(from)
	if err = errors.Join(err, from.Close()); err != nil {
		return nil, nil, fmt.Errorf("%s can't be read: %w; %s", filepath.Join(snapshotsIn(dir), newest), err, disk.NodeRemedy)
	}
	return head, is, nil
}

// held returns an error unless what is written goes to the files that were opened, and they are still in the directory.
func (d *directory) held() error {
	if d.log == nil {
		return d.kept()
	}
	return d.log.disk.Held() // which asks kept
}

// kept returns an error unless the directories and the newest snapshot are still those that were opened.
func (d *directory) kept() error {
	if err := d.lock.Held(); err != nil || d.snapshots == nil {
		return err
	}
	return d.snapshots.Held()
}

// begin marks, before anybody is told of the first entry, that there is one.
func (d *directory) begin() error {
	d.begun.Do(func() { d.begunErr = disk.Begin(d.path, wal.FilesOr(nil), d.held) })
	return d.begunErr
}

// ofOne reports whether the files are those of a store without peers: nothing says who the members are.
func (d *directory) ofOne() bool {
	return len(d.log.members.Servers)+len(d.members().Servers) == 0 && (d.log.any || d.head != nil)
}

// members are those of the newest snapshot.
func (d *directory) members() raft.Configuration {
	if d.head == nil {
		return raft.Configuration{}
	}
	return d.head.Configuration
}

// fit makes sure that the log goes on where the newest snapshot ends. Where that came from a leader, and the node was stopped
// before the log was emptied, it is emptied now: its entries are in the snapshot or count no more, and the vote stays.
func (d *directory) fit(log *slog.Logger) error {
	overtaken, err := disk.Fits(d.path, d.log, d.head, nil, wal.FilesOr(nil))
	if err != nil {
		return fmt.Errorf("%w; %s", err, disk.NodeRemedy)
	}
	if overtaken {
		if err := d.log.empty(); err != nil {
			return err
		}
		log.Warn("the node was stopped while it took over a snapshot of the leader: the log before that is dropped", "entry", d.head.Index)
	}
	d.snapshots.Received = func(index, term uint64) bool {
		var entry raft.Log
		return d.log.GetLog(index, &entry) != nil || entry.Term != term
	}
	if d.log.any || d.head != nil {
		return d.begin()
	}
	return nil
}

// belongs makes sure that the data is not that of a node that the other members know at another
// address: it may be a copy, and if the node it was copied from runs as well, the two have one vote
// each where there is one. Who has no other members may go to another address, if nothing there
// speaks against it; so may who founds a cluster.
func (d *directory) belongs(o *Options) error {
	members := d.log.members
	if len(members.Servers) == 0 {
		members = d.members()
	}
	if founds := d.ofOne(); (founds || len(members.Servers) == 1) && o.Alone != nil {
		return o.Alone(founds)
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
	if d.snapshots != nil {
		err = errors.Join(err, d.snapshots.Close())
	}
	if d.locked {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}
