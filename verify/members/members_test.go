package members

import (
	"testing"
	"time"

	"fencepost/internal/seed"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

func run(t *testing.T, gateways int, m Members) {
	t.Helper()
	s := system.StartTest(t, system.Options{Store: system.Raft, Gateways: gateways})
	r := check.NewResult(seed.Of(t))
	if err := m.Run(t.Context(), s, r); err != nil {
		for _, g := range s.Gateways {
			t.Logf("%s: %s", g.Node(), g.Log())
		}
		t.Fatal(err)
	}
	if n, violations := r.Violations(); n > 0 {
		t.Errorf("%d violations, seed %d: %q", n, r.Seed, violations)
	}
	for _, part := range r.Reached() {
		if part.Done == 0 && part.Asked > 0 {
			t.Errorf("nothing was done of what was asked for: %s", part)
		}
	}
	t.Log(r, r.Notes())
}

// The short versions; go run ./verify -only raft-fail-overs and so on have the long ones.
func TestFailOvers(t *testing.T) {
	run(t, 3, Members{Kills: 1, Stops: 1, Queues: 1, Stand: 2 * time.Second})
}

func TestPartitions(t *testing.T) { run(t, 3, Members{Partitions: 1, Stand: time.Second}) }

// What a leader that was stopped is asked it answers as it is, when it goes on.
func TestSystemReadsOfAStoppedLeader(t *testing.T) { run(t, 3, Members{Reads: 12}) }

// Many that are refused at a follower are told who holds the lock, and nobody else is kept waiting there.
func TestSystemManyRefusalsAtAFollower(t *testing.T) { run(t, 3, Members{Refusals: 1}) }

// Who replaces the disks one by one, and goes by gateway cluster status alone, loses nothing.
func TestSystemDisksAreReplacedOneByOne(t *testing.T) { run(t, 3, Members{AllDisks: 2}) }

func TestMembers(t *testing.T) {
	run(t, 3, Members{Rolls: 1, Disks: 1, Races: 1, Exiles: 1, Changes: 1})
}
