package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/raft/peer"
	"fencepost/internal/wal"
)

// loadID returns the id of the node whose data a directory has. Where there is none, or the
// data that it stood for is gone, it is a new one, which is to be written.
func loadID(dir string) (id string, fresh bool, err error) {
	path := filepath.Join(dir, datadir.IDFile)
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", false, err
	}
	known := err == nil
	has, err := hasVotes(dir)
	switch {
	case err != nil:
		return "", false, err
	case known && has:
		node, err := peer.ParseNode(strings.TrimSpace(string(content)) + "@known:1")
		if err != nil {
			return "", false, fmt.Errorf("%s is damaged: %w", path, err)
		}
		return node.ID, false, nil
	case has:
		if voted, _, err := wal.Voted(filepath.Join(dir, "log")); err != nil || !voted { // it is that of a store without peers, which a cluster begins with
			return peer.NewID(), err == nil, err
		}
		return "", false, missingID(dir)
	}
	if err := disk.LogMissing(dir, wal.FilesOr(nil)); err != nil { // with it the votes of the node are
		return "", false, fmt.Errorf("%w; %s", err, disk.NodeRemedy)
	}
	return peer.NewID(), true, nil
}

// missingID says what to do where the id of a node is missing beside its data, and changes nothing.
func missingID(dir string) error {
	err := fmt.Errorf("%s is missing beside the data of a node; nothing in the directory was changed. Put the file back from a copy of the directory, however old", filepath.Join(dir, datadir.IDFile))
	members, errMembers := disk.Members(dir, wal.FilesOr(nil))
	switch {
	case errMembers != nil:
		return fmt.Errorf("%w. Who the members are can't be read: %w", err, errMembers)
	case len(members) > 1:
		return fmt.Errorf("%w. Or, as long as most of its members, %s, run, start this node with an empty directory: it is a new node then, and the cluster takes it in",
			err, strings.Join(members, ", "))
	}
	return fmt.Errorf("%w. Don't empty the directory: its node was the only member, and nobody else has the leases. Without a copy wait for the longest TTL that was in use, "+
		"until all of them must have ended, and move the directory away", err)
}

// ExamineID returns why no node can start with the id in a directory, nil if one can, or if a gateway or nobody has the
// directory. It changes nothing there.
func ExamineID(dir string) error {
	if used, err := datadir.InUse(dir); used || err != nil {
		return nil
	}
	_, _, err := loadID(dir)
	return err
}

// hasVotes reports whether a directory has a node's votes, below it or in it: a file of its log, each of which has whom
// the node has voted for. A node that has lost them is another node.
func hasVotes(dir string) (found bool, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && wal.Named(entry.Name()) {
			found = true
			return fs.SkipAll
		}
		return err
	})
	return found, err
}

// writeID has the id on disk, whole, before anybody is told of it. What is in the place of the directory that was locked is
// left alone.
func writeID(dir, id string, held func() error) error {
	file, err := os.CreateTemp(dir, datadir.IDFile+".")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // it has another name if all went well
	_, err = file.WriteString(id + "\n")
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := held(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), filepath.Join(dir, datadir.IDFile)); err != nil {
		return err
	}
	return datadir.Sync(dir)
}

// DataOf returns the address of the member whose data a directory has; empty if it is that of none.
func (s Status) DataOf(dir string) string {
	id, err := os.ReadFile(filepath.Join(dir, datadir.IDFile))
	if err != nil {
		return ""
	}
	for _, m := range s.Members {
		if m.ID == strings.TrimSpace(string(id)) {
			return m.Addr
		}
	}
	return ""
}
