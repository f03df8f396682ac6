package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"fencepost/internal/raft/peer"
)

// anyIndex is for changes of the configuration: hashicorp/raft does not say of which entry the one is that it
// returns (its index is always 0). Changes come one after the other by Cluster.changing instead.
const anyIndex = 0

// leading returns Raft and its configuration at the node that leads, and an error that names
// that one elsewhere.
func (c *Cluster) leading() (r *raft.Raft, config raft.Configuration, err error) {
	if r = c.started(); r == nil {
		return nil, config, errors.New("the node is starting")
	}
	if r.State() != raft.Leader {
		address, _ := r.LeaderWithID()
		if address == "" {
			return nil, config, &refusal{text: "there is no leader now", again: true}
		}
		leader := addrOf(string(address))
		return nil, config, &refusal{text: "the leader is " + leader, leader: leader}
	}
	future := r.GetConfiguration()
	return r, future.Configuration(), future.Error()
}

// takeIn has a node without data follow in place of the one that had its address.
func (c *Cluster) takeIn(ctx context.Context, node string) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	r, config, err := c.leading()
	if err != nil {
		return err
	}
	comer, err := peer.ParseNode(node)
	if err != nil {
		return err
	}
	known := false
	for _, s := range config.Servers {
		if string(s.ID) == comer.ID {
			return nil // it was added before
		}
		known = known || addrOf(string(s.Address)) == comer.Addr
	}
	if !known {
		return fmt.Errorf("no member has the address %s; to add it, run gateway cluster add %s", comer.Addr, comer.Addr)
	}
	return c.follow(ctx, r, comer)
}

// follow adds a node without a vote, if it is there and knows nothing.
func (c *Cluster) follow(ctx context.Context, r *raft.Raft, comer peer.Node) error {
	there, err := c.askOne(ctx, comer.Addr)
	switch {
	case err != nil:
		return fmt.Errorf("%s can't be reached: %w", comer.Addr, err)
	case there.State == starting:
		return &refusal{text: comer.Addr + " is starting", again: true}
	case there.Addr != comer.Addr:
		return fmt.Errorf("the node at %s has another address in its own settings (FENCEPOST_CLUSTER_ADDR): %s", comer.Addr, there.Addr)
	case max(1, there.KnowsRules) < c.rulesInForce():
		return fmt.Errorf("version %s of the gateway at %s does not know version %d of the rules, which is in force: start version %s there", there.Version, comer.Addr, c.rulesInForce(), c.options.Version)
	case comer.ID != "" && there.ID != comer.ID:
		return fmt.Errorf("another node is reached at %s", comer.Addr)
	case !there.Blank:
		return fmt.Errorf("%s has data of its own or was removed earlier: stop it, empty its data directory, and start it again", comer.Addr)
	}
	joins := comer.ID != ""
	comer.ID = there.ID
	c.log.Info("a node is added, without a vote until it has caught up", "node", comer.Addr, "id", comer.ID)
	err = r.AddNonvoter(raft.ServerID(comer.ID), raft.ServerAddress(comer.String()), anyIndex, changeTimeout).Error()
	if joins {
		c.audit("cluster add", comer.Addr, err, "by", byItself)
	}
	return err
}

// rulesInForce returns which version of the rules is in force; 0: that is not known.
func (c *Cluster) rulesInForce() int {
	inForce, _ := c.rulesOf()
	return inForce
}

