package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"fencepost/internal/raft/peer"
)

// member returns one of a status: who has a vote and follows, but for what edit changes.
func member(addr string, edit ...func(*Member)) Member {
	m := Member{Seat: Seat{ID: "id of " + addr, Addr: addr, Voter: true}, Reached: true, Follows: true, State: "follower"}
	for _, e := range edit {
		e(&m)
	}
	return m
}

// A status is whole where all members are there, follow and vote, and as many may fail as their number allows: who
// replaces disks one by one goes on by that alone.
func TestWhole(t *testing.T) {
	noVote := func(m *Member) { m.Voter = false }
	lags := func(m *Member) { m.Follows = false }
	slow := func(m *Member) { m.DiskTime = 1500 }
	quick := func(m *Member) { m.DiskTime = 20 }
	away := func(m *Member) { m.Reached, m.Follows = false, false }
	for _, c := range []struct {
		what   string
		status Status
		says   string // empty: it is whole
	}{
		{"all", Status{Node: "a", Leader: "a", MayFail: 1, Members: []Member{member("a"), member("b"), member("c")}}, ""},
		{"one", Status{Node: "a", Leader: "a", MayFail: 0, Members: []Member{member("a")}}, ""},
		{"two, which may not fail", Status{Node: "a", Leader: "a", MayFail: 0, Members: []Member{member("a"), member("b")}}, ""},
		{"the third has no vote yet", Status{Node: "a", Leader: "a", MayFail: 0, Members: []Member{member("a"), member("b"), member("c", noVote)}}, "c has no vote"},
		{"the third is away", Status{Node: "a", Leader: "a", MayFail: 0, Members: []Member{member("a"), member("b"), member("c", away)}}, "c can't be reached"},
		{"the third is behind", Status{Node: "a", Leader: "a", MayFail: 0, Members: []Member{member("a"), member("b"), member("c", lags)}}, "c does not follow"},
		{"the disk of the third is slow", Status{Node: "a", Leader: "a", MayFail: 1, Members: []Member{member("a"), member("b", quick), member("c", slow)}}, "the disk of c is slow, a write takes 1500 ms: if one more member goes down, all changes may wait for it"},
		{"its own disk is slow", Status{Node: "a", Leader: "a", MayFail: 1, Members: []Member{member("a", slow), member("b"), member("c")}}, "all changes wait for it"},
		{"the only disk is slow", Status{Node: "a", Leader: "a", MayFail: 0, Members: []Member{member("a", slow)}}, "all changes wait for it"},
		{"no disk is slow", Status{Node: "a", Leader: "a", MayFail: 1, Members: []Member{member("a", quick), member("b", quick), member("c", quick)}}, ""},
		{"fewer may fail than there are", Status{Node: "a", Leader: "a", MayFail: 0, Members: []Member{member("a"), member("b"), member("c")}}, "0 may fail"},
		{"nobody leads", Status{Node: "a", MayFail: -1, Members: []Member{member("a", lags), member("b", lags), member("c", lags)}}, "does not serve"},
		{"it has no part", Status{Node: "a", Condition: "it is taken in", MayFail: -1}, "it is taken in"},
		{"it has nobody", Status{Node: "a", MayFail: -1}, "does not serve"},
		{"it is not the leader's word", Status{Node: "b", Leader: "a", MayFail: 1, Members: []Member{member("a"), member("b"), member("c")}}, "the leader a was not asked"},
		{"the leader is away", Status{Node: "b", Leader: "a", MayFail: 0, Members: []Member{member("a", away), member("b"), member("c")}}, "a, the leader according to b, can't be reached"},
	} {
		switch err := c.status.Whole(); {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v, want %q", c.what, err, c.says)
		}
	}
}

// What a node of an earlier version does not say is not known.
func TestADiskTimeThatIsNotTold(t *testing.T) {
	for told, want := range map[string]int64{`{}`: -1, `{"disk_ms":0}`: 0, `{"disk_ms":7}`: 7} {
		var answer response
		if err := json.Unmarshal([]byte(`{"info":`+told+`,"status":{"members":[`+told+`]}}`), &answer); err != nil {
			t.Fatal(err)
		}
		if info, member := answer.Info.DiskTime, answer.Status.Members[0].DiskTime; info != want || member != want {
			t.Errorf("%s: of a node %d, of a member %d, want %d", told, info, member, want)
		}
	}
}

// A node that is taken in takes an earlier list of the members for theirs, until it has all entries. So the leader is
// asked, where one is known.
func TestTheLeaderSaysHowTheClusterIs(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprint("the leader is gone: ", gone), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			list := addrs(t, 1)
			if !gone {
				list[0] = nodeThat(t, func(n *peer.Peer, _ request) *response {
					return &response{Status: &Status{Node: n.Self().Addr, Leader: n.Self().Addr, MayFail: 1}}
				}).Self().Addr
			}
			comer := nodeThat(t, func(n *peer.Peer, _ request) *response {
				return &response{Status: &Status{Node: n.Self().Addr, Leader: list[0], MayFail: 0}}
			})
			command, err := NewCommand([]string{comer.Self().Addr}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer command.Close()
			want := list[0]
			if gone {
				want = comer.Self().Addr
			}
			if status, err := command.Status(ctx); err != nil || status.Node != want {
				t.Errorf("%s says so, and %s has to: %v", status.Node, want, err)
			}
		})
	}
}

