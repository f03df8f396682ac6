package system

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"fencepost/internal/redis/redistest"
)

// nameOf returns what a server is called in what faults have done.
func (s *System) nameOf(server *redistest.Server) string {
	return fmt.Sprintf("Redis %d", 1+slices.Index(s.Servers, server))
}

func killNode(s *System, random *rand.Rand) (*Harm, error) {
	server := pick(random, s.Servers)
	pid := server.Pid()
	return Killed(s.nameOf(server), server.Restart, pid), server.Kill()
}

func stopNode(s *System, random *rand.Rand) (*Harm, error) {
	server := pick(random, s.Servers)
	return Paused(s.nameOf(server), server.Resume, server.Pid()), server.Pause()
}

// moveClock sets the clock of a server ahead by one of these.
func moveClock(ahead ...time.Duration) func(*System, *rand.Rand) (*Harm, error) {
	return func(s *System, random *rand.Rand) (*Harm, error) {
		server, by := pick(random, s.Servers), pick(random, ahead)
		clock := server.Clock()
		if clock == nil {
			return nil, errors.New("the servers were started without Options.Clocks")
		}
		seen := func() (int, error) {
			shown, err := server.Time()
			if is := time.Until(shown); err != nil || is.Abs() < by.Abs()/2 || (is > 0) != (by > 0) {
				return 0, err
			}
			return 1, nil
		}
		return &Harm{s.nameOf(server), "clocks moved", seen, func() error { return clock.Set(0) }}, clock.Set(by)
	}
}

func flush(s *System, random *rand.Rand) (*Harm, error) {
	server, err := s.master(random)
	if err != nil {
		return nil, err
	}
	return AtOnce(s.nameOf(server), "keys removed", server.Flush)
}

// isIndex reports whether a key is made anew from the others, and isNoRecord whether it is any but the
// record of a name: docs/stores.md says what the loss of one of those costs.
func isIndex(key string) bool {
	return strings.HasSuffix(key, ":expiry") || strings.HasSuffix(key, ":names")
}

func isNoRecord(key string) bool { return !strings.Contains(key, ":lock:") }

// loseKey deletes one of some keys by hand.
func loseKey(some func(key string) bool) func(*System, *rand.Rand) (*Harm, error) {
	return func(s *System, random *rand.Rand) (*Harm, error) {
		server := pick(random, s.Servers)
		return AtOnce(s.nameOf(server), "keys removed", func() (int, error) {
			keys, err := server.Keys("fencepost:*")
			if keys = slices.DeleteFunc(keys, func(key string) bool { return !some(key) }); err != nil || len(keys) == 0 {
				return 0, err
			}
			return server.Delete(pick(random, keys))
		})
	}
}

func dropClients(s *System, random *rand.Rand) (*Harm, error) {
	server, err := s.master(random)
	if err != nil {
		return nil, err
	}
	return AtOnce("clients of "+s.nameOf(server), "connections closed", server.DropClients)
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

// failOver has a replica take the place of its master, while that is well.
func failOver(s *System, random *rand.Rand) (*Harm, error) {
	var replicas []*redistest.Server // that were some before
	err := redistest.Try(func() {
		if s.Kind == Sentinel {
			replicas = s.Sentinel.Replicas()
			s.Sentinel.Failover()
		} else {
			replicas = []*redistest.Server{pick(random, s.Cluster.Replicas())}
			s.Cluster.Failover(replicas[0])
		}
	})
	seen := func() (promoted int, err error) {
		err = redistest.Try(func() {
			for _, one := range s.masters() {
				if slices.Contains(replicas, one) {
					promoted++
				}
			}
		})
		return promoted, err
	}
	return &Harm{"masters", "replicas promoted", seen, s.settle}, err
}

// masters returns the servers that say that they are some.
func (s *System) masters() []*redistest.Server {
	if s.Kind == Sentinel {
		return []*redistest.Server{s.Sentinel.Master()}
	}
	return s.Cluster.Masters()
}

// killMaster kills a master as kill -9 does; lossy, after its replicas were cut off
// for a while: what it granted since then is lost.
func killMaster(lossy bool) func(*System, *rand.Rand) (*Harm, error) {
	return func(s *System, random *rand.Rand) (*Harm, error) {
		master, err := s.master(random)
		if err != nil {
			return nil, err
		}
		harm := Killed(s.nameOf(master), func() error {
			return errors.Join(s.promoted(master), master.Restart(), s.settle())
		}, master.Pid())
		if lossy {
			lost, err := s.writeApart(master, random)
			if err != nil {
				return nil, err
			}
			harm.what, harm.seen = "bytes of writes lost", func() (int, error) { return lost * Ended(master.Pid()), nil }
		}
		return harm, errors.Join(s.alert(), master.Kill())
	}
}

// writeApart cuts off a master from its replicas, and returns how many bytes it has written, a while later, that none of them has.
func (s *System) writeApart(master *redistest.Server, random *rand.Rand) (bytes int, err error) {
	var replicas []*redistest.Server
	if err := redistest.Try(func() {
		if s.Kind == Sentinel {
			replicas = s.Sentinel.Replicas()
			s.Sentinel.CutReplication()
		} else {
			replicas = s.Cluster.ReplicasOf(master)
			s.Cluster.CutReplication(master)
		}
	}); err != nil {
		return 0, err
	}
	time.Sleep(time.Duration(50+random.IntN(200)) * time.Millisecond)
	for deadline := time.Now().Add(biteTimeout); ; time.Sleep(5 * time.Millisecond) {
		bytes, err = master.Written()
		most := 0
		for _, replica := range replicas {
			has, hasErr := replica.Written()
			most, err = max(most, has), errors.Join(err, hasErr)
		}
		if bytes -= most; err != nil || bytes > 0 || time.Now().After(deadline) {
			return max(bytes, 0), err
		}
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

func stopMaster(s *System, random *rand.Rand) (*Harm, error) {
	master, err := s.master(random)
	if err != nil {
		return nil, err
	}
	heal := func() error { return errors.Join(master.Resume(), s.settle()) }
	return Paused(s.nameOf(master), heal, master.Pid()), errors.Join(s.alert(), master.Pause())
}

// reshard moves a slot with keys to another master, while everything goes on.
func reshard(s *System, random *rand.Rand) (*Harm, error) {
	harm, err := AtOnce("the Cluster", "slots moved", func() (moved int, err error) {
		err = redistest.Try(func() {
			masters := s.Cluster.Masters()
			random.Shuffle(len(masters), func(i, j int) { masters[i], masters[j] = masters[j], masters[i] })
			for _, from := range masters[1:] {
				if slot, ok := s.Cluster.SlotInUse(from); ok {
					s.Cluster.MoveSlot(slot, masters[0], func() { time.Sleep(20 * time.Millisecond) })
					if s.Cluster.Owner(slot) == masters[0] {
						moved = 1
					}
					return
				}
			}
		})
		return moved, err
	})
	if err == nil {
		harm.heal = s.settle
	}
	return harm, err
}
