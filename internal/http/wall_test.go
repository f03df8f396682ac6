package http

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// timeMembers matches what an answer says of times.
var timeMembers = regexp.MustCompile(`"([a-z_]*at)":"([^"]*)"`)

// Every time that people are shown is the wall clock's, where that is not the store's: in each kind of answer that has one.
// How long a lease has left is the store's, and how long it was held is the difference of what is shown.
func TestTimesAreTheWallClocks(t *testing.T) {
	t.Parallel()
	const before, after = time.Hour, 9 * time.Hour
	changed := fencingtest.Epoch.Add(30 * time.Second)
	g := start(t, func(o *Options) {
		o.Watchdog.Store.(*scriptedStore).wallTime = func(at fencing.Instant) time.Time {
			if at < changed {
				return at.Add(before).Time()
			}
			return at.Add(after).Time()
		}
	})
	seen := map[string]bool{}
	check := func(kind, body string, want map[string]time.Duration) {
		t.Helper()
		found := timeMembers.FindAllStringSubmatch(body, -1)
		if len(found) < len(want) {
			t.Errorf("%s has too few times: %s", kind, body)
		}
		for _, member := range found {
			got, err := time.Parse(time.RFC3339, member[2])
			if wanted, is := want[member[1]]; err != nil || !is || got.Sub(fencingtest.Epoch.Time()) != wanted {
				t.Errorf("%s: %s is %s after the beginning, want %s (%t), %v", kind, member[1], got.Sub(fencingtest.Epoch.Time()), wanted, is, err)
			}
		}
		seen[kind] = true
	}
	life := map[string]time.Duration{"acquired_at": before, "expires_at": after + time.Minute}
	acquired := g.do("POST", "/locks/a", `{"ttl_ms":60000}`).want(t, 201)
	check("a grant", acquired.body, life)
	id := acquired.text("lease_id")
	set := g.do("POST", "/locks", `{"names":["b","c"],"ttl_ms":60000}`).want(t, 201)
	check("a set", set.body, life)
	events := g.stream("GET", "/events", "")
	attached := g.stream("POST", "/locks/d", `{"ttl_ms":60000}`, attach)
	check("a stream", attached.next("granted").data, life)
	check("an event", events.next("granted").data, map[string]time.Duration{"at": before})
	g.clock.advance(30 * time.Second)
	check("a lock", g.do("GET", "/locks/a", "").body, life)
	check("a list", g.do("GET", "/locks?limit=2", "").body, life)
	check("a refusal", g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked).body, life)
	check("a refusal of a set", g.do("POST", "/locks", `{"names":["c","e"]}`).problem(t, 423, fencing.CodeLocked).body, life)
	renewed := map[string]time.Duration{"acquired_at": before, "expires_at": after + 30*time.Second + time.Minute}
	check("a renewal", g.do("PUT", "/locks/a", `{"ttl_ms":60000}`, "Lease-Id: "+id).want(t, 200).body, renewed)
	check("a renewal of a set", g.do("PUT", "/locks", `{"names":["b","c"],"ttl_ms":60000}`, "Lease-Id: "+set.text("lease_id")).want(t, 200).body, renewed)
	noticed := map[string]time.Duration{"acquired_at": before, "expires_at": after + time.Minute, "breaks_at": after + time.Minute}
	d := g.do("GET", "/locks/d", "").header.Get("ETag")
	check("a break with notice", g.do("DELETE", "/locks/d?notice_ms=30000", "", "If-Match: "+d).want(t, 202).body, noticed)
	for notice := range attached.rest() {
		if notice.name == "notice" { // and not that it was renewed, as half of its time was over
			check("a notice on a stream", notice.data, map[string]time.Duration{"breaks_at": after + time.Minute})
			break
		}
	}
	check("an event of a notice", events.next("notice").data, map[string]time.Duration{"at": after + 30*time.Second, "breaks_at": after + time.Minute})
	g.clock.advance(time.Second)
	g.do("DELETE", "/locks/a", "", "Lease-Id: "+id).want(t, 204)
	ended := after + 31*time.Second
	released := events.next("released")
	check("an event of an end", released.data, map[string]time.Duration{"at": ended})
	if held := released.number("held_ms"); held != (ended - before).Milliseconds() {
		t.Errorf("an event says that the lease was held for %d ms: %s", held, released.data)
	}
	history := g.do("GET", "/history/a", "").want(t, 200)
	check("a history", history.body, map[string]time.Duration{"acquired_at": before, "ended_at": ended})
	if !strings.Contains(history.body, `"held_ms":28831000,`) {
		t.Errorf("a history says something else of how long the lease was held: %s", history.body)
	}
	check("a history of a live lease", g.do("GET", "/history/b", "").want(t, 200).body, map[string]time.Duration{"acquired_at": before})
	lock := g.do("GET", "/locks/b", "").want(t, 200).json["holders"].([]any)[0].(map[string]any)
	if lock["expires_in_ms"] != 59000.0 {
		t.Errorf("a lease has %v ms left", lock["expires_in_ms"])
	}

	sets := g.stream("POST", "/locks", `{"names":["e","f"],"ttl_ms":60000}`, attach)
	check("a stream of a set", sets.next("granted").data, map[string]time.Duration{"acquired_at": ended, "expires_at": ended + time.Minute})
	check("its event", events.next("granted").data, map[string]time.Duration{"at": ended})
	check("its event", events.next("granted").data, map[string]time.Duration{"at": ended})
	b := g.do("GET", "/locks/b", "").header.Get("ETag")
	g.do("DELETE", "/locks/b", "", "If-Match: "+b).want(t, 204)
	check("an event of a break", events.next("broken").data, map[string]time.Duration{"at": ended})
	lost := g.do("PUT", "/locks", `{"names":["b","c"],"ttl_ms":60000}`, "Lease-Id: "+set.text("lease_id")).problem(t, 412, fencing.CodeLeaseLost)
	check("a set of which a name is lost", lost.body, map[string]time.Duration{"acquired_at": before, "expires_at": ended + time.Minute})
	if len(seen) != 20 {
		t.Errorf("%d kinds of answers were looked at", len(seen))
	}
}
