package history

import (
	"slices"
	"strings"
	"testing"

	"fencepost/verify/system"
)

// What a cluster of gateways is held to beyond what one Redis is, and what it may do.
func TestCheckOfClusters(t *testing.T) {
	election := Trouble{What: "election", From: 50 * ms, Until: 2050 * ms, Calm: 9000 * ms, Stopped: true}
	cut := Trouble{What: "way-cut", From: 50 * ms, Until: 2050 * ms, Calm: 9000 * ms}
	show := func(s *script, at int, token int64) {
		look := Look{}
		if token != 0 {
			look.Holders = []Shown{{Owner: "a", Token: token}}
		}
		s.shows(at, at, look)
	}
	for _, c := range []struct {
		what    string
		promise string // empty: legal
		of      system.Kind
		make    func(*script)
	}{
		{"a lease that is shown after its TTL and what an election took", "", system.Raft, func(s *script) {
			s.h.Troubles = []Trouble{election}
			s.grant(0, 1, "a", 10)
			show(s, 3000, 10)
		}},
		{"a lease that is shown after its TTL and what two elections took at once", "order P4", system.Raft, func(s *script) {
			s.h.Troubles = []Trouble{election, election}
			s.grant(0, 1, "a", 10)
			show(s, 3200, 10)
		}},
		{"a lease that is shown for longer", "order P4", system.Raft, func(s *script) {
			s.h.Troubles = []Trouble{election}
			s.grant(0, 1, "a", 10)
			show(s, 3200, 10)
		}},
		{"a lease that is shown after its TTL, and no other node has led", "order P4", system.Raft, func(s *script) {
			s.h.Troubles = []Trouble{cut}
			s.grant(0, 1, "a", 10)
			show(s, 3000, 10)
		}},
		{"a lease that is renewed after its TTL and what an election took", "order", system.Raft, func(s *script) {
			s.h.Troubles = []Trouble{election}
			s.grant(0, 1, "a", 10)
			s.renew(3200, 3201, "a", 10, "")
		}},
		{"a lease that is renewed while an election delayed its end", "", system.Raft, func(s *script) {
			s.h.Troubles = []Trouble{election}
			s.grant(0, 1, "a", 10)
			s.renew(3000, 3001, "a", 10, "")
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			rules, s := RulesOf(c.of), &script{}
			c.make(s)
			var promises []string
			found := Check(&s.h, rules, "")
			for _, v := range found {
				promises = append(promises, v.Promise)
			}
			if got := strings.Join(slices.Compact(promises), " "); got != c.promise {
				t.Errorf("found %q, want %q: %v", got, c.promise, found)
			}
		})
	}
}

// Nothing that happens to a cluster has it forget, or have two masters.
func TestAftermathOfClusters(t *testing.T) {
	for _, f := range system.Faults(system.Raft) {
		if a := aftermathOf(f.Name, system.Raft); a.forgets || a.split || a.restarts || a.calm == 0 {
			t.Errorf("%s: %+v; a cluster forgets nothing, and has one leader", f.Name, a)
		}
	}
}
