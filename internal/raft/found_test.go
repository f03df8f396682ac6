package raft

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/embedded"
	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/wal"
)

// withoutPeers opens the store without peers in a directory.
func withoutPeers(t *testing.T, dir string) *embedded.Store {
	t.Helper()
	s, err := embedded.Open(embedded.Options{Dir: dir, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// had is what a client had of a store.
type had struct {
	r     fencing.AcquireRequest
	token fencing.Token
}

// hold has a store grant some leases, and others wait for the first of them.
func hold(t *testing.T, s fencing.Store, names ...fencing.Name) (all []had) {
	t.Helper()
	for _, name := range names {
		r := acquire(name, fencing.LongestTTL)
		out, err := s.Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, had{r, out.Holder.Token})
	}
	waits := acquire(names[0], time.Minute)
	waits.Wait = time.Minute
	if out, err := s.Do(t.Context(), waits); err != nil || !out.Waits() {
		t.Fatal(out, err)
	}
	return all
}

// keeps fails the test unless a store has all those leases, whole, and nobody who waits.
func keeps(t *testing.T, s fencing.Store, what string, all []had) (highest fencing.Token) {
	t.Helper()
	for _, h := range all {
		out, err := s.Do(t.Context(), fencing.RenewRequest{Name: h.r.Name, Lease: h.r.Lease})
		if err != nil || out.Holder.Token != h.token {
			t.Errorf("%s: the lease on %s is %+v, %v; want token %d", what, h.r.Name, out.Holder, err, h.token)
		}
		if out, err = s.Do(t.Context(), fencing.InspectRequest{Name: h.r.Name}); err != nil || out.Lock.Waiting != 0 {
			t.Errorf("%s: %+v, %v; nobody can wait", what, out.Lock, err)
		}
		highest = max(highest, h.token)
	}
	return highest
}

// copied returns a copy of a directory, as a kill leaves it.
func copied(t *testing.T, dir string) string {
	t.Helper()
	for {
		to := t.TempDir()
		err := os.CopyFS(to, os.DirFS(dir))
		if errors.Is(err, fs.ErrNotExist) { // the next file of the log has got its name meanwhile
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
}

// A cluster begins with what a store without peers has kept, whether that was stopped or killed; others join it; and one of it
// alone may be a store without peers again, and go on as a cluster of one.
func TestAClusterBeginsWithAStoreWithoutPeers(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %t", killed), func(t *testing.T) {
			dir := t.TempDir()
			s := withoutPeers(t, dir)
			all := hold(t, s, "a", "b", "c")
			if killed {
				dir = copied(t, dir)
			} else if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			c := newCluster(t, 1, func(_ int, o *Options) { o.Dir = dir })
			n := c.nodes[0]
			highest := keeps(t, n, "the cluster", all)
			if look(n.fsm, (*machine.Machine).Lone) {
				t.Error("the gateway that is there no more lives for ever")
			}
			more := hold(t, n, "d")
			if more[0].token <= highest {
				t.Errorf("token %d after %d", more[0].token, highest)
			}
			all = append(all, more...)
			n.Close()
			c.reopen(0)
			c.awaitLeader()
			keeps(t, n, "the cluster, started again", all[:3]) // who waits at a gateway that has gone stays for some seconds
			n.Close()

			back := withoutPeers(t, dir)
			keeps(t, back, "the store without peers, again", all)
			all = append(all, hold(t, back, "e")...)
			if killed {
				n.options.Dir = copied(t, dir)
			} else if err := back.Close(); err != nil {
				t.Fatal(err)
			}
			c.reopen(0)
			c.awaitLeader()
			keeps(t, n, "the cluster of one, again", all)
		})
	}
}

// A cluster that begins with a restored copy is in the quarantine of that copy, and says so.
func TestAClusterBeginsInTheQuarantineOfARestoredCopy(t *testing.T) {
	dir := t.TempDir()
	s := withoutPeers(t, dir)
	hold(t, s, "kept")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Restored(embedded.Options{Dir: dir, Version: "v1"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	n := newCluster(t, 1, func(_ int, o *Options) { o.Dir = dir }).nodes[0]
	if stats, err := n.Stats(t.Context()); err != nil || stats.Quarantine <= 0 || stats.Quarantine > time.Hour {
		t.Errorf("it says that the quarantine lasts for %s, %v", stats.Quarantine, err)
	}
	if _, err := n.Do(t.Context(), acquire("since", time.Minute)); code(err) != fencing.CodeQuarantined {
		t.Errorf("what may be held by somebody else is granted: %v", err)
	}
}

// The directory of a node that was removed, and has heard so, is not that of a store without peers.
func TestADirectoryOfARemovedNodeIsNotThatOfAStoreWithoutPeers(t *testing.T) {
	c := newCluster(t, 1, nil)
	hold(t, c.nodes[0], "a")
	n := c.nodes[0]
	n.Close()
	for id, says := range map[string]string{n.options.Self.ID: "", "another": "a node that was removed from its cluster"} {
		if err := os.WriteFile(filepath.Join(n.options.Dir, datadir.IDFile), []byte(id+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := embedded.Examine(n.options.Dir)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("doctor of %s: %v", id, err)
		}
		s, err := embedded.Open(embedded.Options{Dir: n.options.Dir})
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v", id, err)
		}
		if err == nil {
			s.Close()
		}
	}
}

// Doctor says what a cluster begins with.
func TestExamineAStoreWithoutPeers(t *testing.T) {
	dir := t.TempDir()
	s := withoutPeers(t, dir)
	hold(t, s, "a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	found, err := Examine(dir)
	if err != nil || !strings.Contains(found[0].Detail, "a cluster is formed from it") {
		t.Errorf("%+v, %v", found, err)
	}
	newCluster(t, 1, func(_ int, o *Options) { o.Dir = dir }).nodes[0].Close()
	blank := t.TempDir()
	log, err := wal.Open(logsIn(blank), wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{dir, blank} {
		if found, err = Examine(of); err != nil || !strings.Contains(found[0].Detail, "has the data of a node") {
			t.Errorf("%+v, %v", found, err)
		}
	}
}

// The directory of a node that has others is not that of a store without peers, and a node's files are not one's either.
func TestADirectoryOfOthersIsNotThatOfAStoreWithoutPeers(t *testing.T) {
	c := newCluster(t, 3, nil)
	hold(t, c.nodes[0], "a")
	late, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	last := c.nodes[0].raft.LastIndex()
	for _, n := range c.nodes {
		n.fsm.await(last, late.Done())
	}
	for _, n := range c.nodes {
		n.Close()
		if _, err := embedded.Open(embedded.Options{Dir: n.options.Dir}); err == nil || !strings.Contains(err.Error(), "a node of a cluster of 3") {
			t.Errorf("it is opened: %v", err)
		}
		if _, err := embedded.Examine(n.options.Dir); err == nil || !strings.Contains(err.Error(), "a node of a cluster of 3") {
			t.Errorf("doctor: %v", err)
		}
		// As if it had been removed, and two others had stayed.
		if err := os.WriteFile(filepath.Join(n.options.Dir, datadir.IDFile), []byte("another\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := embedded.Examine(n.options.Dir)
		if err == nil || !strings.Contains(err.Error(), "a node that was removed from its cluster") || !strings.Contains(err.Error(), c.nodes[1].options.Self.Address) {
			t.Errorf("doctor of a node that was removed: %v", err)
		}
	}
}

// P1: a directory whose log is missing begins no cluster, for what was acknowledged since the snapshot would be granted again.
func TestAClusterDoesNotBeginWithoutTheLog(t *testing.T) {
	dir := t.TempDir()
	s := withoutPeers(t, dir)
	hold(t, s, "a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := withoutPeers(t, dir)
	hold(t, again, "b")
	killed := copied(t, dir)
	if err := os.RemoveAll(filepath.Join(killed, "log")); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 1, nil)
	c.nodes[0].Close()
	o := c.nodes[0].options
	o.Dir, o.Network = killed, &hubNetwork{listen(t, o.Self.Address), c.hub, o.Self.Address}
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "there is no log in "+killed) {
		t.Errorf("a cluster is formed from it: %v", err)
	}
	_ = o.Network.Close()
	c.nodes[0].Store = nil
}

// P2: where the directory is a copy of an earlier time, tokens go on above those that were granted since.
func TestTokensOfAClusterGoOnByTheClock(t *testing.T) {
	dir := t.TempDir()
	s := withoutPeers(t, dir)
	hold(t, s, "a")
	early := copied(t, dir)
	late := hold(t, s, "x")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, 1, func(_ int, o *Options) { o.Dir = early })
	out, err := c.nodes[0].Do(t.Context(), acquire("x", time.Minute))
	if err != nil || out.Holder.Token <= late[0].token {
		t.Errorf("token %d, %v, after %d", out.Holder.Token, err, late[0].token)
	}
}

// Where there is nobody else who would know, a node that computes other results than its log says stops.
func TestANodeAloneThatDiffersStops(t *testing.T) {
	n := newCluster(t, 1, nil).nodes[0]
	differs := errors.New("it computes other results")
	n.fsm.mu.Lock()
	n.fsm.differs = differs
	n.fsm.mu.Unlock()
	if err := n.settleDoubt(n.raft.CurrentTerm()); !errors.Is(err, differs) || !errors.Is(n.Cause(), differs) {
		t.Errorf("it goes on: %v, %v", err, n.Cause())
	}
}
