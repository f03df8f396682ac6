package members

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// patience bounds what a cluster does by itself.
const patience = time.Minute

// Members is a cluster to which things happen while clients use it.
type Members struct {
	Kills      int           // leaders that are killed
	Stops      int           // leaders, and as many others, that are stopped for Stand
	Partitions int           // rounds of all ways to cut off the leader or another, for Stand each
	Queues     int           // queues whose leader is killed
	Rolls      int           // rolling restarts
	Disks      int           // nodes that lose theirs
	Changes    int           // nodes that are added and removed
	Races      int           // two such changes at once, while the leader is killed
	Exiles     int           // nodes that are removed while they are cut off
	Reads      int           // leaders that are stopped until another one has handed a lock on, and read when they go on
	AllDisks   int           // rounds in which all nodes lose theirs, one after the other, as a script replaces them
	Refusals   int           // crowds that are refused at a follower
	Stand      time.Duration // how long a node stands still, or is cut off
}

// Run does all that, one after the other.
func (m Members) Run(ctx context.Context, s *system.System, r *check.Result) (err error) {
	l := begin(ctx, s, r)
	defer l.finish()
	if _, err := l.next(time.Now(), "at first"); err != nil {
		return err
	}
	for _, part := range []struct {
		name  string
		times int
		do    func(l *load, round int) (time.Duration, error)
	}{
		{"the leader is killed", m.Kills, killLeader},
		{"a node stands still", 2 * m.Stops, m.stop},
		{"a way is cut", m.Partitions * len(cuts), m.cut},
		{"a queue outlives its leader", m.Queues, queue},
		{"a rolling restart", m.Rolls, roll},
		{"a node loses its disk", m.Disks, loseDisk},
		{"two changes of the members at once", m.Races, race},
		{"a node is removed while it is cut off", m.Exiles, exile},
		{"a node is added, one removed", m.Changes, change},
		{"the leader is stopped, and read when it goes on", m.Reads, read},
		{"all disks are replaced one by one", m.AllDisks, replaceAll},
		{"many are refused at a follower", m.Refusals, refuse},
	} {
		var all []time.Duration
		for round := range part.times {
			took, err := part.do(l, round)
			if err == nil {
				err = whole(s)
			}
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", part.name, round, err)
			}
			all = append(all, took)
		}
		if len(all) > 0 {
			slices.Sort(all)
			r.Reach(part.name, len(all), part.times)
			r.Count(part.name+": until the next grant, median", all[len(all)/2])
			r.Count(part.name+": until the next grant, at most", all[len(all)-1])
			r.Note("%s: until the next grant, sorted: %v", part.name, rounded(all))
		}
	}
	return nil
}

func rounded(all []time.Duration) (texts []string) {
	for _, d := range all {
		texts = append(texts, d.Round(time.Millisecond).String())
	}
	return texts
}

// whole waits until all gateways are ready.
func whole(s *system.System) error { return s.AwaitReady(patience) }

// others are all gateways but one.
func others(s *system.System, but *system.Gateway) []*system.Gateway {
	return slices.DeleteFunc(slices.Clone(s.Gateways), func(g *system.Gateway) bool { return g == but })
}

// killLeader kills the leader, and starts it again when another one has granted.
func killLeader(l *load, _ int) (time.Duration, error) {
	leader, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	moment := time.Now()
	if err := l.kill(leader, "leader killed"); err != nil {
		return 0, err
	}
	took, err := l.next(moment, "the leader was killed")
	return took, errors.Join(err, leader.Start())
}

// stop has the leader, or another one, stand still, and go on.
func (m Members) stop(l *load, round int) (time.Duration, error) {
	victim, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	if round%2 == 1 {
		victim = others(l.s, victim)[0]
	}
	moment := time.Now()
	harm, err := victim.Freeze()
	if err != nil {
		return 0, err
	}
	took, err := l.next(moment, "a node stands still")
	pause(l.ctx, m.Stand)
	return took, errors.Join(err, l.over("node stopped", harm))
}

// cuts are the ways to cut off a node: whether it is the leader, and whether what it sends and what
// it is sent is lost.
var cuts = []struct{ leader, sends, gets bool }{
	{true, true, false}, {true, false, true}, {true, true, true}, {false, true, false}, {false, false, true}, {false, true, true},
}

