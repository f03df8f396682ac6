package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	slotCount   = 16384
	nodeTimeout = 1000 // ms, after which a node that does not answer counts as down
	meetTimeout = 4000 // ms, the same while the nodes get to know each other: then a meeting is given up as well
	keysAtOnce  = 20   // that are moved from one node to another

	// failoverTimeout is when a node gives up a fail-over that it was asked for, and
	// a little more.
	failoverTimeout = 5500 * time.Millisecond
)

// Cluster is a Redis Cluster.
type Cluster struct {
	t       testing.TB
	members []*Server
	masters int // how many there are
	ids     map[*Server]string
}

// StartCluster starts a Cluster that ends with the test: masters that share the
// slots evenly, and replicas, each of one of them in turn. A node that does not
// answer for 1 s counts as down. Arguments are for all nodes.
func StartCluster(t testing.TB, masters, replicas int, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, masters: masters, ids: map[*Server]string{}}
	buses := map[*Server]string{}
	for i := range masters + replicas {
		bus, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		one := Start(t, append([]string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", strconv.Itoa(meetTimeout), "--cluster-port", strconv.Itoa(bus),
			"--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no",
			"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
		}, args...)...)
		c.members, buses[one] = append(c.members, one), strconv.Itoa(bus)
		c.ids[one], _ = one.do(t, "cluster", "myid").Text()
		one.do(t, "cluster", "set-config-epoch", i+1)
	}
	for i, one := range c.members[:masters] {
		one.do(t, "cluster", "addslotsrange", i*slotCount/masters, (i+1)*slotCount/masters-1)
	}
	var met time.Time
	wait(t, "the nodes know each other", func() bool {
		again := time.Since(met) > meetTimeout*time.Millisecond // a busy machine gives up a meeting, and no node tries it again
		if again {
			met = time.Now()
		}
		known := true
		for _, one := range c.members {
			table := c.table(one)
			for _, other := range c.members {
				if _, knows := table[c.ids[other]]; knows {
					continue
				}
				if known = false; again {
					one.do(t, "cluster", "meet", "127.0.0.1", strconv.Itoa(other.port), buses[other])
				}
			}
		}
		return known
	})
	for i, one := range c.members[masters:] {
		master := c.ids[c.members[i%masters]]
		wait(t, "the nodes know each other", func() bool { return one.try("cluster", "replicate", master).Err() == nil })
	}
	wait(t, "the Cluster is complete", func() bool {
		for i, one := range c.members {
			if !c.serves(one) || len(c.table(one)) != masters+replicas || strings.Count(c.nodes(one), " slave ")+strings.Count(c.nodes(one), "myself,slave ") != replicas {
				return false
			}
			if _, connected := one.role(); i >= masters && !connected {
				return false
			}
		}
		return true
	})
	for _, one := range c.members {
		one.do(t, "config", "set", "cluster-node-timeout", nodeTimeout)
		one.args[slices.Index(one.args, "--cluster-node-timeout")+1] = strconv.Itoa(nodeTimeout) // for when it is restarted
	}
	return c
}

// serves reports whether a node believes that the Cluster is well.
func (c *Cluster) serves(one *Server) bool {
	info, _ := one.try("cluster", "info").Text()
	return strings.Contains(info, "cluster_state:ok")
}

func (c *Cluster) nodes(one *Server) string {
	text, _ := one.try("cluster", "nodes").Text()
	return text
}

// table returns what a node knows of all: by id, the words of a line of CLUSTER
// NODES.
func (c *Cluster) table(one *Server) map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(c.nodes(one)) {
		if words := strings.Fields(line); len(words) >= 8 {
			all[words[0]] = words
		}
	}
	return all
}

// URL returns the URL of the Cluster, with all nodes as seeds and no password.
func (c *Cluster) URL() string { return c.members[0].scheme() + "+cluster://" + addrs(c.members) }

// Members returns all nodes, masters and replicas.
func (c *Cluster) Members() []*Server { return c.members }

// Masters returns the nodes that serve as masters.
func (c *Cluster) Masters() []*Server { return c.having("master") }

// Replicas returns the nodes that serve as replicas.
func (c *Cluster) Replicas() []*Server { return c.having("slave") }

func (c *Cluster) having(want string) []*Server {
	return slices.DeleteFunc(slices.Clone(c.members), func(one *Server) bool {
		role, _ := one.role()
		return role != want
	})
}

// ReplicasOf returns the replicas of a master.
func (c *Cluster) ReplicasOf(master *Server) []*Server {
	return slices.DeleteFunc(c.Replicas(), func(one *Server) bool { return c.table(one)[c.ids[one]][3] != c.ids[master] })
}

// Owner waits until all nodes that run agree on who has a slot and believe that
// the Cluster is well, and returns the master.
func (c *Cluster) Owner(slot int) *Server {
	c.t.Helper()
	return c.NextOwner(slot, nil)
}