// promote gives votes to nodes that have all entries, and has those go first whose place they
// take. Before that it has the members know this node's address, which may be another one than
// before if it was alone. It does one step; the next look does the next.
func (c *Cluster) promote(r *raft.Raft) {
	if !c.changing.TryLock() {
		return
	}
	defer c.changing.Unlock()
	future := r.GetConfiguration()
	if future.Error() != nil {
		return
	}
	servers := future.Configuration().Servers
	for _, s := range servers {
		if string(s.ID) == c.self.ID && string(s.Address) != c.self.String() {
			c.log.Info("the address of this node has changed", "node", c.self.Addr, "before", addrOf(string(s.Address)))
			if err := r.AddVoter(s.ID, raft.ServerAddress(c.self.String()), anyIndex, changeTimeout).Error(); err != nil {
				c.log.Warn("the cluster could not be changed; retrying", "node", c.self.Addr, "error", err)
			}
			return
		}
	}
	for _, s := range servers {
		node, err := peer.ParseNode(string(s.Address))
		if err != nil || s.Suffrage != raft.Nonvoter {
			continue
		}
		ctx, cancel := context.WithTimeout(c.ctx, askTimeout)
		there, err := c.askOne(ctx, node.Addr)
		cancel()
		if err != nil || there.ID != node.ID || there.Applied+nearlyAll < r.CommitIndex() || there.Applied == 0 {
			continue
		}
		old := slices.IndexFunc(servers, func(o raft.Server) bool { return o.ID != s.ID && addrOf(string(o.Address)) == node.Addr })
		if old >= 0 {
			c.log.Info("a node that lost its data is removed; its replacement takes its place", "node", node.Addr, "id", string(servers[old].ID))
			err = r.RemoveServer(servers[old].ID, anyIndex, changeTimeout).Error()
			c.audit("cluster remove", node.Addr, err, "by", byItself)
		} else {
			c.log.Info("a node has caught up and gets its vote", "node", node.Addr, "id", node.ID)
			err = r.AddVoter(s.ID, s.Address, anyIndex, changeTimeout).Error()
		}
		if err != nil {
			c.log.Warn("the cluster could not be changed; retrying", "node", node.Addr, "error", err)
		}
		return
	}
}

// add takes in a node at an address that no member has. Where it is a member it was added before.
func (c *Cluster) add(ctx context.Context, addr string) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	r, config, err := c.leading()
	if err != nil {
		return err
	}
	if err := peer.CheckAddr(addr); err != nil {
		return err
	}
	if at := slices.IndexFunc(config.Servers, func(s raft.Server) bool { return addrOf(string(s.Address)) == addr }); at >= 0 {
		if there, err := c.askOne(ctx, addr); err == nil && there.ID == string(config.Servers[at].ID) {
			return nil // it was added before
		}
		return fmt.Errorf("%s is already a member; if it lost its data, it rejoins by itself", addr)
	}
	if len(config.Servers) >= MaxNodes {
		return fmt.Errorf("a cluster has at most %d members", MaxNodes)
	}
	return c.follow(ctx, r, peer.Node{Addr: addr})
}

// remove has a member, by address or id, be one no more. It is refused where those that stay
// are no majority that follows.
func (c *Cluster) remove(ctx context.Context, which string) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	r, config, err := c.leading()
	if err != nil {
		return err
	}
	gone, err := find(config, which)
	if err != nil {
		return &refusal{text: err.Error(), done: errors.Is(err, errNoMember)}
	}
	if string(gone.ID) == c.self.ID {
		if len(config.Servers) == 1 {
			return errors.New("it is the only member; to end the cluster, stop it")
		}
		if err := c.handOver(ctx, r, config.Servers); err != nil {
			return fmt.Errorf("it is the leader and no other member can take over: %w", err)
		}
		return &refusal{text: "it has handed over the leadership: try again", again: true}
	}
	if gone.Suffrage == raft.Voter {
		voters, follow := 0, 0
		for _, s := range config.Servers {
			if s.Suffrage != raft.Voter || s.ID == gone.ID {
				continue
			}
			voters++
			if there, err := c.askOne(ctx, addrOf(string(s.Address))); err == nil && follows(there, string(s.ID), c.self.Addr) &&
				there.Applied+nearlyAll >= r.CommitIndex() {
				follow++
			}
		}
		if follow < voters/2+1 {
			return fmt.Errorf("of the %d members that would be left, only %d follow the leader and have caught up, which is not a majority: bring them back first", voters, follow)
		}
	}
	c.log.Info("a node is removed", "node", addrOf(string(gone.Address)), "id", string(gone.ID))
	return r.RemoveServer(gone.ID, anyIndex, changeTimeout).Error()
}

