//go:build !race

// It plays hundreds of schedules, which the race detector makes slow: make test runs
// it without, and TestSimulatedSchedules with and without.

package watchdog

import "testing"

// TestSimulationFindsBugs plants bugs in gateways and store: each is found.
func TestSimulationFindsBugs(t *testing.T) {
	const enough = 800 // schedules of each kind
	for _, bug := range []struct {
		what string
		flaw flaws
		from uint64 // where the search begins: a rare one is not looked for from the start every time
	}{
		{"a provisional lease is not confirmed", flaws{noConfirm: true}, 0},
		{"what a heartbeat tells of is not compared", flaws{noRecovery: true}, 0},
		{"nothing is taken back", flaws{noTakeBack: true}, 0},
		{"a take-back is not repeated", flaws{noSecondTakeBack: true}, 140},
		{"late commands are obeyed", flaws{noSkewGuard: true}, 465},
		{"there is no quarantine", flaws{noQuarantine: true}, 0},
		{"heartbeats are ignored", flaws{noHeartbeat: true}, 0},
		{"newcomers don't see the queue", flaws{barging: true}, 0},
		{"tokens are counted alone", flaws{plainCounter: true}, 35},
	} {
		t.Run(bug.what, func(t *testing.T) {
			for i := range uint64(2 * enough) {
				seed := bug.from + i/2
				if faults, _ := simulate(t, seed, i%2 == 1, bug.flaw); len(faults) > 0 {
					t.Logf("found in schedule %d: %s", seed, faults[0])
					return
				}
			}
			t.Errorf("not found in %d schedules", 2*enough)
		})
	}
}
