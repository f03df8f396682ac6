package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"fencepost/internal/datadir"
	"fencepost/internal/raft/peer"
	"fencepost/internal/redis/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what should not take long.
const patience = 60 * time.Second

// nothing is a state machine without a state.
type nothing struct{}

func (nothing) Apply(*raft.Log) any                  { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error)  { return nothing{}, nil }
func (nothing) Restore(r io.ReadCloser) error        { return r.Close() }
func (nothing) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (nothing) Release()                             {}

// node is a node that can be stopped, started and wiped.
type node struct {
	t       *testing.T
	addr    string
	list    []string
	listen  string       // empty: addr
	audit   *slog.Logger // nil: none
	dir     string
	store   *raft.InmemStore
	cluster *Cluster // nil: it does not run
	raft    *raft.Raft
	trans   *raft.NetworkTransport
	failed  atomic.Value // why it must not go on
}

type transport struct{ *peer.StreamLayer }

func (t transport) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return t.StreamLayer.Dial(string(address), timeout)
}

func addrs(t *testing.T, n int) (all []string) {
	t.Helper()
	for range n {
		all = append(all, redistest.FreeAddr(t))
	}
	slices.Sort(all)
	return all
}

func newNode(t *testing.T, addr string, list ...string) *node {
	t.Helper()
	n := &node{t: t, addr: addr, list: list}
	n.wipe()
	t.Cleanup(n.stop)
	return n
}

// nodes returns nodes with the same list, of which none runs.
func nodes(t *testing.T, n int) (all []*node) {
	t.Helper()
	list := addrs(t, n)
	for _, addr := range list {
		all = append(all, newNode(t, addr, list...))
	}
	return all
}

// wipe has the node lose its disk.
func (n *node) wipe() {
	n.t.Helper()
	n.stop()
	n.dir, n.store = n.t.TempDir(), raft.NewInmemStore()
}

// open is start without looking after the cluster.
func (n *node) open() {
	n.t.Helper()
	c, err := Open(Options{Dir: n.dir, Nodes: n.list, Addr: n.addr, Listen: n.listen, Audit: n.audit})
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "0000000001.log"), nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
	log := hclog.NewNullLogger()
	n.trans = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: transport{c.Network()}, MaxPool: 2, Timeout: time.Second, Logger: log})
	config := raft.DefaultConfig()
	config.LocalID, config.Logger = raft.ServerID(c.Self().ID), log
	config.HeartbeatTimeout, config.ElectionTimeout, config.LeaderLeaseTimeout = time.Second, time.Second, time.Second // a busy machine elects nobody
	n.raft, err = raft.NewRaft(config, nothing{}, n.store, n.store, raft.NewDiscardSnapshotStore(), n.trans)
	if err != nil {
		n.t.Fatal(err)
	}
	n.cluster = c
}

func (n *node) start() *node {
	n.t.Helper()
	n.open()
	n.cluster.Start(n.raft, func(err error) { n.failed.Store(err.Error()) })
	return n
}

func (n *node) stop() {
	if n.cluster == nil {
		return
	}
	n.cluster.Stop()
	n.cluster.Stop()
	if err := errors.Join(n.raft.Shutdown().Error(), n.trans.Close(), n.cluster.Close()); err != nil {
		n.t.Error(err)
	}
	n.cluster = nil
}

// await waits until something holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	look, late := time.NewTicker(10*time.Millisecond), time.After(patience)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("never: %s", what)
		}
	}
}

// serves waits until nodes have a leader, and exactly they are its voters.
func serves(t *testing.T, all ...*node) (leader *node) {
	t.Helper()
	var want []string
	for _, n := range all {
		want = append(want, n.cluster.Self().ID)
	}
	slices.Sort(want)
	var got []string
	await(t, fmt.Sprintf("%v have a leader", want), func() bool {
		for _, n := range all {
			if n.raft.State() != raft.Leader {
				continue
			}
			got = nil
			for _, s := range n.raft.GetConfiguration().Configuration().Servers {
				if s.Suffrage == raft.Voter {
					got = append(got, string(s.ID))
				} else {
					got = append(got, "no vote: "+string(s.ID))
				}
			}
			slices.Sort(got)
			if leader = n; slices.Equal(got, want) && n.raft.Apply(nil, time.Second).Error() == nil {
				return true
			}
		}
		return false
	})
	for _, n := range all {
		await(t, "the condition of a member is empty: "+n.cluster.Condition(), func() bool { return n.cluster.Condition() == "" })
	}
	return leader
}

