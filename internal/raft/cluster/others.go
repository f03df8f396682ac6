package cluster

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// removed finds out whether a cluster goes on without this node.
func (c *Cluster) removed(r *raft.Raft) (condition string) {
	known := c.others()
	if config := r.GetConfiguration(); config.Error() == nil {
		for _, s := range config.Configuration().Servers {
			if addr := addrOf(string(s.Address)); addr != c.self.Addr && !slices.Contains(known, addr) {
				known = append(known, addr)
			}
		}
	}
	var away []string
	for _, of := range c.askAll(known) {
		if of.info.Leader != "" && c.foreign(of) {
			return c.noMember()
		}
		if of.err != nil {
			away = append(away, "; "+of.addr+" can't be reached: "+reason(of.err))
		}
	}
	return "no leader is known: a majority of the members must run and reach each other" + strings.Join(away, "")
}

// removedBy reports whether the leader that this node hears of does not have it among the members. hashicorp/raft goes on to
// send to a node that was removed until what it had sent before has arrived, or is given up. A node that is taken in does
// not find itself among the members either, until it has all entries; so the leader is asked.
func (c *Cluster) removedBy(r *raft.Raft, leader string) bool {
	config := r.GetConfiguration()
	known := config.Error() == nil && slices.ContainsFunc(config.Configuration().Servers, func(s raft.Server) bool { return string(s.ID) == c.self.ID })
	if known && c.Condition() == "" {
		return false
	}
	info, err := c.askOne(c.ctx, leader)
	return c.foreign(asked{addr: leader, info: info, err: err})
}

// noMember is the condition of a node that was removed.
func (c *Cluster) noMember() string {
	return fmt.Sprintf("this node was removed from the cluster, and its data can't be used in the cluster again: to make it join as a new node, stop it, "+
		"empty its data directory, and start it (then run gateway cluster add %s, if the cluster does not have its address)", c.self.Addr)
}

// foreign reports whether another node answers, and is in a cluster that this one is not in.
func (c *Cluster) foreign(of asked) bool {
	return of.err == nil && len(of.info.Members) > 0 &&
		!slices.ContainsFunc(of.info.Members, func(m Seat) bool { return m.ID == c.self.ID })
}

// reason is an error as it is the next time too: without the ports of a connection.
func reason(err error) string {
	text := err.Error()
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		text = strings.ReplaceAll(text, op.Error(), op.Op+": "+op.Err.Error())
	}
	return text
}

// Alone makes sure that a node whose data has no other member may go on alone: that its list has others may
// be because they are to be added, or were removed. But if one of them is in a cluster that does not have this
// node, the data is not what belongs here, and two would grant the same locks. So it is if one of them founds a
// cluster with the data of a store without peers, as this node is about to. It waits a while for those that don't
// answer.
func (c *Cluster) Alone(founds bool) error {
	c.founds.Store(founds)
	others := c.others()
	for begun := time.Now(); len(others) > 0; {
		answered := true
		for _, of := range c.askAll(others) {
			if c.foreign(of) {
				return c.stranger(of)
			}
			if founds && of.err == nil && of.info.Founds {
				_ = pause(c.ctx, 2*tendInterval) // so that the other one finds out too, while this one is there
				return c.stranger(of)
			}
			answered = answered && of.err == nil && of.info.State != starting
		}
		if answered {
			return nil
		}
		if time.Since(begun) > aloneAfter {
			c.log.Warn("this node's data names no other member, and not all others of its list answer: it continues alone", "node", c.self.Addr, "nodes", c.nodes)
			return nil
		}
		if pause(c.ctx, tendInterval) != nil {
			return c.ctx.Err()
		}
	}
	return nil
}

// stranger says that another node of the list is in another cluster, or is about to found one as this node is.
func (c *Cluster) stranger(of asked) error {
	own, there := "that of a separate cluster with no other member", "is in a cluster that does not have this node"
	if c.founds.Load() {
		own = "that of a single gateway, from which a cluster is formed"
	}
	if of.info.Founds && len(of.info.Members) == 0 {
		there = "is forming one from the data of another single gateway"
	}
	return fmt.Errorf("the data of this node, %s, is %s; but %s, which is also in FENCEPOST_STORE, %s, and two clusters can't be merged. "+
		"If this is the wrong directory, give the node the right one or an empty one. With an empty one it joins the cluster (if the cluster does not have its address, run gateway cluster add). "+
		"If you want two clusters, or this one is to continue, remove %s from FENCEPOST_STORE here", c.self.Addr, own, of.addr, there, of.addr)
}

// lookAround has a leader without other members end, if another node of its list turns out to be in another
// cluster: see Alone.
func (c *Cluster) lookAround(r *raft.Raft) {
	c.mu.Lock()
	due := len(c.nodes) > 1 && time.Since(c.alone) > aloneAfter
	c.mu.Unlock()
	if config := r.GetConfiguration(); !due || config.Error() != nil || len(config.Configuration().Servers) > 1 {
		return
	}
	for _, of := range c.askAll(c.others()) {
		if c.foreign(of) {
			c.fail(c.stranger(of))
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alone = time.Now()
}