func (m Members) cut(l *load, round int) (time.Duration, error) {
	victim, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	way := cuts[round%len(cuts)]
	if !way.leader {
		victim = others(l.s, victim)[round%(len(l.s.Gateways)-1)]
	}
	moment := time.Now()
	harm := l.s.CutOff(victim, way.sends, way.gets)
	took, err := l.next(moment, fmt.Sprintf("cut: %+v", way))
	pause(l.ctx, m.Stand)
	again, secondErr := l.next(time.Now(), fmt.Sprintf("cut for a while: %+v", way))
	return max(took, again), errors.Join(err, secondErr, l.over("way cut", harm))
}

// waiters of one queue, at all gateways.
const waiters = 12

// queue has waiters join one by one, kills the leader, and then lets them have their turns: in the order in
// which they came, those of the gateway that died among them.
func queue(l *load, round int) (time.Duration, error) {
	name := fmt.Sprintf("queue/%d-%d", round, time.Now().UnixNano())
	leader, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	holder := newLeaseID()
	first, ok := l.ask(l.r.Random(0), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Acquire(ctx, g, name, holder, `{"ttl_ms":60000}`)
	})
	if !ok {
		return 0, l.ctx.Err()
	}
	if first.Status != http.StatusCreated {
		return 0, fmt.Errorf("nobody can have %s: %s", name, first)
	}
	client := system.NewClient(2 * waiters)
	defer client.Close()
	var mu sync.Mutex
	var order []int
	var waiting sync.WaitGroup
	for i := range waiters {
		g, id := l.s.Gateways[i%len(l.s.Gateways)], newLeaseID()
		waiting.Go(func() { l.wait(client, g, name, id, func() { mu.Lock(); order = append(order, i); mu.Unlock() }) })
		if err := l.joined(client, name, i+1); err != nil {
			return 0, err
		}
	}
	moment := time.Now()
	if err := l.kill(leader, "leader killed"); err != nil {
		return 0, err
	}
	took, err := l.next(moment, "the leader of a queue was killed")
	if err == nil {
		err = l.joined(client, name, waiters) // those of the dead gateway are back
	}
	if released, ok := l.ask(l.r.Random(1), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
		return l.client.Release(ctx, g, name, holder)
	}); ok && released.Status != http.StatusNoContent {
		l.r.Violation("the holder of %s was told %s", name, released)
	}
	waiting.Wait()
	if !slices.IsSorted(order) || len(order) != waiters {
		l.r.Violation("of %d that wait for %s were served, in this order: %v", waiters, name, order)
	}
	return took, errors.Join(err, leader.Start())
}

// wait is who waits for a lock, at one gateway, and at the others when that is gone. It has the lock for
// a moment.
func (l *load) wait(client *system.Client, g *system.Gateway, name, id string, served func()) {
	for at := slices.Index(l.s.Gateways, g); l.ctx.Err() == nil; at++ {
		ctx, cancel := context.WithTimeout(l.ctx, patience)
		a, err := client.Acquire(ctx, l.s.Gateways[at%len(l.s.Gateways)], name, id, `{"ttl_ms":60000,"wait_ms":50000}`)
		cancel()
		if err != nil || a.Status == http.StatusServiceUnavailable || a.Status == http.StatusConflict { // 409: as in ask
			pause(l.ctx, time.Millisecond)
			continue
		}
		if a.Status != http.StatusOK && a.Status != http.StatusCreated {
			l.r.Violation("a wait for %s was answered %s", name, a)
			return
		}
		served()
		l.ask(l.r.Random(2), func(ctx context.Context, g *system.Gateway) (system.Answer, error) {
			return client.Release(ctx, g, name, id)
		})
		return
	}
}

// joined returns when so many wait for a name.
func (l *load) joined(client *system.Client, name string, n int) error {
	var last system.Answer
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && l.ctx.Err() == nil; pause(l.ctx, 5*time.Millisecond) {
		for _, g := range l.s.Gateways {
			ctx, cancel := context.WithTimeout(l.ctx, asking)
			a, err := client.Inspect(ctx, g, name)
			cancel()
			if last = a; err == nil && strings.Contains(string(a.Body), fmt.Sprintf(`"waiting":%d,`, n)) {
				return nil
			}
		}
	}
	return fmt.Errorf("not all of %d wait for %s: %s, %w", n, name, last, l.ctx.Err())
}

// roll restarts one gateway after the other, as an upgrade does. It returns the longest time without a grant
// at the restart of the leader.
func roll(l *load, _ int) (longest time.Duration, err error) {
	for _, g := range l.s.Gateways {
		moment := time.Now()
		if err := l.stop(g, "gateway restarted"); err != nil {
			return 0, err
		}
		took, err := l.next(moment, "a gateway is restarted")
		if err = errors.Join(err, g.Start()); err != nil {
			return 0, err
		}
		longest = max(longest, took)
	}
	return longest, nil
}

