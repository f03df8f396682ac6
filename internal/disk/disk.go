// Package disk has what the embedded store and a node of a cluster have in common: the names in a data directory, what shows
// that a store was begun there, and whether its log and its newest snapshot are those of one store.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/snapshots"
	"fencepost/internal/wal"
)

// The names of what is in a data directory, beside those that internal/datadir has.
const (
	LogName       = "log"
	SnapshotsName = "snapshots"

	// BegunFile shows that a store has had an entry: where it is and the log is not, something is missing.
	BegunFile = "begun"
)

// NodeRemedy follows what is wrong with the files of a node.
const NodeRemedy = "nothing in it was changed. If other members have the data, start this node with an empty directory: it is a new node then, and the cluster takes it in. " +
	"If it is the only member, put back a copy of the whole directory, and run gateway restored"

const begunText = "A store was begun here. Without its log and its snapshots no gateway starts in this directory.\n"

// Begun reports whether a store was begun in a directory, as far as that is on disk. Versions before this one made no mark.
func Begun(dir string, files wal.Files) (bool, error) { return has(dir, BegunFile, files) }

func has(dir, name string, files wal.Files) (bool, error) {
	entries, err := files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return slices.ContainsFunc(entries, func(entry fs.DirEntry) bool { return entry.Name() == name }), err
}

// Begin marks that a store was begun. It is called when an entry or a snapshot is on disk, and before anybody is told of it;
// held is as for a log. Where there is the mark already, it makes sure that the names in the directory are on disk.
func Begin(dir string, files wal.Files, held func() error) error {
	begun, err := Begun(dir, files)
	if err == nil && !begun {
		err = held()
	}
	if err == nil && !begun {
		err = write(filepath.Join(dir, BegunFile), files)
	}
	if err == nil {
		err = files.SyncDir(dir)
	}
	return err
}

