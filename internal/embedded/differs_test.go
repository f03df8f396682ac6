package embedded

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/wal"
	"fencepost/internal/wal/waltest"
)

// rewritten returns files of a store in a directory with a log whose entries a test has changed. change may return none.
func rewritten(t *testing.T, files map[string][]byte, dir string, change func(entry *raft.Log) []*raft.Log) map[string][]byte {
	t.Helper()
	o := wal.Options{Files: waltest.New(files), FileSize: smallSegment}
	from, err := wal.Open(filepath.Join(dir, disk.LogName), o)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	written, other := waltest.New(nil), t.TempDir()
	o.Files = written
	to, err := wal.Open(other, o)
	if err != nil {
		t.Fatal(err)
	}
	first, err := from.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := from.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for at := first; at <= last; at++ {
		var entry raft.Log
		if err := from.GetLog(at, &entry); err != nil {
			t.Fatal(err)
		}
		if changed := change(&entry); len(changed) > 0 {
			if err := to.StoreLogs(changed); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	all := maps.Clone(files)
	maps.DeleteFunc(all, func(path string, _ []byte) bool { return filepath.Base(filepath.Dir(path)) == disk.LogName })
	maps.Copy(all, waltest.Moved(written.Content(), other, filepath.Join(dir, disk.LogName)))
	return all
}

// differing has each entry behind one say that something else had come of it, or of those before it, where it was written.
func differing(t *testing.T, behind uint64) func(entry *raft.Log) []*raft.Log {
	return changing(t, behind, func(e *machine.Entry) { e.Digest++ })
}

// changing changes each entry behind one.
func changing(t *testing.T, behind uint64, change func(e *machine.Entry)) func(entry *raft.Log) []*raft.Log {
	return func(entry *raft.Log) []*raft.Log {
		var e machine.Entry
		if err := machine.Strict.Unmarshal(entry.Data, &e); err != nil {
			t.Fatal(err)
		}
		if entry.Index > behind {
			change(&e)
		}
		data, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		changed := *entry
		changed.Data = data
		return []*raft.Log{&changed}
	}
}

// A log of which this version computes other results than the one that wrote it is refused, and says which that was,
// whether that stands in the log or in the snapshot before it, and if it is only the last entry that comes to something else. After a
// clean end nothing of the log is carried out.
func TestALogThatComesToSomethingElse(t *testing.T) {
	for _, snapshotAt := range []int{0, 1} {
		files, clock := waltest.New(nil), newTestClock()
		o := Options{Dir: t.TempDir(), Now: clock.read, files: files, segment: smallSegment, snapshotAt: snapshotAt, Version: "7.8.9"}
		s := open(t, o)
		for i := range 5 {
			mustAcquire(t, s, acquire(fencing.Name(string(rune('a'+i))), time.Hour))
			rest(t, s)
		}
		s.disk.after = 1 << 20 // from here on there is no snapshot
		mustAcquire(t, s, acquire("last", time.Hour))
		rest(t, s)
		killed, covered, last := files.Content(), s.disk.covered, s.machine.Applied()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		same := o
		same.files = waltest.New(rewritten(t, killed, o.Dir, differing(t, covered)))
		if _, err := Open(same); err == nil || !strings.Contains(err.Error(), "the machine was faulty") {
			t.Errorf("the same version: %v", err)
		}
		o.Version = "8.0.0"
		isRefused(t, o, rewritten(t, killed, o.Dir, differing(t, covered)), "start version 7.8.9 once", "SIGTERM", "this version of the gateway computes other results")
		later := changing(t, last-1, func(e *machine.Entry) { e.Now++ })
		isRefused(t, o, rewritten(t, killed, o.Dir, later), "start version 7.8.9 once", "this version of the gateway computes other results")
		o.files = waltest.New(files.Content())
		s = open(t, o)
		if out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "last"}); err != nil || !out.Lock.Held() {
			t.Errorf("after a clean end: %+v, %v", out.Lock, err)
		}
		if s.disk.behind > 0 {
			t.Error("after a clean end the log is carried out")
		}
	}
}

