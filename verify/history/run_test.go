package history

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"fencepost/verify/system"
)

// number reads a setting of the tests, so that what was found can be looked for again.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// TestStores plays a short history on every kind of store; go run ./verify plays long
// ones. FENCEPOST_SEED is the seed, FENCEPOST_OPERATIONS how many requests are sent,
// FENCEPOST_CLIENTS and FENCEPOST_NAMES by how many to how many, FENCEPOST_FAULTS which
// faults happen meanwhile, with commas, FENCEPOST_PICTURES where pictures go.
func TestStores(t *testing.T) {
	for _, kind := range system.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			cfg := Config{
				Options: system.Options{Store: kind, Gateways: 2},
				Clients: number(t, "FENCEPOST_CLIENTS", 8), Names: number(t, "FENCEPOST_NAMES", 3),
				Operations: number(t, "FENCEPOST_OPERATIONS", 800), Seed: uint64(number(t, "FENCEPOST_SEED", 1)),
				Dir: os.Getenv("FENCEPOST_PICTURES"),
			}
			switch kind {
			case system.Embedded:
				cfg.Options.Gateways = 1
			case system.Raft:
				cfg.Options.Gateways = 3
			}
			if faults := os.Getenv("FENCEPOST_FAULTS"); faults != "" {
				cfg.Faults = strings.Split(faults, ",")
			}
			report, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(report)
			if len(report.Violations) > 0 {
				t.Errorf("%d violations", len(report.Violations))
			}
			for _, idle := range report.Harms.Idle() {
				t.Error(idle)
			}
			if report.Granted < report.Operations/5 || report.Looks == 0 {
				t.Errorf("%d of %d operations had a lease, %d looks: this shows little", report.Granted, report.Operations, report.Looks)
			}
			if asks := RulesOf(kind).CurrentReads; asks != (report.Verdicts > 0) {
				t.Errorf("%d verdicts of fences; asked: %t", report.Verdicts, asks)
			}
		})
	}
}