// write makes the mark. It counts whatever is in it.
func write(path string, files wal.Files) error {
	f, err := files.Create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(begunText), 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// LogMissing returns an error if a directory has no file of a log, though something shows that it had one: a snapshot, the
// mark of Begin, or another file of those that show it. Whoever opens a log asks before, as that makes a new one.
func LogMissing(dir string, files wal.Files, shows ...string) error {
	entries, err := files.List(filepath.Join(dir, LogName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil || slices.ContainsFunc(entries, func(entry fs.DirEntry) bool { return wal.Named(entry.Name()) }) {
		return err
	}
	newest, err := snapshots.NewestIn(filepath.Join(dir, SnapshotsName), files)
	if err != nil {
		return err
	}
	if newest != "" {
		return fmt.Errorf("there is no log in %s, although there is %s, which the log continues: later changes may be missing",
			filepath.Join(dir, LogName), filepath.Join(dir, SnapshotsName, newest))
	}
	for _, name := range append(shows, BegunFile) {
		if there, err := has(dir, name, files); err != nil {
			return err
		} else if there {
			return fmt.Errorf("there is no log in %s, although %s shows that there was one: it was moved or removed", filepath.Join(dir, LogName), filepath.Join(dir, name))
		}
	}
	return nil
}

// Expected is the error where a store is expected and there is none in a directory.
func Expected(dir string) error {
	return fmt.Errorf("there is no store in %s, and FENCEPOST_EXPECT_STORE is true: mount its volume, or correct FENCEPOST_DATA_DIR. "+
		"If you want a new, empty store, set it to false for the first start", Absolute(dir))
}

// There reports whether a directory has a file of a log, a snapshot, or what shows that it had some.
func There(dir string, files wal.Files) (bool, error) {
	entries, err := files.List(filepath.Join(dir, LogName))
	if err == nil && slices.ContainsFunc(entries, func(entry fs.DirEntry) bool { return wal.Named(entry.Name()) }) {
		return true, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return LogMissing(dir, files) != nil, nil
}

// Members returns the addresses of the members of the cluster whose data a directory has, as its newest configuration has
// them; none where the data is that of a store without peers. It reads all of the log, and changes nothing.
func Members(dir string, files wal.Files) (addresses []string, err error) {
	log, err := wal.Open(filepath.Join(dir, LogName), wal.Options{Files: files, Look: true})
	if err != nil {
		return nil, err
	}
	defer log.Close() // nothing was written
	first, err := log.FirstIndex()
	last, errLast := log.LastIndex()
	if err = errors.Join(err, errLast); err != nil {
		return nil, err
	}
	var newest raft.Configuration
	for at := last; at >= max(first, 1) && len(newest.Servers) == 0; at-- {
		var entry raft.Log
		if err := log.GetLog(at, &entry); err != nil {
			return nil, err
		}
		if entry.Type == raft.LogConfiguration {
			newest = raft.DecodeConfiguration(entry.Data)
		}
	}
	of := snapshots.Look(filepath.Join(dir, SnapshotsName), files)
	if name, err := of.Newest(); err != nil {
		return nil, err
	} else if name != "" && len(newest.Servers) == 0 {
		head, content, err := of.OpenHead(name)
		if err != nil {
			return nil, err
		}
		_ = content.Close() // it is not read
		newest = head.Configuration
	}
	for _, m := range newest.Servers {
		addresses = append(addresses, string(m.Address[strings.Index(string(m.Address), "@")+1:]))
	}
	return addresses, nil
}

// Absolute returns where a directory is, for the log.
func Absolute(dir string) string {
	if where, err := filepath.Abs(dir); err == nil {
		return where
	}
	return dir
}

// MayWrite returns an error if this process may not make files in a data directory.
func MayWrite(dir string) error {
	for _, at := range []string{dir, filepath.Join(dir, LogName), filepath.Join(dir, SnapshotsName)} {
		if err := datadir.MayWrite(at); err != nil && (at == dir || !errors.Is(err, fs.ErrNotExist)) { // a start makes what is missing
			return err
		}
	}
	return nil
}

// Log is what Fits asks of a log.
type Log interface {
	FirstIndex() (uint64, error)
	LastIndex() (uint64, error)
	GetLog(index uint64, entry *raft.Log) error
	GetUint64(key []byte) (uint64, error)
}

// Fits returns an error unless a log goes on where the newest snapshot ends, which is nil if there is none. belongs reports
// whether the last entry that the snapshot has is the one in the log; nil: its term tells. overtaken: a leader has sent the
// snapshot, and the log is to be emptied, as the node was stopped before it was.
func Fits(dir string, log Log, newest *snapshots.Head, belongs func(*raft.Log) bool, files wal.Files) (overtaken bool, err error) {
	first, err := log.FirstIndex()
	last, errLast := log.LastIndex()
	begun, errBegun := Begun(dir, files)
	if err = errors.Join(err, errLast, errBegun); err != nil {
		return false, err
	}
	head := snapshots.Head{}
	if newest != nil {
		head = *newest
	}
	covered, logDir, snapshotsDir := head.Index, filepath.Join(dir, LogName), filepath.Join(dir, SnapshotsName)
	switch {
	case first > covered+1:
		return false, fmt.Errorf("entries %d to %d are missing in %s: the log begins after them, and no snapshot has them", covered+1, first-1, dir)
	case last == 0 && newest == nil && begun:
		return false, fmt.Errorf("there is no entry in %s and no snapshot in %s, although %s shows that a store was begun: its snapshots were moved or removed",
			logDir, snapshotsDir, filepath.Join(dir, BegunFile))
	case newest == nil || last == 0 && len(head.Configuration.Servers) > 0: // a cluster empties the log behind a snapshot
		return false, nil
	case last < covered && !head.Received:
		return false, fmt.Errorf("%s ends with entry %d, and a snapshot in %s has all up to entry %d: files of it are missing, or it is another store's",
			logDir, last, snapshotsDir, covered)
	case first > covered:
		return false, nil
	}
	var entry raft.Log
	if last >= covered {
		if err := log.GetLog(covered, &entry); err != nil {
			return false, err
		}
	}
	switch same := entry.Term == head.Term && (belongs == nil || last < covered || belongs(&entry)); {
	case same && last >= covered:
		return false, nil
	case !head.Received:
		return false, fmt.Errorf("%s and what is in %s do not belong together: entry %d is of another store", logDir, snapshotsDir, covered)
	}
	// A node knows the term of whoever sends it a snapshot before it takes that over.
	if term, err := log.GetUint64([]byte("CurrentTerm")); err != nil || term < head.Term {
		return false, errors.Join(fmt.Errorf("%s ends with entry %d of term %d, and a snapshot in %s has all up to entry %d of term %d: the log is older than it",
			logDir, last, term, snapshotsDir, covered, head.Term), err)
	}
	return true, nil
}
