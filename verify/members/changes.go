package members

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"fencepost/verify/system"
)

// race has two commands change the members at the same time, at different nodes, and kills the leader
// beside them: each change is made once, or whoever asked for it is told that nobody knows.
func race(l *load, round int) (time.Duration, error) {
	n := len(l.s.Gateways)
	var more [2]*system.Gateway
	for i := range more {
		var err error
		if more[i], err = l.s.NewNode(); err != nil {
			return 0, err
		}
	}
	took, err := l.two("add", more, time.Duration(l.r.Random(round).IntN(400))*time.Millisecond)
	if err != nil {
		return took, err
	}
	if err := voters(l.s.Gateways[0], n+len(more), func(system.ClusterStatus) bool { return true }); err != nil {
		return took, err
	}
	again, err := l.two("remove", more, time.Duration(l.r.Random(round).IntN(200))*time.Millisecond)
	if err == nil {
		err = voters(l.s.Gateways[0], n, func(system.ClusterStatus) bool { return true })
	}
	for _, g := range more {
		err = errors.Join(err, g.Kill())
		l.s.Drop(g)
	}
	return max(took, again), err
}

// two runs a command for two nodes at once, kills the leader after a while, and starts it again.
func (l *load) two(verb string, on [2]*system.Gateway, after time.Duration) (took time.Duration, err error) {
	leader, err := l.s.Leader(patience)
	if leader == on[0] || leader == on[1] {
		leader = l.s.Gateways[0]
		_, err = leader.Command("transfer", leader.Node())
	}
	if err != nil {
		return 0, err
	}
	at := others(l.s, leader) // those on which it is done come last
	var errs [2]error
	var both sync.WaitGroup
	for i, g := range on {
		both.Go(func() { _, errs[i] = at[i].Command(verb, g.Node()) })
	}
	pause(l.ctx, after)
	moment := time.Now()
	err = l.kill(leader, "leader killed")
	both.Wait()
	if err == nil {
		took, err = l.next(moment, "the leader was killed beside two changes of the members")
	}
	err = errors.Join(err, leader.Start())
	for i, failed := range errs {
		if failed == nil {
			continue
		}
		if !strings.Contains(failed.Error(), "whether it was done is not known") {
			l.r.Violation("two at once: %v", failed)
		}
		_, _ = at[i].Command(verb, on[i].Node()) // is done by now, or was
	}
	return took, err
}

// exile removes a member that is cut off, in one direction or both, which then comes back: it has no vote, serves
// nobody, and disturbs no leader.
func exile(l *load, round int) (time.Duration, error) {
	victim, err := l.s.Leader(patience)
	if err != nil {
		return 0, err
	}
	n, way := len(l.s.Gateways), cuts[(4+round)%len(cuts)] // at first one that sends, and is sent nothing: it asks for votes
	if !way.leader {
		victim = others(l.s, victim)[round%(n-1)]
	}
	witness := others(l.s, victim)[0]
	moment := time.Now()
	harm := l.s.CutOff(victim, way.sends, way.gets)
	took, err := l.next(moment, fmt.Sprintf("cut, to be removed: %+v", way))
	if err != nil {
		return 0, err
	}
	if err := changed(witness, "remove", victim.Node()); err != nil {
		return 0, err
	}
	before, err := witness.ClusterStatus()
	if err != nil {
		return 0, err
	}
	if err := l.over("way cut", harm); err != nil {
		return 0, err
	}
	ask := func(when string) {
		if a, err := l.client.Acquire(l.ctx, victim, "of/nobody", "", `{"ttl_ms":1000}`); err != nil || a.Status != http.StatusServiceUnavailable {
			l.r.Violation("a node that was removed while it was cut off has answered %s, %v, %s", a, err, when)
		}
	}
	ask("as soon as it was back")
	if err := victim.AwaitLog("was removed from the cluster", patience); err != nil {
		return 0, err
	}
	ask("when it knew that it was removed")
	after, err := witness.ClusterStatus()
	if err != nil {
		return 0, err
	}
	if after.Term > before.Term+2 { // a busy machine has an election of its own; who disturbs calls for one each second
		l.r.Violation("%s led in term %d, and %s in term %d after a node that was removed had come back", before.Leader, before.Term, after.Leader, after.Term)
	}
	if err := errors.Join(victim.Kill(), l.wipe(victim), victim.Launch()); err != nil {
		return 0, err
	}
	if err := changed(witness, "add", victim.Node()); err != nil {
		return 0, err
	}
	return took, voters(witness, n, func(system.ClusterStatus) bool { return true })
}
