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
	}{
		{"a provisional lease is not confirmed", flaws{noConfirm: true}},
		{"what a heartbeat tells of is not compared", flaws{noRecovery: true}},
		{"nothing is taken back", flaws{noTakeBack: true}},
		{"a take-back is not repeated", flaws{noSecondTakeBack: true}},
		{"late commands are obeyed", flaws{noSkewGuard: true}},
		{"there is no quarantine", flaws{noQuarantine: true}},
		{"heartbeats are ignored", flaws{noHeartbeat: true}},
		{"newcomers don't see the queue", flaws{barging: true}},
		{"tokens are counted alone", flaws{plainCounter: true}},
	} {
		t.Run(bug.what, func(t *testing.T) {
			for i := range uint64(2 * enough) {
				if faults, _ := simulate(t, i/2, i%2 == 1, bug.flaw); len(faults) > 0 {
					t.Logf("found in schedule %d: %s", i, faults[0])
					return
				}
			}
			t.Errorf("not found in %d schedules", 2*enough)
		})
	}
}
