package system

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// writeDelay is what a slow disk adds to each write: some of them together are longer than a
// follower waits to hear of its leader.
const writeDelay = 200 * time.Millisecond

// cutWay cuts off a node from the others, in one direction or both.
func cutWay(s *System, random *rand.Rand) (*Harm, error) {
	return s.cutSomehow(pick(random, s.Gateways), random), nil
}

// cutLeader does so with the one that leads.
func cutLeader(s *System, random *rand.Rand) (*Harm, error) {
	leader, err := s.Leader(startTimeout)
	if err != nil {
		return nil, err
	}
	return s.cutSomehow(leader, random), nil
}

func (s *System) cutSomehow(victim *Gateway, random *rand.Rand) *Harm {
	ways := 1 + random.IntN(3) // what it sends, what it is sent, or both is lost
	return s.CutOff(victim, ways&1 != 0, ways&2 != 0)
}

// onLeader is a fault of the gateway that leads.
func onLeader(harm func(*Gateway) (*Harm, error)) func(*System, *rand.Rand) (*Harm, error) {
	return func(s *System, _ *rand.Rand) (*Harm, error) {
		leader, err := s.Leader(startTimeout)
		if err != nil {
			return nil, err
		}
		return harm(leader)
	}
}

// transfer has another node lead. It may fail while there is no leader.
func transfer(s *System, random *rand.Rand) (*Harm, error) {
	leader, err := s.Leader(startTimeout)
	if err != nil {
		return nil, err
	}
	return AtOnce("the leader", "leads handed over", func() (int, error) {
		var err error
		for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			if _, err = pick(random, s.Gateways).Command("transfer"); err == nil {
				break
			}
		}
		next, nextErr := s.Leader(startTimeout)
		if err = errors.Join(err, nextErr); err != nil || next == leader {
			return 0, err
		}
		return 1, nil
	})
}

// slowDisk has each write of a node take longer.
func slowDisk(s *System, random *rand.Rand) (*Harm, error) {
	return pick(random, s.Gateways).tamper(logWrites, fmt.Sprintf("delay_enter=%d", writeDelay.Microseconds()), "calls delayed")
}

// fullDisk has no byte more fit on the disk of a node. If it has written meanwhile it ends by itself, else it is
// killed: a write may fail as late as when the disk is let go. Then it is started again.
func fullDisk(s *System, random *rand.Rand) (*Harm, error) {
	g := pick(random, s.Gateways)
	harm, err := g.tamper(logWrites, "error=ENOSPC", "writes refused")
	if err != nil {
		return nil, err
	}
	release := harm.heal
	harm.heal = func() error {
		if err := release(); err != nil {
			return err
		}
		p := g.current()
		if !p.failed.Load() {
			return errors.Join(g.Kill(), g.Start())
		}
		select {
		case <-p.exited:
			return g.Start()
		case <-time.After(startTimeout):
			return fmt.Errorf("a gateway whose disk is full does not end:\n%s", g.Log())
		}
	}
	return harm, nil
}
