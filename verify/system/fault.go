package system

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"fencepost/internal/redis/redistest"
	"fencepost/internal/sql/sqltest"
)

// delay is what a slow link adds to an answer.
const delay = 300 * time.Millisecond

// Fault is something that goes wrong for a while.
type Fault struct {
	Name string

	// Inject does the harm, to a part that random picks. heal, which is not nil unless
	// there is an error, undoes it and waits until the processes and their topology are
	// as before; what gateways and clients make of that takes longer (quarantine). How
	// long the harm lasts is up to the caller. One fault of a System at a time.
	Inject func(s *System, random *rand.Rand) (heal func() error, err error)
}

// healed is the heal of what is over at once.
func healed() error { return nil }

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
	{Fault{"link-cut", onLink(func(p *redistest.Proxy) { p.Cut(true) }, func(p *redistest.Proxy) { p.Cut(false) })}, []Kind{Redis, Quorum}},
	{Fault{"link-reset", onLink(func(p *redistest.Proxy) { p.Cut(false) }, nil)}, []Kind{Redis, Quorum}},
	{Fault{"link-delay", onLink(func(p *redistest.Proxy) { p.Delay(delay) }, func(p *redistest.Proxy) { p.Delay(0) })}, []Kind{Redis, Quorum}},
	{Fault{"swallow-reply", onLink(func(p *redistest.Proxy) { p.SwallowReply(false) }, nil)}, []Kind{Redis, Quorum}},
	{Fault{"swallow-reply-hang", onLink(func(p *redistest.Proxy) { p.SwallowReply(true) }, nil)}, []Kind{Redis, Quorum}},
	{Fault{"swallow-messages", onLink(func(p *redistest.Proxy) { p.SwallowMessages(true) }, func(p *redistest.Proxy) { p.SwallowMessages(false) })}, []Kind{Redis, Quorum}},
	{Fault{"fail-over", failOver}, []Kind{Sentinel, Cluster}},
	{Fault{"master-kill", killMaster(false)}, []Kind{Sentinel, Cluster}},
	{Fault{"master-kill-lossy", killMaster(true)}, []Kind{Sentinel, Cluster}},
	{Fault{"master-stop", stopMaster}, []Kind{Sentinel, Cluster}},
	{Fault{"reshard", reshard}, []Kind{Cluster}},
	{Fault{"database-kill", onDatabase((*sqltest.Server).Kill, (*sqltest.Server).Restart)}, []Kind{Postgres, MariaDB}},
	{Fault{"database-restart", onDatabase((*sqltest.Server).Stop, (*sqltest.Server).Restart)}, []Kind{Postgres, MariaDB}},
	{Fault{"database-stop", onDatabase((*sqltest.Server).Pause, (*sqltest.Server).Continue)}, []Kind{Postgres, MariaDB}},
	{Fault{"drop-backends", dropBackends}, []Kind{Postgres}},
	{Fault{"way-cut", cutWay}, []Kind{Raft}},
	{Fault{"leader-cut", cutLeader}, []Kind{Raft}},
	{Fault{"leader-kill", onLeader(func(g *Gateway) (func() error, error) { return g.Start, g.Kill() })}, []Kind{Raft}},
	{Fault{"leader-stop", onLeader(func(g *Gateway) (func() error, error) { return g.Resume, g.Pause() })}, []Kind{Raft}},
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

func killGateway(s *System, random *rand.Rand) (func() error, error) {
	g := pick(random, s.Gateways)
	return g.Start, g.Kill()
}

// restartGateway lets it drain. What becomes of the exit status is part of the fault:
// a store that is away at the same moment makes it 1.
func restartGateway(s *System, random *rand.Rand) (func() error, error) {
	g := pick(random, s.Gateways)
	return g.Start, g.Stop()
}

func stopGateway(s *System, random *rand.Rand) (func() error, error) {
	g := pick(random, s.Gateways)
	return g.Resume, g.Pause()
}

func killNode(s *System, random *rand.Rand) (func() error, error) {
	server := pick(random, s.Servers)
	return server.Restart, server.Kill()
}

func stopNode(s *System, random *rand.Rand) (func() error, error) {
	server := pick(random, s.Servers)
	return server.Resume, server.Pause()
}

// moveClock sets the clock of a server ahead by one of these.
func moveClock(ahead ...time.Duration) func(*System, *rand.Rand) (func() error, error) {
	return func(s *System, random *rand.Rand) (func() error, error) {
		clock := pick(random, s.Servers).Clock()
		if clock == nil {
			return nil, errors.New("the servers were started without Options.Clocks")
		}
		return func() error { return clock.Set(0) }, clock.Set(pick(random, ahead))
	}
}

func flush(s *System, random *rand.Rand) (func() error, error) {
	server, err := s.master(random)
	if err != nil {
		return nil, err
	}
	return healed, server.Flush()
}

