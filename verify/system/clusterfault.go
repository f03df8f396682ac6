package system

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// writeDelay is what a slow disk adds to each write: some of them together are longer than a
// follower waits to hear of its leader.
const writeDelay = 200 * time.Millisecond

// cutWay cuts off a node from the others, in one direction or both.
func cutWay(s *System, random *rand.Rand) (func() error, error) {
	return s.cutOff(random.IntN(len(s.Gateways)), random), nil
}

// cutLeader does so with the one that leads.
func cutLeader(s *System, random *rand.Rand) (func() error, error) {
	leader, err := s.Leader(startTimeout)
	if err != nil {
		return nil, err
	}
	return s.cutOff(slices.Index(s.Gateways, leader), random), nil
}

func (s *System) cutOff(victim int, random *rand.Rand) (heal func() error) {
	ways := 1 + random.IntN(3) // what it sends, what it is sent, or both is lost
	s.CutOff(s.Gateways[victim], ways&1 != 0, ways&2 != 0)
	return func() error { s.Links.Mend(); return nil }
}

// onLeader is a fault of the gateway that leads.
func onLeader(harm func(*Gateway) (func() error, error)) func(*System, *rand.Rand) (func() error, error) {
	return func(s *System, _ *rand.Rand) (func() error, error) {
		leader, err := s.Leader(startTimeout)
		if err != nil {
			return nil, err
		}
		return harm(leader)
	}
}

// transfer has another node lead. It may fail while there is no leader.
func transfer(s *System, random *rand.Rand) (func() error, error) {
	if len(s.Gateways) == 1 {
		return healed, nil
	}
	var err error
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if _, err = pick(random, s.Gateways).Command("transfer"); err == nil {
			break
		}
	}
	return healed, err
}

// slowDisk has each write of a node take longer.
func slowDisk(s *System, random *rand.Rand) (func() error, error) {
	return pick(random, s.Gateways).tamper(logWrites, fmt.Sprintf("delay_enter=%d", writeDelay.Microseconds()))
}

// fullDisk has no byte more fit on the disk of a node. If it has written meanwhile it ends by itself, else it is
// killed: a write may fail as late as when the disk is let go. Then it is started again.
func fullDisk(s *System, random *rand.Rand) (func() error, error) {
	g := pick(random, s.Gateways)
	release, err := g.tamper(logWrites, "error=ENOSPC")
	if err != nil {
		return nil, err
	}
	return func() error {
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
	}, nil
}