// voters waits until exactly so many members are there, all with a vote.
func voters(g *system.Gateway, n int, holds func(system.ClusterStatus) bool) error {
	var status system.ClusterStatus
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if status, err = g.ClusterStatus(); err != nil || len(status.Members) != n || status.Leader == "" {
			continue
		}
		all := true
		for _, m := range status.Members {
			all = all && m.Voter && m.State != "unreachable"
		}
		if all && holds(status) {
			return nil
		}
	}
	return fmt.Errorf("the members are %+v, %w", status, err)
}

// loseDisk has a node lose its disk: it comes back as another one. What it had before is no member's any more.
func loseDisk(l *load, round int) (time.Duration, error) {
	leader, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	victim, n := leader, len(l.s.Gateways)
	if round%2 == 0 {
		victim = others(l.s, leader)[round%(n-1)]
	}
	witness := others(l.s, victim)[0]
	before, err := idOf(witness, victim)
	if err != nil {
		return 0, err
	}
	moment := time.Now()
	if err := errors.Join(l.kill(victim, "node killed"), l.wipe(victim), victim.Start()); err != nil {
		return 0, err
	}
	took, err := l.next(moment, "a node has lost its disk")
	if err != nil {
		return 0, err
	}
	is := func(s system.ClusterStatus) bool {
		return slices.ContainsFunc(s.Members, func(m system.Member) bool {
			return m.Address == victim.Node() && m.ID != before
		})
	}
	if err := voters(witness, n, is); err != nil {
		return 0, err
	}
	// What was lost is found again: it is nobody's.
	if err := errors.Join(victim.Kill(), victim.Swap(), victim.Launch()); err != nil {
		return 0, err
	}
	if err := victim.AwaitLog("was removed from the cluster", patience); err != nil {
		return 0, err
	}
	if a, err := l.client.Acquire(l.ctx, victim, "of/nobody", "", `{"ttl_ms":1000}`); err == nil && a.Status != http.StatusServiceUnavailable {
		l.r.Violation("a node that was removed has answered %s", a)
	}
	if _, err := l.next(time.Now(), "a removed node is back"); err != nil {
		return 0, err
	}
	return took, errors.Join(victim.Kill(), victim.Swap(), victim.Start(), voters(witness, n, is))
}

// idOf returns the id that a member has by another's account.
func idOf(witness, of *system.Gateway) (string, error) {
	status, err := witness.ClusterStatus()
	for _, m := range status.Members {
		if m.Address == of.Node() {
			return m.ID, err
		}
	}
	return "", fmt.Errorf("%s is no member: %+v, %w", of.Node(), status, err)
}

// changed has a gateway's command change the members. What fails is said again, as an operator does: a node may be too busy to
// answer in time.
func changed(g *system.Gateway, args ...string) error {
	_, err := g.Command(args...)
	for giveUp := time.Now().Add(patience); err != nil && time.Now().Before(giveUp); {
		_, err = g.Command(args...)
	}
	return err
}

// change adds a node, removes the leader, and adds it again without its data.
func change(l *load, _ int) (time.Duration, error) {
	n := len(l.s.Gateways)
	more, err := l.s.NewNode()
	if err != nil {
		return 0, err
	}
	if err := changed(l.s.Gateways[0], "add", more.Node()); err != nil {
		return 0, err
	}
	all := func(system.ClusterStatus) bool { return true }
	if err := errors.Join(more.AwaitReady(patience), voters(more, n+1, all)); err != nil {
		return 0, err
	}
	leader, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	if leader == more {
		if _, err := more.Command("transfer", l.s.Gateways[0].Node()); err != nil {
			return 0, err
		}
		leader = l.s.Gateways[0]
	}
	witness := others(l.s, leader)[0]
	moment := time.Now()
	if err := changed(witness, "remove", leader.Node()); err != nil {
		return 0, err
	}
	took, err := l.next(moment, "the leader was removed")
	if err = errors.Join(err, voters(witness, n, all), leader.AwaitLog("was removed from the cluster", patience)); err != nil {
		return 0, err
	}
	if _, err := witness.Command("add", leader.Node()); err == nil {
		l.r.Violation("a removed node was added with its data")
	}
	if err := errors.Join(leader.Kill(), l.wipe(leader), leader.Launch()); err != nil {
		return 0, err
	}
	if err := changed(witness, "add", leader.Node()); err != nil {
		return 0, err
	}
	return took, voters(witness, n+1, all)
}