// isIndex reports whether a key is made anew from the others, and isNoRecord whether it is any but the
// record of a name: docs/stores.md says what the loss of one of those costs.
func isIndex(key string) bool {
	return strings.HasSuffix(key, ":expiry") || strings.HasSuffix(key, ":names")
}

func isNoRecord(key string) bool { return !strings.Contains(key, ":lock:") }

// loseKey deletes one of some keys by hand.
func loseKey(some func(key string) bool) func(*System, *rand.Rand) (func() error, error) {
	return func(s *System, random *rand.Rand) (func() error, error) {
		server := pick(random, s.Servers)
		keys, err := server.Keys("fencepost:*")
		if keys = slices.DeleteFunc(keys, func(key string) bool { return !some(key) }); err != nil || len(keys) == 0 {
			return healed, err
		}
		return healed, server.Delete(pick(random, keys))
	}
}

func dropClients(s *System, random *rand.Rand) (func() error, error) {
	server, err := s.master(random)
	if err != nil {
		return nil, err
	}
	return healed, server.DropClients()
}

// onLink is a fault of the links between one gateway and its store: with a quorum, one
// of them.
func onLink(harm, undo func(*redistest.Proxy)) func(*System, *rand.Rand) (func() error, error) {
	return func(s *System, random *rand.Rand) (func() error, error) {
		link := pick(random, pick(random, s.Gateways).Proxies)
		harm(link)
		return func() error {
			if undo != nil {
				undo(link)
			}
			return nil
		}, nil
	}
}

// master returns a server that takes writes.
func (s *System) master(random *rand.Rand) (master *redistest.Server, err error) {
	err = redistest.Try(func() {
		switch s.Kind {
		case Sentinel:
			master = s.Sentinel.Master()
		case Cluster:
			master = pick(random, s.Cluster.Masters())
		default:
			master = pick(random, s.Servers)
		}
	})
	return master, err
}

// alert has the master's end noticed.
func (s *System) alert() error {
	return redistest.Try(func() {
		if s.Kind == Sentinel {
			s.Sentinel.Alert()
		}
	})
}

// settle waits until every server has its place again, from where nobody moves them
// while there is no fault.
func (s *System) settle() error {
	return redistest.Try(func() {
		switch s.Kind {
		case Sentinel:
			s.Sentinel.Calm()
			s.Sentinel.FollowMaster()
		case Cluster:
			s.Cluster.HealReplication()
			s.Cluster.Complete()
		}
	})
}

func failOver(s *System, random *rand.Rand) (func() error, error) {
	err := redistest.Try(func() {
		if s.Kind == Sentinel {
			s.Sentinel.Failover()
		} else {
			s.Cluster.Failover(pick(random, s.Cluster.Replicas()))
		}
	})
	return s.settle, err
}

// killMaster kills a master as kill -9 does; lossy, after its replicas were cut off
// for a while: what it granted since then is lost.
func killMaster(lossy bool) func(*System, *rand.Rand) (func() error, error) {
	return func(s *System, random *rand.Rand) (func() error, error) {
		master, err := s.master(random)
		if err != nil {
			return nil, err
		}
		if lossy {
			if err := redistest.Try(func() {
				if s.Kind == Sentinel {
					s.Sentinel.CutReplication()
				} else {
					s.Cluster.CutReplication(master)
				}
			}); err != nil {
				return nil, err
			}
			time.Sleep(time.Duration(50+random.IntN(200)) * time.Millisecond) // of grants that are lost
		}
		heal := func() error {
			return errors.Join(s.promoted(master), master.Restart(), s.settle())
		}
		return heal, errors.Join(s.alert(), master.Kill())
	}
}

// promoted waits until another server has taken the place of a master that is down.
func (s *System) promoted(old *redistest.Server) error {
	return redistest.Try(func() {
		if s.Kind == Sentinel {
			s.Sentinel.NextMaster(old)
		} else {
			s.Cluster.Promoted(old)
		}
	})
}

func stopMaster(s *System, random *rand.Rand) (func() error, error) {
	master, err := s.master(random)
	if err != nil {
		return nil, err
	}
	return func() error { return errors.Join(master.Resume(), s.settle()) }, errors.Join(s.alert(), master.Pause())
}

// reshard moves a slot with keys to another master, while everything goes on.
func reshard(s *System, random *rand.Rand) (func() error, error) {
	return s.settle, redistest.Try(func() {
		masters := s.Cluster.Masters()
		random.Shuffle(len(masters), func(i, j int) { masters[i], masters[j] = masters[j], masters[i] })
		for _, from := range masters[1:] {
			if slot, ok := s.Cluster.SlotInUse(from); ok {
				s.Cluster.MoveSlot(slot, masters[0], func() { time.Sleep(20 * time.Millisecond) })
				return
			}
		}
	})
}
