package history

import (
	"testing"

	"fencepost/verify/system"
)

// Every situation names faults that its store can have, and all stores have some.
func TestSituations(t *testing.T) {
	stores := map[system.Kind]int{}
	for _, s := range append(situations(), clusters()...) {
		stores[s.options.Store]++
		cfg := Config{Options: s.options, Clients: s.clients, Names: s.names, Faults: s.faults}
		if err := cfg.fill(); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	for _, kind := range system.Kinds() {
		if stores[kind] < 2 {
			t.Errorf("%d situations on %s", stores[kind], kind)
		}
	}
}

// Two may keep their lease however few have left, and one in 1,000 of many.
func TestTooManyKept(t *testing.T) {
	for _, tt := range []struct {
		leavers, kept int
		want          bool
	}{{10, 2, false}, {10, 3, true}, {2999, 3, true}, {20_000, 20, false}, {20_000, 21, true}} {
		if got := TooManyKept(tt.leavers, tt.kept); got != tt.want {
			t.Errorf("of %d who left %d keep their lease: %t, want %t", tt.leavers, tt.kept, got, tt.want)
		}
	}
}

// The time that is judged is that outside of Troubles, which may overlap.
func TestCalm(t *testing.T) {
	h := History{End: 100 * ms, Troubles: []Trouble{
		{From: 5 * ms, Until: 5 * ms, Calm: 5 * ms}, {From: 10 * ms, Until: 20 * ms, Calm: 30 * ms}, {From: 25 * ms, Until: 26 * ms, Calm: 50 * ms},
	}}
	if got := h.calm(); got != 60*ms {
		t.Errorf("%s were calm, want 60ms", got)
	}
}