var errNoMember = errors.New("is not the address or id of a member")

// find returns a member by its address or id.
func find(config raft.Configuration, which string) (found raft.Server, err error) {
	n := 0
	for _, s := range config.Servers {
		if string(s.ID) == which || addrOf(string(s.Address)) == which {
			found, n = s, n+1
		}
	}
	switch n {
	case 0:
		return found, fmt.Errorf("%q %w", which, errNoMember)
	case 1:
		return found, nil
	}
	return found, fmt.Errorf("%d members have the address %s, because one is replacing another: give the id instead", n, which)
}

// transfer hands over the leadership, to a member or to whichever has most of the log.
func (c *Cluster) transfer(ctx context.Context, which string) error {
	r, config, err := c.leading()
	if err != nil {
		return err
	}
	if which == "" {
		return c.handOver(ctx, r, config.Servers)
	}
	to, err := find(config, which)
	switch {
	case err != nil:
		return err
	case string(to.ID) == c.self.ID:
		return nil
	case to.Suffrage != raft.Voter:
		return fmt.Errorf("%s has no vote yet", which)
	}
	return c.handOver(ctx, r, []raft.Server{to})
}

// handOver hands the leadership to one of some members, and returns when that has it. They are asked
// before whether they are there: while hashicorp/raft waits for one that is not, nobody leads. Whoever
// has most of the log is tried first.
func (c *Cluster) handOver(ctx context.Context, r *raft.Raft, among []raft.Server) error {
	type candidate struct {
		raft.Server
		info Info
		err  error
	}
	var all []candidate
	for _, s := range among {
		if s.Suffrage == raft.Voter && string(s.ID) != c.self.ID {
			all = append(all, candidate{Server: s})
		}
	}
	if len(all) == 0 {
		return errors.New("there is no other member with a vote")
	}
	var asking sync.WaitGroup
	for i := range all {
		asking.Go(func() {
			of := &all[i]
			if of.info, of.err = c.askOne(ctx, addrOf(string(of.Address))); of.err == nil && !follows(of.info, string(of.ID), c.self.Addr) {
				of.err = fmt.Errorf("%s does not follow this leader", addrOf(string(of.Address)))
			}
		})
	}
	asking.Wait()
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(b.info.Applied, a.info.Applied) })
	c.mu.Lock()
	seal := c.seal
	c.mu.Unlock()
	if seal != nil {
		seal(ctx)
	}
	var failed []error
	for _, to := range all {
		if to.err == nil {
			to.err = transferTo(ctx, r, to.Server)
		}
		if to.err == nil || r.State() != raft.Leader {
			return to.err
		}
		failed = append(failed, to.err)
	}
	return errors.Join(failed...)
}

// transferTo hands the leadership to a member. hashicorp/raft may never answer at a node whose disk has failed.
func transferTo(ctx context.Context, r *raft.Raft, to raft.Server) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.LeadershipTransferToServer(to.ID, to.Address).Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaving is why a node that is about to stop has no part in a new cluster.
const leaving = "the node is about to stop"

// StepDown hands over the leadership if this node has it and another can take it: what is to
// stop does so first, so that nobody has to find out that it has gone. From now on it begins no cluster, and
// joins none.
func (c *Cluster) StepDown(ctx context.Context) {
	c.leaves.Store(true)
	r := c.started()
	if r == nil || r.State() != raft.Leader {
		return
	}
	config := r.GetConfiguration()
	if config.Error() != nil || len(config.Configuration().Servers) < 2 {
		return
	}
	done := make(chan error, 1)
	c.running.Go(func() { done <- c.handOver(ctx, r, config.Configuration().Servers) })
	select {
	case err := <-done:
		if err != nil {
			c.log.Warn("the leadership could not be handed over; the others will elect a leader", "error", err)
		} else {
			c.log.Info("the leadership was handed over")
		}
	case <-ctx.Done():
	}
}
