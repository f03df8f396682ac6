package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/snapshots"
	"fencepost/internal/wal"
)

// A log without the votes that were cast with it, and the other way round, is no node's data.
func TestID(t *testing.T) {
	dir := t.TempDir()
	load := func() (string, error) {
		id, fresh, err := loadID(dir)
		if fresh {
			err = writeID(dir, id, func() error { return nil })
		}
		return id, err
	}
	first, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if second, err := load(); err != nil || second == first {
		t.Errorf("without votes it is the same node: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "log", "0000000001.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	with, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := load(); err != nil || again != with {
		t.Errorf("with votes it is another node: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, datadir.IDFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if id, err := load(); err == nil {
		t.Errorf("a damaged id is %q", id)
	}
	if err := os.Remove(filepath.Join(dir, datadir.IDFile)); err != nil {
		t.Fatal(err)
	}
	if id, err := load(); err == nil {
		t.Errorf("votes of nobody are those of %q", id)
	}
}

// Where the id is missing beside the data of the only member, nobody is told to empty the directory; else who the others are.
func TestMissingID(t *testing.T) {
	for members, wants := range map[int]string{1: "Don't empty the directory", 3: "10.0.0.1:1, 10.0.0.2:1, 10.0.0.3:1, run, start this node with an empty directory"} {
		for _, in := range []string{disk.LogName, disk.SnapshotsName} {
			dir := t.TempDir()
			var all raft.Configuration
			for i := range members {
				address := fmt.Sprintf("10.0.0.%d:1", i+1)
				all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(fmt.Sprint("n", i)), Address: raft.ServerAddress("n@" + address)})
			}
			log, err := wal.Open(filepath.Join(dir, disk.LogName), wal.Options{FileSize: 64 << 10})
			if err != nil {
				t.Fatal(err)
			}
			entry := &raft.Log{Index: 2, Term: 1, Type: raft.LogNoop}
			if in == disk.LogName {
				entry = &raft.Log{Index: 2, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(all)}
			} else {
				of, err := snapshots.Open(filepath.Join(dir, disk.SnapshotsName), nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer of.Close()
				sink, err := of.Create(raft.SnapshotVersionMax, 1, 1, all, 1, nil)
				if err = errors.Join(err, sink.Close()); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(log.SetUint64([]byte("CurrentTerm"), 1), log.StoreLog(entry), log.Close()); err != nil {
				t.Fatal(err)
			}
			if _, _, err := loadID(dir); err == nil || !strings.Contains(err.Error(), wants) || members == 1 && strings.Contains(err.Error(), "with an empty directory") {
				t.Errorf("%d members, in the %s: %v", members, in, err)
			}
		}
	}
}
