package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/raft/peer"
)

// Two of the States of a node: it does not take part yet; it leads.
const (
	starting = "starting"
	leading  = "leader"
)

// Seat is a member as a node's configuration has it.
type Seat struct {
	ID    string `json:"id"`
	Addr  string `json:"address"`
	Voter bool   `json:"voter"`
}

// Info is what a node says of itself.
type Info struct {
	ID      string   `json:"id"`
	Addr    string   `json:"address"`
	Version string   `json:"version"`
	Nodes   []string `json:"nodes"`  // of its settings
	Blank   bool     `json:"blank"`  // it has no data
	Founds  bool     `json:"founds"` // its data was that of a store without peers, with which it founds a cluster

	State     string `json:"state"`     // leader, follower, candidate, or starting
	Condition string `json:"condition"` // why it has no part in a cluster; empty if it has
	Leader    string `json:"leader"`    // host:port; empty if it knows of none
	Term      uint64 `json:"term"`
	Applied   uint64 `json:"applied"`   // entries that it has carried out
	Committed uint64 `json:"committed"` // entries that it knows a majority to have
	Snapshot  uint64 `json:"snapshot"`  // the entry of its last snapshot; 0 without one

	// LastContact is how long ago it has heard of the leader, in ms; 0 at the leader, -1 if
	// it never has.
	LastContact int64 `json:"last_contact_ms"`

	// DiskTime is how long a write to its log takes lately, in ms; -1 where it has written little, or does not
	// say, as earlier versions.
	DiskTime int64 `json:"disk_ms"`

	LogLost  uint64 `json:"log_lines_lost"` // since its start
	LogHangs bool   `json:"log_hangs"`      // lines can't be written now

	// Rules is which version of the rules is in force, and KnowsRules the newest that the node knows; 0: it does not say, as earlier
	// versions, which know the first one.
	Rules      int `json:"rules"`
	KnowsRules int `json:"knows_rules"`

	Members []Seat `json:"members"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *Info) UnmarshalJSON(b []byte) error {
	type plain Info
	i.DiskTime = -1
	return json.Unmarshal(b, (*plain)(i))
}

// Member is a member of the cluster as another node sees it.
type Member struct {
	Seat
	Reached bool   `json:"reached"`
	Follows bool   `json:"follows"`         // it leads, or follows the leader and is not far behind
	Error   string `json:"error,omitempty"` // why it was not reached
	State   string `json:"state"`           // of Info; unreachable, if it was not reached
	Version string `json:"version,omitempty"`

	LastContact int64  `json:"last_contact_ms"` // see Info
	DiskTime    int64  `json:"disk_ms"`         // see Info
	LogLost     uint64 `json:"log_lines_lost"`  // see Info
	LogHangs    bool   `json:"log_hangs"`       // see Info
	Applied     uint64 `json:"applied"`         // see Info
	Behind      uint64 `json:"behind"`          // entries that the leader has and it has not carried out
	KnowsRules  int    `json:"knows_rules"`     // see Info; 0 too if it was not reached
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Member) UnmarshalJSON(b []byte) error {
	type plain Member
	m.DiskTime = -1
	return json.Unmarshal(b, (*plain)(m))
}

// slowDisk is how long a write to a member's log takes at least where its disk is slow: from so long on no other change
// of the cluster should be begun. It is as long as a leader may be silent. A disk that is well takes some ms.
const slowDisk = 500 * time.Millisecond

// Slow reports whether the disk of a member is: every write waits for it while the member leads, or is needed for a
// majority.
func (m Member) Slow() bool { return m.DiskTime >= slowDisk.Milliseconds() }

// Status is how a cluster is, as one node sees it.
type Status struct {
	Node      string   `json:"node"`      // host:port of who says so
	Condition string   `json:"condition"` // see Info
	Leader    string   `json:"leader"`    // host:port; empty: there is none
	Term      uint64   `json:"term"`
	Members   []Member `json:"members"`            // by address
	Rules     int      `json:"rules"`              // see Info; 0: it is not known
	HeldBack  []string `json:"rules_held_back_by"` // members for which later rules, which another one knows, are not in force yet
	MayFail   int      `json:"may_fail"`           // how many more of those that follow may fail, and it serves; -1: it does not serve
}

// Whole returns why the next member may not be stopped yet: an error unless all are there, follow the leader and
// have votes, no disk of theirs is slow, and as many may fail as their number allows. It goes by the word of the leader:
// another node may not have heard yet who the members are.
func (s Status) Whole() error {
	switch {
	case s.Condition != "":
		return fmt.Errorf("%s takes no part in a cluster: %s", s.Node, s.Condition)
	case s.MayFail < 0:
		return errors.New("the cluster does not serve: less than a majority of its members follow a leader")
	case slices.ContainsFunc(s.Members, func(m Member) bool { return m.Addr == s.Leader && !m.Reached }):
		return fmt.Errorf("%s, the leader according to %s, can't be reached: if it is down, the others elect another leader within seconds", s.Leader, s.Node)
	case s.Leader != s.Node:
		return fmt.Errorf("the leader %s was not asked: this is what %s knows, and it may be behind", s.Leader, s.Node)
	}
	for _, m := range s.Members {
		switch {
		case !m.Reached:
			return fmt.Errorf("%s can't be reached", m.Addr)
		case !m.Follows:
			return fmt.Errorf("%s does not follow the leader or is behind", m.Addr)
		case !m.Voter:
			return fmt.Errorf("%s has no vote yet: it gets one by itself once it has caught up", m.Addr)
		case m.Slow():
			waits := "if one more member goes down, all changes may wait for it"
			if m.Addr == s.Leader {
				waits = "all changes wait for it"
			}
			return fmt.Errorf("the disk of %s is slow, a write takes %d ms: %s", m.Addr, m.DiskTime, waits)
		}
	}
	if most := (len(s.Members) - 1) / 2; s.MayFail < most {
		return fmt.Errorf("of %d members, %d may fail instead of %d", len(s.Members), s.MayFail, most)
	}
	return nil
}

// follows reports whether a node is the one with an id, and has a leader.
func follows(i Info, id, leader string) bool { return i.ID == id && leader != "" && i.Leader == leader }

// info says how this node is.
func (c *Cluster) info() Info {
	i := Info{ID: c.self.ID, Addr: c.self.Addr, Version: c.options.Version, Nodes: c.nodes, State: starting, LastContact: -1, DiskTime: c.diskTime(), Condition: c.Condition(), Founds: c.founds.Load()}
	i.LogLost, i.LogHangs = c.logState()
	r := c.started()
	if r == nil {
		return i
	}
	config := r.GetConfiguration()
	if config.Error() != nil {
		return i
	}
	for _, s := range config.Configuration().Servers {
		i.Members = append(i.Members, Seat{ID: string(s.ID), Addr: addrOf(string(s.Address)), Voter: s.Suffrage == raft.Voter})
	}
	i.Blank = r.LastIndex() == 0 && len(i.Members) == 0
	i.State, i.Leader, i.Term = c.standing(r)
	i.Applied, i.Committed = r.AppliedIndex(), r.CommitIndex()
	i.Snapshot = snapshotOf(r)
	i.Rules, i.KnowsRules = c.rulesOf()
	if i.State == leading {
		i.LastContact, i.Condition = 0, "" // Condition is of the last look
	} else if last := r.LastContact(); !last.IsZero() {
		i.LastContact = max(time.Since(last).Milliseconds(), 0)
	}
	return i
}

// standing returns what this node is, and who leads in which term, as of one moment. hashicorp/raft changes the three one after the
// other.
func (c *Cluster) standing(r *raft.Raft) (state, leader string, term uint64) {
	for {
		term = r.CurrentTerm()
		address, _ := r.LeaderWithID()
		state, leader = strings.ToLower(r.State().String()), addrOf(string(address))
		switch {
		case r.CurrentTerm() != term:
			continue
		case state == leading:
			leader = c.self.Addr
		case leader == c.self.Addr: // until now
			leader = ""
		}
		return state, leader, term
	}
}

// Info says how this node is.
func (c *Cluster) Info() Info { return c.info() }

// asked is what came of asking a node.
type asked struct {
	addr string
	info Info
	err  error
}

// askOne asks the node at an address how it is.
func (c *Cluster) askOne(ctx context.Context, addr string) (Info, error) {
	if addr == c.self.Addr {
		return c.info(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	got, err := ask(ctx, c.peer, addr, request{Do: doInfo})
	if err == nil && got.Info == nil {
		err = errors.New("it does not report its state")
	}
	if err != nil {
		return Info{}, err
	}
	return *got.Info, nil
}

// askAll asks nodes at once.
func (c *Cluster) askAll(addrs []string) []asked {
	all := make([]asked, len(addrs))
	var asking sync.WaitGroup
	for i, addr := range addrs {
		asking.Go(func() {
			all[i].addr = addr
			all[i].info, all[i].err = c.askOne(c.ctx, addr)
		})
	}
	asking.Wait()
	return all
}

// Status asks all members how they are. Who leads is the word of the one that knows of the latest term: this node may
// not have heard yet.
func (c *Cluster) Status(ctx context.Context) Status {
	own := c.info()
	status := Status{Node: c.self.Addr, Condition: own.Condition, Members: make([]Member, len(own.Members)), MayFail: -1}
	all := make([]asked, len(own.Members))
	var asking sync.WaitGroup
	for i, seat := range own.Members {
		asking.Go(func() {
			all[i] = asked{addr: seat.Addr, info: own}
			if seat.Addr != c.self.Addr {
				all[i].info, all[i].err = c.askOne(ctx, seat.Addr)
			}
			if there := all[i].info; all[i].err == nil && there.ID != seat.ID {
				all[i].err = &peer.Refused{Node: peer.Node{ID: there.ID, Addr: seat.Addr}, Reason: "its data was lost, and another node has its address"}
			}
		})
	}
	asking.Wait()
	latest, committed := own, uint64(0)
	for _, of := range all {
		if of.err != nil {
			continue
		}
		committed = max(committed, of.info.Committed)
		if of.info.Leader != "" && (of.info.Term > latest.Term || latest.Leader == "") {
			latest = of.info
		}
	}
	status.Leader, status.Term = latest.Leader, latest.Term
	status.Rules = latest.Rules
	voters, able := 0, 0
	for i, of := range all {
		m := memberOf(own.Members[i], of, latest, committed)
		status.Members[i] = m
		if m.Voter {
			voters++
			if m.Follows {
				able++
			}
		}
	}
	status.HeldBack = heldBack(status)
	slices.SortFunc(status.Members, func(a, b Member) int { return strings.Compare(a.Addr+a.ID, b.Addr+b.ID) })
	if voters > 0 && status.Leader != "" {
		status.MayFail = max(able-(voters/2+1), -1)
	}
	return status
}

// heldBack returns the members that do not know the newest rules that any knows, or can't be asked, while these are not in force.
func heldBack(status Status) (by []string) {
	newest := status.Rules
	for _, m := range status.Members {
		newest = max(newest, m.KnowsRules)
	}
	for _, m := range status.Members {
		if newest > max(1, status.Rules) && m.KnowsRules < newest {
			by = append(by, m.Addr)
		}
	}
	slices.Sort(by)
	return by
}

// memberOf returns how a member is that was asked, beside who leads in the latest term that is known, and what was committed.
func memberOf(seat Seat, of asked, latest Info, committed uint64) Member {
	m := Member{Seat: seat, State: "unreachable", LastContact: -1, DiskTime: -1}
	if of.err != nil {
		m.Error = of.err.Error()
		return m
	}
	m.Reached, m.State, m.Version = true, of.info.State, of.info.Version
	m.LastContact, m.Applied, m.DiskTime = of.info.LastContact, of.info.Applied, of.info.DiskTime
	m.LogLost, m.LogHangs = of.info.LogLost, of.info.LogHangs
	m.KnowsRules = of.info.KnowsRules
	if committed > m.Applied {
		m.Behind = committed - m.Applied
	}
	m.Follows = follows(of.info, seat.ID, latest.Leader) && m.Behind <= nearlyAll
	return m
}

// snapshotOf returns the entry of the last snapshot.
func snapshotOf(r *raft.Raft) uint64 {
	n, _ := strconv.ParseUint(r.Stats()["last_snapshot_index"], 10, 64)
	return n
}
