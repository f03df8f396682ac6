package raft

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/snapshots"
	"fencepost/internal/wal"
)

// Examine implements fencing.Store: it fails where this node has failed, and else finds how much room it has
// left. How the members are is told by internal/raft/cluster.
func (s *Store) Examine(context.Context) ([]fencing.Finding, error) {
	if err := s.Cause(); err != nil {
		return nil, fencing.Unavailable(err)
	}
	return examineRoom(s.dir.path, s.dir.free)
}

// Examine says how it is with the data directory of a node, and changes nothing there; it may be called while the
// node runs. Of a directory that is not there nothing is said. An error says why no gateway could use it.
func Examine(dir string) ([]fencing.Finding, error) {
	where, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(where); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	directory, err := examineDirectory(where)
	if err != nil {
		return nil, datadir.Explained(where, err)
	}
	room, err := examineRoom(where, datadir.Free)
	if err != nil {
		return nil, datadir.Explained(where, err)
	}
	return slices.Concat([]fencing.Finding{directory}, datadir.FileSystem(where), room), nil
}

// examineDirectory reads all that a start would. A gateway that is started meanwhile may write what stands where nothing was,
// so an error counts if it comes twice.
func examineDirectory(dir string) (fencing.Finding, error) {
	f, err := examineOnce(dir)
	if err != nil {
		f, err = examineOnce(dir)
	}
	return f, err
}

func examineOnce(dir string) (fencing.Finding, error) {
	f, err := datadir.Directory(dir)
	if err != nil {
		return f, err
	}
	files, err := disk.OpenAll(dir)
	switch {
	case errors.Is(err, datadir.ErrInUse):
		f.Detail += " is in use by a gateway"
		return f, nil
	case err != nil:
		return f, err
	}
	defer files.Close() // nothing was written
	if err := mayUse(dir); err != nil {
		return f, err
	}
	if err := disk.LogMissing(dir, files); err != nil {
		return f, fmt.Errorf("%w; %s", err, disk.NodeRemedy)
	}
	found, err := hasLog(dir)
	switch {
	case err != nil:
		return f, err
	case found:
		detail, err := lookInto(dir, files)
		f.Detail += detail
		return f, err
	}
	f.Detail += " has no data yet: a gateway starts as a new node"
	return f, roomForNew(dir, datadir.Free, segmentSize)
}

// lookInto says what the data of a node are. An error says why no node starts with them.
func lookInto(dir string, files wal.Files) (detail string, err error) {
	head, newest, err := readNewest(snapshots.Look(snapshotsIn(dir), files), dir)
	if err != nil {
		return "", err
	}
	log, err := wal.Open(logsIn(dir), wal.Options{Files: files, Look: true})
	if err != nil {
		return "", fmt.Errorf("the log in %s can't be opened: %w; %s", logsIn(dir), err, disk.NodeRemedy)
	}
	defer log.Close() // nothing was written
	overtaken, err := disk.Fits(dir, log, head, nil, files)
	if err != nil {
		return "", fmt.Errorf("%w; %s", err, disk.NodeRemedy)
	}
	covered := uint64(0)
	if head != nil {
		covered = head.Index
	}
	if err := followsRules(machine.New(), newest, covered, log); err != nil {
		return "", err
	}
	last, err := log.LastIndex()
	_, unknown := log.Get([]byte("CurrentTerm")) // hashicorp/raft's
	switch {
	case unknown != nil && last > 0:
		return " has the data of a single gateway: a cluster is formed from it, with this node as its only member", err
	case overtaken:
		return " has the data of a node that was stopped while it took over a snapshot: it starts with that", err
	}
	return " has the data of a node, and no gateway has it open", err
}

// mayUse returns an error if this process may not use all that is in a directory. A gateway that is started meanwhile removes
// some.
func mayUse(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
		case entry.IsDir():
			err = datadir.MayWrite(path)
		case entry.Type().IsRegular():
			var f *os.File
			if f, err = os.OpenFile(path, os.O_RDWR, 0); err == nil {
				err = f.Close()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// examineRoom says how much room is left beside the newest snapshot: the next one is about as large, and the log grows
// meanwhile by less than what datadir.Room has as the least.
func examineRoom(dir string, free func(dir string) (bytes int64, known bool)) ([]fencing.Finding, error) {
	size, err := snapshots.NewestSize(snapshotsIn(dir))
	if err != nil {
		return nil, err
	}
	return datadir.Room(dir, free, "the newest snapshot", size), nil
}
