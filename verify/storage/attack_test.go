package storage_test

import (
	"fmt"
	"os"
	"testing"

	"fencepost/fence/fencetest"
	"fencepost/internal/sql/sqltest"
)

func TestMain(m *testing.M) {
	for role, play := range map[string]func() error{holderRole: hold, dirRole: writeDir, crashRole: crash, userRole: writeAsUser} {
		if os.Getenv(role) != "" {
			if err := play(); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
				os.Exit(1)
			}
			return
		}
	}
	sqltest.Main(m)
}

// eachRecipe runs a test with every recipe, as the page has it or without its guard.
func eachRecipe(t *testing.T, test func(t *testing.T, r recipe, guarded bool)) {
	for _, r := range recipes {
		for _, guarded := range []bool{true, false} {
			kind := "guarded"
			if !guarded {
				kind = "unguarded"
			}
			t.Run(r.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				test(t, r, guarded)
			})
		}
	}
}

// Nothing gets through a recipe; without its guard what is stale does.
func TestAttack(t *testing.T) {
	eachRecipe(t, func(t *testing.T, r recipe, guarded bool) {
		text := r.text(t, guarded)
		storage, err := r.open(r, text, r.start(t, r, text))
		if err != nil {
			t.Fatal(err)
		}
		o := fencetest.Options{Permits: r.permits, Rounds: 5, Writers: 5}
		if r.rounds > 0 {
			o.Rounds, o.Writers = r.rounds, 3
		}
		report, err := fencetest.Attack(t.Context(), storage, o)
		if err != nil {
			t.Fatal(err)
		}
		if report.Blind {
			t.Error("it was not read")
		}
		writes := 0
		for _, tally := range report.Tallies {
			writes += tally.Writes
		}
		t.Logf("%s: attacked with %d writes", r.name, writes)
		if guarded {
			if err := report.Err(); err != nil {
				t.Errorf("%v\n%v", err, report)
			}
			return
		}
		found := 0
		for _, tally := range report.Tallies {
			if tally.Attack == "stale" || tally.Attack == "reordered" {
				found += tally.Through
			}
		}
		if found == 0 {
			t.Errorf("without its guard nothing got through: the attack proves nothing\n%v", report)
		}
	})
}

// Every snippet that a page shows is tried by somebody.
func TestEverySnippetIsTried(t *testing.T) {
	tried := map[string]bool{"example": true}
	for _, r := range recipes {
		for _, mark := range r.marks {
			tried[mark] = true
		}
	}
	for mark := range readPages(t) {
		if !tried[mark] {
			t.Errorf("nothing tries %q", mark)
		}
	}
}
