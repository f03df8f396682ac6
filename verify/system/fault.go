package system

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"fencepost/internal/redis/redistest"
	"fencepost/internal/sql/sqltest"
)

// delay is what a slow link adds to an answer.
const delay = 300 * time.Millisecond

// Fault is something that goes wrong for a while.
type Fault struct {
	Name string

	// Inject does the harm, to a part that random picks. How long it lasts is up to the caller, who ends it
	// (Harm.End); what gateways and clients make of that takes longer (quarantine). One fault of a System at a time.
	Inject func(s *System, random *rand.Rand) (*Harm, error)
}

// faults are all that there are, with the kinds that can have them; none named: all.
var faults = []struct {
	Fault
	kinds []Kind
}{
	{Fault{"gateway-kill", killGateway}, nil},
	{Fault{"gateway-restart", restartGateway}, nil},
	{Fault{"gateway-stop", stopGateway}, nil},
	{Fault{"node-kill", killNode}, []Kind{Redis, Quorum}},
	{Fault{"node-stop", stopNode}, []Kind{Redis, Quorum}},
	{Fault{"clock", moveClock(12*time.Second, -12*time.Second, -30*time.Minute)}, []Kind{Redis, Quorum}},
	{Fault{"clock-far-ahead", moveClock(30 * time.Minute)}, []Kind{Redis, Quorum}},
	{Fault{"index-lost", loseKey(isIndex)}, []Kind{Redis}},
	{Fault{"key-lost", loseKey(isNoRecord)}, []Kind{Redis}},
	{Fault{"flush", flush}, []Kind{Redis, Sentinel, Cluster, Quorum}},
	{Fault{"drop-clients", dropClients}, []Kind{Redis, Sentinel, Cluster, Quorum}},
	{Fault{"link-cut", onLink("connections closed or refused", (*redistest.Proxy).Broken,
		func(p *redistest.Proxy) { p.Cut(true) }, func(p *redistest.Proxy) { p.Cut(false) })}, []Kind{Redis, Quorum}},
	{Fault{"link-reset", resetLink}, []Kind{Redis, Quorum}},
	{Fault{"link-delay", onLink("answers delayed", (*redistest.Proxy).Late,
		func(p *redistest.Proxy) { p.Delay(delay) }, func(p *redistest.Proxy) { p.Delay(0) })}, []Kind{Redis, Quorum}},
	{Fault{"swallow-reply", onLink("answers lost", (*redistest.Proxy).Lost,
		func(p *redistest.Proxy) { p.SwallowReply(false) }, func(*redistest.Proxy) {})}, []Kind{Redis, Quorum}},
	{Fault{"swallow-reply-hang", onLink("answers lost", (*redistest.Proxy).Lost,
		func(p *redistest.Proxy) { p.SwallowReply(true) }, func(*redistest.Proxy) {})}, []Kind{Redis, Quorum}},
	{Fault{"swallow-messages", onLink("messages lost", (*redistest.Proxy).Swallowed,
		func(p *redistest.Proxy) { p.SwallowMessages(true) }, func(p *redistest.Proxy) { p.SwallowMessages(false) })}, []Kind{Redis, Quorum}},
	{Fault{"fail-over", failOver}, []Kind{Sentinel, Cluster}},
	{Fault{"master-kill", killMaster(false)}, []Kind{Sentinel, Cluster}},
	{Fault{"master-kill-lossy", killMaster(true)}, []Kind{Sentinel, Cluster}},
	{Fault{"master-stop", stopMaster}, []Kind{Sentinel, Cluster}},
	{Fault{"reshard", reshard}, []Kind{Cluster}},
	{Fault{"database-kill", endDatabase((*sqltest.Server).Kill)}, []Kind{Postgres, MariaDB}},
	{Fault{"database-restart", endDatabase((*sqltest.Server).Stop)}, []Kind{Postgres, MariaDB}},
	{Fault{"database-stop", stopDatabase}, []Kind{Postgres, MariaDB}},
	{Fault{"drop-backends", dropBackends}, []Kind{Postgres}},
	{Fault{"turn-cut", cutInTurn}, []Kind{Postgres, MariaDB}},
	{Fault{"turn-stop", stopInTurn}, []Kind{Postgres, MariaDB}},
	{Fault{"way-cut", cutWay}, []Kind{Raft}},
	{Fault{"leader-cut", cutLeader}, []Kind{Raft}},
	{Fault{"leader-kill", onLeader((*Gateway).Crash)}, []Kind{Raft}},
	{Fault{"leader-stop", onLeader((*Gateway).Freeze)}, []Kind{Raft}},
	{Fault{"transfer", transfer}, []Kind{Raft}},
	{Fault{"disk-slow", slowDisk}, []Kind{Raft}},
	{Fault{"disk-full", fullDisk}, []Kind{Raft}},
}

// Faults returns the faults that a kind of store can have, in a fixed order.
func Faults(kind Kind) (all []Fault) {
	for _, f := range faults {
		if len(f.kinds) == 0 || slices.Contains(f.kinds, kind) {
			all = append(all, f.Fault)
		}
	}
	return all
}

// FaultNamed returns a fault by its name, which the kind of store must be able to
// have.
func FaultNamed(kind Kind, name string) (Fault, error) {
	for _, f := range Faults(kind) {
		if f.Name == name {
			return f, nil
		}
	}
	return Fault{}, fmt.Errorf("%s has no fault %q", kind, name)
}

func pick[T any](random *rand.Rand, all []T) T { return all[random.IntN(len(all))] }

func killGateway(s *System, random *rand.Rand) (*Harm, error) {
	return pick(random, s.Gateways).Crash()
}

// Crash ends a gateway as kill -9 does. It is started again at the end.
func (g *Gateway) Crash() (*Harm, error) {
	pid := g.PID()
	return Killed(g.Name, g.Start, pid), g.Kill()
}

// restartGateway lets it drain. What becomes of the exit status is part of the fault:
// a store that is away at the same moment makes it 1.
func restartGateway(s *System, random *rand.Rand) (*Harm, error) {
	g := pick(random, s.Gateways)
	pid := g.PID()
	return Killed(g.Name, g.Start, pid), g.Stop()
}

func stopGateway(s *System, random *rand.Rand) (*Harm, error) {
	return pick(random, s.Gateways).Freeze()
}

// Freeze has a gateway stand still, which goes on at the end.
func (g *Gateway) Freeze() (*Harm, error) {
	return Paused(g.Name, g.Resume, g.PID()), g.Pause()
}

// onLink is a fault of the links between one gateway and its store: with a quorum, one of them. The proxy counts what it does.
func onLink(what string, counter func(*redistest.Proxy) int, harm, undo func(*redistest.Proxy)) func(*System, *rand.Rand) (*Harm, error) {
	return func(s *System, random *rand.Rand) (*Harm, error) {
		g := pick(random, s.Gateways)
		link := pick(random, g.Proxies)
		seen := Since(func() int { return counter(link) })
		harm(link)
		return &Harm{"links of " + g.Name, what, seen, func() error { undo(link); return nil }}, nil
	}
}

// resetLink closes the connections of a link, of which there are some.
func resetLink(s *System, random *rand.Rand) (*Harm, error) {
	g := pick(random, s.Gateways)
	link := pick(random, g.Proxies)
	return AtOnce("links of "+g.Name, "connections closed", func() (int, error) {
		seen := Since(link.Broken)
		link.Cut(false)
		return seen()
	})
}