// A start raises the rules to the newest that the store knows, once it has carried out the log by those before. Who does not know them is
// refused from then on, behind a crash and behind a clean end, and told whom to start.
func TestRulesThatAreRaised(t *testing.T) {
	const known, next = fencing.NewestRules, fencing.NewestRules + 1
	files := waltest.New(nil)
	o := Options{Dir: t.TempDir(), Now: newTestClock().read, files: files, segment: smallSegment, Version: "1.0"}
	s := open(t, o)
	out := mustAcquire(t, s, acquire("a", time.Hour))
	if s.machine.Rules() != known {
		t.Errorf("rules %d", s.machine.Rules())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a version that knows no more than is in force may go back
		o.Version, o.files = "1.1", waltest.New(files.Content())
		s = open(t, o)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	later, files := o, waltest.New(files.Content())
	later.rules, later.Version, later.files = next, "2.0", files
	s = open(t, later)
	if s.machine.Rules() != next {
		t.Errorf("rules %d behind a start of who knows later ones", s.machine.Rules())
	}
	if again, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"}); err != nil || len(again.Lock.Holders) != 1 || again.Lock.Holders[0].Token != out.Token {
		t.Errorf("the lease is gone: %+v, %v", again.Lock, err)
	}
	killed := files.Content()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, left := range []map[string][]byte{killed, files.Content()} {
		isRefused(t, o, left, "does not know the rules", fmt.Sprintf("version %d of them", next), "start version 2.0")
		later.files = waltest.New(left)
		s = open(t, later)
		if s.machine.Rules() != next {
			t.Errorf("rules %d", s.machine.Rules())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What another version of the format has written is refused, and left alone.
func TestALogOfAnotherFormatIsRefused(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	left := twice(t, o.Dir, false)
	isRefused(t, o, rewritten(t, left, o.Dir, func(entry *raft.Log) []*raft.Log {
		var e machine.Entry
		if err := machine.Strict.Unmarshal(entry.Data, &e); err != nil {
			t.Fatal(err)
		}
		e.Version++
		changed := *entry
		changed.Data = must(t)(machine.Encoding.Marshal(&e))
		return []*raft.Log{&changed}
	}), "entry 7 of the log can't be replayed", "this version reads version", remedy)
}

func must(t *testing.T) func(b []byte, err error) []byte {
	return func(b []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func clusterOf(n int) raft.Configuration {
	var members raft.Configuration
	for i := range n {
		id := string(rune('1' + i))
		members.Servers = append(members.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	return members
}

// The data of a node of a cluster is refused, whether the log says so or a snapshot: the others may have gone on. Of a cluster
// of one nobody else has anything.
func TestTheDataOfACluster(t *testing.T) {
	for _, members := range []int{1, 3} {
		for _, inLog := range []bool{true, false} {
			o := Options{Dir: t.TempDir(), Now: newTestClock().read, segment: smallSegment}
			left := twice(t, o.Dir, !inLog)
			if inLog {
				left = rewritten(t, left, o.Dir, func(entry *raft.Log) []*raft.Log {
					change := raft.Log{Index: entry.Index + 1, Term: 5, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(clusterOf(members))}
					noop := raft.Log{Index: entry.Index + 2, Term: 5, Type: raft.LogNoop}
					switch {
					case entry.Index < 11:
						return []*raft.Log{entry}
					case entry.Index == 11:
						return []*raft.Log{entry, &change, &noop}
					}
					return nil
				})
			} else {
				left = withMembers(t, left, o.Dir, clusterOf(members))
			}
			if members > 1 {
				isRefused(t, o, left, "of a node of a cluster of 3", "start it as that")
				continue
			}
			dir := t.TempDir()
			files := waltest.New(waltest.Moved(left, o.Dir, dir))
			o.Dir, o.files = dir, files
			s := open(t, o)
			if out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "n00"}); err != nil || !out.Lock.Held() {
				t.Errorf("in the log: %v: of a cluster of one: %+v, %v", inLog, out.Lock, err)
			}
			mustAcquire(t, s, acquire("later", time.Hour))
			rest(t, s)
			is, _ := replayed(t, files.Content(), o.Dir)
			s.mu.Lock()
			has := bytesOf(t, s.machine)
			s.mu.Unlock()
			if !bytes.Equal(is, has) {
				t.Errorf("in the log: %v: of a cluster of one: a replay computes other results", inLog)
			}
			if inLog && s.disk.term != 5 {
				t.Errorf("it writes in term %d", s.disk.term)
			}
		}
	}
}

// withMembers returns files whose newest snapshot says who the members are.
func withMembers(t *testing.T, left map[string][]byte, dir string, members raft.Configuration) map[string][]byte {
	t.Helper()
	files := waltest.New(left)
	d, err := openDisk(&Options{Dir: dir, files: files, segment: smallSegment})
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	m := machine.New()
	if err := d.recover(m); err != nil {
		t.Fatal(err)
	}
	to, err := d.snapshots.Create(raft.SnapshotVersionMax, m.Applied(), d.term, members, m.Applied(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := to.Write(bytesOf(t, m)); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return files.Content()
}
