package cluster

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
)

// The data of a cluster of its own does not serve alone at the address of another cluster's member: it does not start
// there, and ends when it finds out later.
func TestDataOfAnotherCluster(t *testing.T) {
	t.Parallel()
	all := nodes(t, 3)
	start(all...)
	serves(t, all...)
	all[2].stop()
	alone := newNode(t, all[2].addr, all[2].addr).start()
	serves(t, alone)
	alone.stop()

	alone.list = all[2].list
	alone.open()
	if err := alone.cluster.Alone(false); err == nil || !strings.Contains(err.Error(), all[0].addr) && !strings.Contains(err.Error(), all[1].addr) {
		t.Errorf("the data of another cluster may serve: %v", err)
	}
	alone.cluster.Start(alone.raft, func(err error) { alone.failed.Store(err.Error()) })
	await(t, "a node that leads alone finds the other cluster, and ends", func() bool { return alone.failed.Load() != nil })
}

// A node whose list has others goes on alone where these have no data, are gone, or were members of its own
// cluster.
func TestAlone(t *testing.T) {
	t.Parallel()
	all := nodes(t, 2)
	start(all...)
	leader := serves(t, all...)
	other := all[0]
	if other == leader {
		other = all[1]
	}
	more := newNode(t, addrs(t, 1)[0], append([]string{"127.0.0.1:1"}, other.list...)...).start() // blank
	leader.list = append(leader.list, more.addr)
	again := func(what string) {
		t.Helper()
		leader.stop()
		leader.open()
		if err := leader.cluster.Alone(false); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		leader.cluster.Start(leader.raft, func(err error) { t.Errorf("%s: %v", what, err) })
		serves(t, leader)
		await(t, "it has looked around", func() bool {
			leader.cluster.mu.Lock()
			defer leader.cluster.mu.Unlock()
			return !leader.cluster.alone.IsZero()
		})
	}
	removed(t, commandOf(t, leader), other.addr)
	again("one was removed and runs, one has no data")
	other.stop()
	more.stop()
	again("all others are down")
}

// Of two nodes that are both about to found a cluster neither does, nor does one whose list has a node of a running cluster.
func TestTwoFound(t *testing.T) {
	t.Parallel()
	list := addrs(t, 3)
	begun := newNode(t, list[2], list[2]).start()
	serves(t, begun)
	for what, c := range map[string]struct {
		others []string
		says   string
	}{
		"both at once":       {nil, "is forming one from the data of another single gateway"},
		"a cluster is there": {[]string{begun.addr}, "is in a cluster that does not have this node"},
	} {
		var both [2]*node
		var refused [2]error
		var asking sync.WaitGroup
		for i := range both {
			both[i] = newNode(t, list[i], append(c.others, list[:2]...)...)
			both[i].open()
			asking.Go(func() { refused[i] = both[i].cluster.Alone(true) })
		}
		asking.Wait()
		for i, err := range refused {
			if err == nil || !strings.Contains(err.Error(), "is that of a single gateway") || !strings.Contains(err.Error(), c.says) && c.others == nil {
				t.Errorf("%s: %s: %v", what, list[i], err)
			}
			both[i].cluster.Start(both[i].raft, func(error) {})
			both[i].stop()
		}
	}
}

// A node that was removed, and is sent something by the leader all the same, does not take itself for a member again.
func TestWhatIsHeardAfterARemoval(t *testing.T) {
	t.Parallel()
	all := nodes(t, 3)
	start(all...)
	leader := serves(t, all...)
	at := (slices.Index(all, leader) + 1) % 3
	gone := all[at]
	removed(t, commandOf(t, all...), gone.addr)
	saysSo := func() bool { return strings.Contains(gone.cluster.Condition(), "was removed") }
	await(t, "it says that it was removed", saysSo)

	leader = serves(t, slices.Delete(slices.Clone(all), at, at+1)...)
	from, to := leader.cluster.Self(), gone.cluster.Self()
	heartbeat := raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(from.ID), Addr: []byte(from.String())},
		Term:      leader.raft.CurrentTerm(),
	}
	var answer raft.AppendEntriesResponse
	if err := leader.trans.AppendEntries(raft.ServerID(to.ID), raft.ServerAddress(to.String()), &heartbeat, &answer); err != nil || !answer.Success {
		t.Fatalf("a heartbeat is answered %+v, %v", answer, err)
	}
	gone.cluster.look()
	if !saysSo() {
		t.Errorf("it says %q", gone.cluster.Condition())
	}
}