// NextOwner is Owner where that must not be old: it waits for the end of a
// fail-over or a move.
func (c *Cluster) NextOwner(slot int, old *Server) *Server {
	c.t.Helper()
	var owner *Server
	wait(c.t, fmt.Sprintf("somebody has slot %d", slot), func() bool {
		named := ""
		for _, one := range c.members {
			if one.try("ping").Err() != nil {
				continue
			}
			id := c.ownerAsSeenBy(one, slot)
			if !c.serves(one) || id == "" || named != "" && id != named {
				return false
			}
			named = id
		}
		at := slices.IndexFunc(c.members, func(one *Server) bool { return c.ids[one] == named })
		if at < 0 || c.members[at] == old {
			return false
		}
		owner = c.members[at]
		role, _ := owner.role()
		return role == "master"
	})
	return owner
}

// ownerAsSeenBy returns the id of who has a slot: its address depends on whether TLS
// is asked over.
func (c *Cluster) ownerAsSeenBy(one *Server, slot int) string {
	return c.owners(one)[slot]
}

// owners returns the ids of the masters that have the slots, as a node sees it, "" where there is none.
func (c *Cluster) owners(one *Server) []string {
	all := make([]string, slotCount)
	ranges, _ := one.try("cluster", "slots").Slice()
	for _, entry := range ranges {
		parts := entry.([]any)
		id, _ := parts[2].([]any)[2].(string)
		for slot := parts[0].(int64); slot <= parts[1].(int64); slot++ {
			all[slot] = id
		}
	}
	return all
}

// slotsOf returns the slots of a master, as it sees it.
func (c *Cluster) slotsOf(one *Server) (all []int) {
	for slot, owner := range c.owners(one) {
		if owner == c.ids[one] {
			all = append(all, slot)
		}
	}
	return all
}

// CutReplication keeps its replicas from a master: what is written there from
// here on is lost with it.
func (c *Cluster) CutReplication(master *Server) {
	c.t.Helper()
	cutAll(c.t, master, c.ReplicasOf(master))
}

// HealReplication lets replicas reach their masters again.
func (c *Cluster) HealReplication() {
	c.t.Helper()
	for _, one := range c.members {
		if role, _ := one.role(); role != "" {
			one.heal(c.t)
		}
	}
}

// Calm has no node taken for down any more: on a machine that is busy one that is well
// may not answer for a while.
func (c *Cluster) Calm() {
	c.t.Helper()
	for _, one := range c.members {
		one.do(c.t, "config", "set", "cluster-node-timeout", time.Hour.Milliseconds())
	}
}

// Failover has a replica take over from its master while that is well, and waits
// until it has.
func (c *Cluster) Failover(replica *Server) {
	c.t.Helper()
	wait(c.t, "the replica is connected", func() bool { _, connected := replica.role(); return connected })
	var asked time.Time
	wait(c.t, "the replica takes over", func() bool {
		if time.Since(asked) > failoverTimeout && replica.try("cluster", "failover").Err() == nil { // else it is not ready for that
			asked = time.Now()
		}
		role, _ := replica.role()
		return role == "master"
	})
}

// MoveSlot moves a slot with its keys to another master, a few keys at a time, as
// redis-cli does it. Everything goes on meanwhile. Between two steps it calls
// pause, unless that is nil.
func (c *Cluster) MoveSlot(slot int, to *Server, pause func()) {
	c.t.Helper()
	from := c.Owner(slot)
	if from == to {
		return
	}
	to.do(c.t, "cluster", "setslot", slot, "importing", c.ids[from])
	from.do(c.t, "cluster", "setslot", slot, "migrating", c.ids[to])
	for {
		keys, err := from.do(c.t, "cluster", "getkeysinslot", slot, keysAtOnce).StringSlice()
		if err != nil {
			c.t.Fatal(err)
		}
		if pause != nil {
			pause()
		}
		if len(keys) == 0 {
			break
		}
		args := []any{"migrate", "127.0.0.1", to.port, "", 0, 5000, "keys"}
		for _, key := range keys {
			args = append(args, key)
		}
		from.do(c.t, args...)
	}
	to.do(c.t, "cluster", "setslot", slot, "node", c.ids[to])
	from.try("cluster", "setslot", slot, "node", c.ids[to]) // it may have been told, and be a replica: it was the last one
	c.NextOwner(slot, from)
}

// Drain moves all slots of a master to another: those without keys at once, and then the
// others as MoveSlot does. With cluster-allow-replica-migration it is a replica after that.
func (c *Cluster) Drain(from, to *Server) {
	c.t.Helper()
	others := slices.DeleteFunc(c.Masters(), func(m *Server) bool { return m == from })
	var used []int
	for some := range slices.Chunk(c.slotsOf(from), 500) {
		counts := from.each(c.t, some, func(slot int) []any { return []any{"cluster", "countkeysinslot", slot} })
		var empty []int
		for i, slot := range some {
			if n, _ := counts[i].Int(); n > 0 {
				used = append(used, slot)
			} else {
				empty = append(empty, slot)
			}
		}
		for _, one := range append([]*Server{from}, others...) { // who has a slot gives it away before another claims it
			one.each(c.t, empty, func(slot int) []any { return []any{"cluster", "setslot", slot, "node", c.ids[to]} })
		}
	}
	for _, slot := range used {
		c.MoveSlot(slot, to, nil)
	}
}