func start(all ...*node) {
	for _, n := range all {
		n.start()
	}
}

// A cluster begins once all are there, and goes on when they are started again.
func TestBegin(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			all := nodes(t, n)
			start(all[1:]...)
			if n > 1 {
				await(t, "others say who is missing", func() bool { return strings.Contains(all[1].cluster.Condition(), all[0].addr) })
			}
			all[0].start()
			serves(t, all...)
			ids := all[0].cluster.Self().ID
			for _, n := range all {
				n.stop()
			}
			start(all...)
			serves(t, all...)
			if got := all[0].cluster.Self().ID; got != ids {
				t.Errorf("it was %s and is %s", ids, got)
			}
		})
	}
}

// Nobody begins a cluster whose nodes don't have the same list.
func TestDifferentLists(t *testing.T) {
	t.Parallel()
	list := addrs(t, 3)
	a, b := newNode(t, list[0], list[0], list[1]), newNode(t, list[1], list...)
	start(a, b)
	await(t, "the node says what differs", func() bool { return strings.Contains(a.cluster.Condition(), "different lists") })
	if blank, err := isBlank(a.raft); !blank || err != nil {
		t.Errorf("it has begun: %v", err)
	}
}

// The node that writes the first entry stops before anybody has heard of it: it goes on when it is
// back, and if it has lost that entry another one begins, or takes its place.
func TestStoppedWhileBeginning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(a, b, c *node)
	}{
		{"it comes back", func(a, b, c *node) { a.start() }},
		{"it has lost its disk", func(a, b, c *node) { a.wipe(); a.start() }},
		{"another has lost its disk", func(a, b, c *node) { c.wipe(); start(a, c) }},
		{"all that have not heard of it have", func(a, b, c *node) { b.wipe(); c.wipe(); start(b, c) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			all := nodes(t, 3)
			start(all[1:]...)
			all[0].open()
			if missing := all[0].cluster.form(all[0].raft); missing != "" {
				t.Fatal(missing)
			}
			all[0].stop() // sooner than it can have stood for election
			if c.do(all[0], all[1], all[2]); all[0].cluster == nil {
				// Two of the ids that it knows are gone, and none of them had promised anything: it
				// has to be emptied by hand.
				all[0].wipe()
				all[0].start()
			}
			serves(t, all...)
		})
	}
}

// A node that has lost its disk is another one: it is taken in, in place of the old one, whose data
// can't take part any more when it is back.
func TestLostDisk(t *testing.T) {
	t.Parallel()
	all := nodes(t, 3)
	start(all...)
	leader := serves(t, all...)
	lost := all[(slices.Index(all, leader)+1)%3]
	dir, store, id := lost.dir, lost.store, lost.cluster.Self().ID
	lost.wipe()
	lost.start()
	if lost.cluster.Self().ID == id {
		t.Fatal("it has the same id")
	}
	serves(t, all...)

	lost.stop()
	lost.dir, lost.store = dir, store
	lost.start()
	if got := lost.cluster.Self().ID; got != id {
		t.Fatalf("it was %s and is %s", id, got)
	}
	await(t, "it says that it was removed", func() bool { return strings.Contains(lost.cluster.Condition(), "was removed") })
	await(t, "the others serve", func() bool {
		return slices.ContainsFunc(all, func(n *node) bool {
			return n != lost && n.raft.State() == raft.Leader && n.raft.Apply(nil, time.Second).Error() == nil
		})
	})
	if lost.raft.State() == raft.Leader {
		t.Error("a node that was removed leads")
	}
}

