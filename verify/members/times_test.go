package members

import (
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"fencepost/verify/system"
)

var acquiredAt = regexp.MustCompile(`"acquired_at":("[^"]*")`)

// Times are the wall clock's within a second, also when nobody has led for longer than that: the time of the log, by which
// leases end, stood still.
func TestTimesAfterAllNodesStoodStill(t *testing.T) {
	const stand = 4 * time.Second
	s := system.StartTest(t, system.Options{Store: system.Raft, Gateways: 3})
	client := system.NewClient(1)
	defer client.Close()
	type grant struct{ from, to time.Time } // it was granted between the two
	granted := map[string]grant{}
	acquire := func(g *system.Gateway, name string) {
		t.Helper()
		for t.Context().Err() == nil {
			from := time.Now()
			a, err := client.Acquire(t.Context(), g, name, "", `{"ttl_ms":600000}`)
			if err == nil && a.Status == 201 {
				granted[name] = grant{from, time.Now()}
				return
			}
			name += "x" // nothing is known of the other one
			system.Pause(100 * time.Millisecond)
		}
		t.Fatal("nothing is granted")
	}
	check := func(g *system.Gateway, what string) {
		t.Helper()
		for name, is := range granted {
			for _, path := range []string{"/locks/", "/history/"} {
				var found [][]byte
				for giveUp := time.Now().Add(patience); found == nil; system.Pause(100 * time.Millisecond) {
					a, err := client.Do(t.Context(), "GET", g.URL()+path+name, "", "")
					if found = acquiredAt.FindSubmatch(a.Body); found == nil && time.Now().After(giveUp) {
						t.Fatalf("%s%s %s: %s, %v", path, name, what, a, err)
					}
				}
				var at time.Time
				if err := json.Unmarshal(found[1], &at); err != nil || at.Before(is.from.Add(-time.Second)) || at.After(is.to.Add(time.Second)) {
					t.Errorf("%s%s %s says %s, %v; it was granted between %s and %s", path, name, what, at, err, is.from.UTC(), is.to.UTC())
				}
			}
		}
	}
	for _, g := range s.Gateways {
		acquire(g, "before-"+g.Node())
	}
	check(s.Gateways[0], "before")
	for _, g := range s.Gateways {
		if err := g.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	system.Pause(stand)
	for _, g := range s.Gateways {
		if err := g.Launch(); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range s.Gateways {
		if err := g.AwaitReady(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range s.Gateways {
		check(g, "at "+g.Node()+" after the stand")
		acquire(g, "after-"+g.Node())
		check(g, "at "+g.Node()+" after a grant")
	}
}
