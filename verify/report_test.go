package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fencepost/verify/check"
)

// What did less than it was asked, or found something, says so.
func TestReport(t *testing.T) {
	short, failed := check.NewResult(1), check.NewResult(1)
	short.Reach("histories", 100, 200)
	short.Reach("histories", 50, 0)
	failed.Reach("turns", 10, 10)
	failed.Count("longest wait", time.Second)
	failed.Violation("P1: %d have it", 2)
	short.Harms.Add("disk-slow", check.Harm{To: "gateway 1", What: "calls delayed", N: 3})
	short.Harms.Add("disk-slow", check.Harm{To: "gateway 2", What: "calls delayed", N: 4})
	path := filepath.Join(t.TempDir(), "report.md")
	if err := writeReport(path, []outcome{
		{Check: check.Check{Name: "histories", Title: "a"}, result: short},
		{Check: check.Check{Name: "turns", Title: "b"}, result: failed},
	}, 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2 checks, 1 failed; 1 fell short: they did less than they were asked for",
		"| `histories` | a | **150** histories<br> | 200 (**short**)<br> | 0 violations |",
		"| `turns` | b | 10 turns<br> | 10<br> | **1 violations** | longest wait 1s |",
		"\n`histories`\n- disk-slow, 2 times: calls delayed: gateway 1 3, gateway 2 4\n",
		"- **violation** P1: 2 have it",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%q is not in\n%s", want, b)
		}
	}
}

// A kind of fault that did nothing fails its check, named with what it was to do; one that did nothing now and then says so.
func TestAnIdleFaultFailsItsCheck(t *testing.T) {
	r := check.NewResult(1)
	r.Harms.Add("node-stop", check.Harm{To: "Redis 1", What: "processes standing still", N: 1})
	r.Harms.Add("node-stop", check.Harm{To: "Redis 1", What: "processes standing still"})
	if o := (outcome{result: r}); !o.passed() {
		t.Error("a fault that did nothing once of two times fails its check")
	}
	var history check.Harms
	history.Add("disk-slow", check.Harm{To: "gateway 2", What: "calls delayed"})
	history.Add("disk-slow", check.Harm{To: "gateway 1", What: "calls delayed"})
	r.Harms.Join(&history)
	if o := (outcome{result: r}); o.passed() {
		t.Error("a fault that did nothing passes")
	}
	if _, violations := r.Violations(); len(violations) != 1 || violations[0] != "the fault disk-slow did nothing, 2 times: no calls delayed of gateway 1, gateway 2" {
		t.Errorf("%q", violations)
	}
	if lines := r.Harms.Lines(); len(lines) != 2 || lines[1] != "node-stop, 2 times: processes standing still: Redis 1 1; **1 times it did nothing**" {
		t.Errorf("%q", lines)
	}
}

// What a test says of its failure is told, and the logs of its servers are not.
func TestFailuresWithoutLogs(t *testing.T) {
	told := failures(`=== RUN   TestFailovers
    failover_test.go:84: round 3: it was renewed
    sentinel.go:104: Sentinel 28594: ... 1:12933 127.0.0.1 12933 @ locks
        14367:X 22 Nov 2026 15:25:30.021 * Sentinel new configuration saved on disk
        14367:M 22 Nov 2026 15:25:33.524 # Connection lost
--- FAIL: TestFailovers (0.00s)
`)
	if want := "    failover_test.go:84: round 3: it was renewed\n--- FAIL: TestFailovers (0.00s)\n"; told != want {
		t.Errorf("%q, want %q", told, want)
	}
}
