//go:build !race

package quorum

import (
	"os"
	"testing"
)

// TestSimulationFindsBugs holds the search to account: it is to find what is known
// to be wrong.
func TestSimulationFindsBugs(t *testing.T) {
	const most = 400_000
	for _, bug := range []struct {
		name string
		defects
		from uint64 // where the search begins: a rare one is not looked for from the start every time
	}{
		{"one phase", defects{onePhase: true}, 1},
		{"write back", defects{writeBack: true}, 1},
		{"no quarantine", defects{noQuarantine: true}, 1},
		{"late acquire comes to life", defects{undoOnce: true}, 1},
		{"no margin", defects{noMargin: true}, 3_900},
		{"votes without the token", defects{anyVote: true}, 264_000},
		{"a claimed token that is raised", defects{raising: true}, 1},
		{"one node admits", defects{admit: admitDefects{one: true}}, 1},
		{"a silent node admits", defects{admit: admitDefects{silent: true}}, 1},
		{"what nobody has claimed is admitted", defects{admit: admitDefects{unclaimed: true}}, 1},
		{"an admission is not remembered", defects{admit: admitDefects{noMark: true}}, 1},
		{"a lease that is over is admitted beside an older one", defects{admit: admitDefects{over: true}}, 14_000},
		{"what was issued before a node forgot is admitted", defects{admit: admitDefects{forgotten: true}}, 286_000},
		{"a node that forgot votes after what this gateway was asked for", defects{enrol: enrolDefects{own: true}}, 5_100},
		{"a node that comes back with something votes after what this gateway was asked for", defects{enrol: enrolDefects{restarted: true}}, 4_100},
		{"a node votes though too few can be asked", defects{enrol: enrolDefects{few: true}}, 3_600},
		{"another server is taken into service than the one that was looked at", defects{enrol: enrolDefects{any: true}}, 6_400},
	} {
		t.Run(bug.name, func(t *testing.T) {
			for seed := bug.from; seed < bug.from+most; seed++ {
				if fault := newWorld(seed, bug.defects, false).run(); fault != "" {
					t.Logf("found by schedule %d: %s", seed, fault)
					if os.Getenv("FENCEPOST_TRACE") != "" {
						t.Log(replay(seed, bug.defects))
					}
					return
				}
			}
			t.Errorf("not found in %d schedules", most)
		})
	}
}
