package history

import (
	"testing"

	"fencepost/verify/system"
)

// Every situation names faults that its store can have, and all stores have some.
func TestSituations(t *testing.T) {
	stores := map[system.Kind]int{}
	for _, s := range situations() {
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