// openWith has a node take part that has the members of a cluster on its disk, and does not look after the cluster: so all that
// it says beside what Raft says is of before.
func openWith(t *testing.T, n *node, members ...peer.Node) {
	t.Helper()
	n.open()
	servers := []raft.Server{server(n.cluster.Self(), raft.Voter)}
	for _, m := range members {
		servers = append(servers, server(m, raft.Voter))
	}
	if err := n.raft.BootstrapCluster(raft.Configuration{Servers: servers}).Error(); err != nil {
		t.Fatal(err)
	}
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	n.cluster.raft = n.raft
}

// From the moment in which a node leads it says so, and nothing else.
func TestStatusOnceANodeLeads(t *testing.T) {
	t.Parallel()
	n := nodes(t, 1)[0]
	openWith(t, n)
	await(t, "it leads", func() bool { return n.raft.State() == raft.Leader })
	if s := n.cluster.Status(t.Context()); s.Whole() != nil || s.Leader != n.addr || s.Members[0].State != leading {
		t.Errorf("%+v: %v", s, s.Whole())
	}
}

// A node that has not heard yet who leads says what the one says that does.
func TestStatusBesideTheOneThatLeads(t *testing.T) {
	t.Parallel()
	leader := nodeThat(t, func(n *peer.Peer, _ request) *response {
		return &response{Info: &Info{ID: n.Self().ID, Addr: n.Self().Addr, State: leading, Leader: n.Self().Addr, Term: 1 << 32, Committed: 1}}
	}).Self()
	n := nodes(t, 1)[0]
	openWith(t, n, leader)
	await(t, "it has its members", func() bool { return len(n.cluster.info().Members) == 2 })
	s := n.cluster.Status(t.Context())
	if s.Leader != leader.Addr || s.Term != 1<<32 {
		t.Errorf("the leader is %q, in term %d", s.Leader, s.Term)
	}
	for _, m := range s.Members {
		if m.Follows != (m.Addr == leader.Addr) {
			t.Errorf("%+v", m)
		}
	}
	if err := s.Whole(); err == nil || !strings.Contains(err.Error(), "the node is starting") {
		t.Errorf("%v", err)
	}
}

// A removal counts who follows the leader, not who answers.
func TestRemoveBesideOneThatDoesNotFollow(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := nodes(t, 3)
	start(all...)
	leader := serves(t, all...)
	others := slices.DeleteFunc(slices.Clone(all), func(n *node) bool { return n == leader })
	command := commandOf(t, leader, others[1])
	if err := others[0].raft.Shutdown().Error(); err != nil { // it answers still
		t.Fatal(err)
	}
	await(t, "it does not follow", func() bool { return others[0].cluster.info().Leader == "" })
	if _, err := command.Remove(ctx, others[1].addr); err == nil {
		t.Error("one of the two that are left follows, and the other one was removed")
	}
	removed(t, command, others[0].addr)
}

// A removal may be repeated; who hands the leadership to no member is told so.
func TestRemoveAgain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := nodes(t, 3)
	start(all...)
	leader := serves(t, all...)
	gone := all[(slices.Index(all, leader)+1)%3]
	command := commandOf(t, leader, gone)
	removed(t, command, gone.addr)
	if status, err := command.Remove(ctx, gone.addr); err != nil || len(status.Members) != 2 {
		t.Errorf("%+v, %v", status, err)
	}
	if _, err := command.Transfer(ctx, gone.addr); err == nil {
		t.Error("the leadership was handed to a node that is no member")
	}
}

// Who the members are is told whenever it changes, and at the start.
func TestDiffer(t *testing.T) {
	server := func(id, address string, suffrage raft.ServerSuffrage) raft.Server {
		return raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(address), Suffrage: suffrage}
	}
	a, b := server("a", "1", raft.Voter), server("b", "2", raft.Voter)
	for _, c := range []struct {
		what          string
		before, after []raft.Server
		told          bool
	}{
		{"nothing", []raft.Server{a, b}, []raft.Server{a, b}, false},
		{"one more", []raft.Server{a}, []raft.Server{a, b}, true},
		{"one less", []raft.Server{a, b}, []raft.Server{a}, true},
		{"a vote", []raft.Server{a, server("b", "2", raft.Nonvoter)}, []raft.Server{a, b}, true},
		{"an address", []raft.Server{a, b}, []raft.Server{a, server("b", "3", raft.Voter)}, true},
		{"another one", []raft.Server{a, b}, []raft.Server{a, server("c", "2", raft.Voter)}, true},
	} {
		told := 0
		n := &Cluster{members: c.before, changed: func() { told++ }}
		n.noteMembers(c.after)
		n.noteMembers(c.after)
		if want := map[bool]int{true: 1}[c.told]; told != want {
			t.Errorf("%s: told %d times, want %d", c.what, told, want)
		}
	}
}