// A directory is one process's from before its id is read: another one, at another address, neither starts nor gives it
// another id. What is in the place of the directory gets none.
func TestOneProcessADirectory(t *testing.T) {
	t.Parallel()
	list := addrs(t, 2)
	open := func(dir, addr string) (*Cluster, error) { return Open(Options{Dir: dir, Nodes: list, Addr: addr}) }
	dir := filepath.Join(t.TempDir(), "data")
	c, err := open(dir, list[0])
	if err != nil {
		t.Fatal(err)
	}
	if other, err := open(dir, list[1]); !errors.Is(err, ErrDirectory) || !errors.Is(err, datadir.ErrInUse) {
		t.Errorf("another process: %v", err)
		if err == nil {
			other.Close()
		}
	}
	if id, err := os.ReadFile(filepath.Join(dir, datadir.IDFile)); err != nil || strings.TrimSpace(string(id)) != c.Self().ID {
		t.Errorf("the directory of %s has the id %s, %v", c.Self().ID, id, err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeID(dir, "x", c.Lock().Held); err == nil {
		t.Error("another directory gets the id")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("there is %v, %v", left, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if c, err = open(dir, list[1]); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// Nodes are added, removed and made leader by a command, which any node passes on.
func TestCommand(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	list := addrs(t, 4)
	all := []*node{newNode(t, list[0], list[:3]...), newNode(t, list[1], list[:3]...), newNode(t, list[2], list[:3]...)}
	start(all...)
	serves(t, all...)
	for _, n := range all {
		command, err := NewCommand([]string{n.addr}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer command.Close()
		status, err := command.Transfer(ctx, n.addr)
		if err != nil || status.Leader != n.addr || len(status.Members) != 3 {
			t.Errorf("%+v, %v", status, err)
		}
		await(t, "one may fail once all have heard of the new leader", func() bool {
			status, err := command.Status(ctx)
			return err == nil && status.MayFail == 1
		})
	}
	command, err := NewCommand(list[:2], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer command.Close()
	if _, err := command.Add(ctx, list[3]); err == nil {
		t.Error("a node that does not run was added")
	}
	more := newNode(t, list[3], list...)
	more.start()
	var changes atomic.Int32
	all[0].cluster.OnChange(func() { changes.Add(1) })
	if changes.Load() != 1 {
		t.Errorf("the members were told %d times at first", changes.Load())
	}
	await(t, "it says that it has to be added", func() bool { return strings.Contains(more.cluster.Condition(), "cluster add") })
	if status, err := command.Add(ctx, list[3]); err != nil || len(status.Members) != 4 {
		t.Errorf("%+v, %v", status, err)
	}
	serves(t, append(all, more)...)
	await(t, "a node is told that the members have changed", func() bool { return changes.Load() > 1 })
	if status, err := command.Add(ctx, list[3]); err != nil || len(status.Members) != 4 {
		t.Errorf("to add it again changes nothing: %+v, %v", status, err)
	}
	leader := slices.IndexFunc(all, func(n *node) bool { return n.raft.State() == raft.Leader })
	if leader >= 0 {
		if status, err := command.Remove(ctx, all[leader].addr); err != nil || len(status.Members) != 3 {
			t.Errorf("the leader is removed: %+v, %v", status, err)
		}
		gone := all[leader]
		left := append(slices.Delete(slices.Clone(all), leader, leader+1), more)
		serves(t, left...)
		await(t, "it says that it was removed", func() bool { return strings.Contains(gone.cluster.Condition(), "was removed") })
		if _, err := command.Add(ctx, gone.addr); err == nil {
			t.Error("a node that was removed was added with its data")
		}
	}
	if _, err := command.Remove(ctx, "127.0.0.1:1"); err != nil {
		t.Errorf("who is no member is removed: %v", err)
	}
}

// The only node of a cluster goes to another address, and others that are added know it there.
func TestAnotherAddressAlone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	list := addrs(t, 3)
	first := newNode(t, list[0], list[0]).start()
	serves(t, first)
	first.stop()
	first.addr, first.list = list[1], list[1:]
	first.start()
	more := newNode(t, list[2], list[1:]...).start()
	serves(t, first)
	command, err := NewCommand(list[1:2], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer command.Close()
	if status, err := command.Add(ctx, list[2]); err != nil || len(status.Members) != 2 || !status.Members[0].Reached || status.Members[0].Addr != list[1] {
		t.Errorf("%+v, %v", status, err)
	}
	if status, err := command.Transfer(ctx, list[2]); err != nil || status.Leader != list[2] {
		t.Errorf("%+v, %v", status, err)
	}
	serves(t, first, more)
}

// The leadership goes to a member that is there. One that is not is not waited for, and whoever leads
// goes on.
func TestHandOver(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := nodes(t, 3)
	start(all...)
	leader := serves(t, all...)
	others := slices.DeleteFunc(slices.Clone(all), func(n *node) bool { return n == leader })
	gone, there := others[0], others[1] // as they stand in the configuration: hashicorp/raft would take the first one
	for _, s := range leader.raft.GetConfiguration().Configuration().Servers {
		if s.ID == raft.ServerID(there.cluster.Self().ID) {
			gone, there = there, gone
			break
		}
		if s.ID == raft.ServerID(gone.cluster.Self().ID) {
			break
		}
	}
	for _, n := range others {
		await(t, "it has all entries", func() bool { return n.raft.AppliedIndex() == leader.raft.LastIndex() })
	}
	gone.stop()
	leader.cluster.StepDown(ctx)
	if leader.raft.State() == raft.Leader {
		t.Error("the leadership was not handed to the one that is there")
	}
	await(t, "it leads", func() bool {
		return there.raft.State() == raft.Leader && there.raft.Apply(nil, patience).Error() == nil
	})
	if err := there.cluster.transfer(ctx, gone.addr); err == nil {
		t.Error("the leadership was handed to a node that does not run")
	}
	if err := there.raft.Apply(nil, patience).Error(); err != nil {
		t.Errorf("the leader can't go on: %v", err)
	}
	leader.stop()
	there.cluster.StepDown(ctx) // there is nobody
}

// A member that answers, and does not follow the leader, is not counted as one that others may fail
// beside.
func TestWhoFollows(t *testing.T) {
	t.Parallel()
	all := nodes(t, 3)
	start(all...)
	leader := serves(t, all...)
	await(t, "one may fail", func() bool { return leader.cluster.Status(t.Context()).MayFail == 1 })
	idle := all[(slices.Index(all, leader)+1)%3]
	if err := idle.raft.Shutdown().Error(); err != nil {
		t.Fatal(err)
	}
	await(t, "none may fail", func() bool {
		s := leader.cluster.Status(t.Context())
		return s.MayFail == 0 && !s.Members[slices.Index(all, idle)].Follows && s.Members[slices.Index(all, idle)].Reached
	})
}

// commandOf returns who asks some nodes.
func commandOf(t *testing.T, of ...*node) *Command {
	t.Helper()
	var list []string
	for _, n := range of {
		list = append(list, n.addr)
	}
	command, err := NewCommand(list, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { command.Close() })
	return command
}

// removed has a member be removed: who leads may change meanwhile, and who follows it with that.
func removed(t *testing.T, command *Command, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	for ctx.Err() == nil {
		if _, err = command.Remove(ctx, addr); err == nil {
			return
		}
	}
	t.Fatalf("%s is not removed: %v", addr, err)
}

// A removal that would leave no majority that follows is refused.
func TestRemoveTooMany(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := nodes(t, 4)
	start(all...)
	leader := serves(t, all...)
	others := slices.DeleteFunc(slices.Clone(all), func(n *node) bool { return n == leader })
	command := commandOf(t, leader, others[1], others[2])
	others[0].stop()
	removed(t, command, others[1].addr) // three are left, of which two follow
	for _, n := range []*node{leader, others[2]} {
		if _, err := command.Remove(ctx, n.addr); err == nil {
			t.Error("two are left, of which one follows")
		}
	}
	removed(t, command, others[0].addr)
}
