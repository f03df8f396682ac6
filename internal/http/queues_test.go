package http

import (
	"fmt"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// TestEvict: whose place is taken away is answered at once and finds it so ever after; others
// keep their places.
func TestEvict(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	events := g.stream("GET", "/events", "")
	holder := g.do("POST", "/locks/a", "").want(t, 201)
	first, second := newID(), newID()
	evicted := g.later("POST", "/locks/a", `{"wait_ms":60000}`, "Lease-Id: "+first)
	g.eventually("the first waits", func() bool { return g.lock("a").Waiting == 1 })
	next := g.later("POST", "/locks/a", `{"wait_ms":60000}`, "Lease-Id: "+second)
	g.eventually("both wait", func() bool { return g.lock("a").Waiting == 2 })

	path := "/queues/a?lease=" + public(first)
	g.do("DELETE", path, `{"reason":"not before the migration"}`).want(t, 204)
	g.do("DELETE", path, `{"reason":"other"}`).want(t, 204)
	again := func() *answered { return g.do("POST", "/locks/a", `{"wait_ms":60000}`, "Lease-Id: "+first) }
	for _, ask := range []func() *answered{evicted, again, again} {
		if a := ask().problem(t, 412, fencing.CodeLeaseLost); a.text("reason") != "evicted" || a.text("break_reason") != "not before the migration" {
			t.Errorf("%s", a.body)
		}
	}
	g.do("DELETE", "/locks/a", "", "Lease-Id: "+holder.text("lease_id")).want(t, 204)
	granted := next().want(t, 201)

	if a := g.do("DELETE", "/queues/a?lease="+public(second), "").problem(t, 409, fencing.CodeConflict); a.text("field") != "lease" || a.number("current_token") != granted.number("fencing_token") {
		t.Errorf("%s", a.body)
	}
	g.do("DELETE", "/queues/a?lease="+public(newID()), "").problem(t, 404, fencing.CodeNotFound)
	g.do("DELETE", "/queues/nowhere?lease="+public(first), "").problem(t, 404, fencing.CodeNotFound)

	for _, want := range []string{"granted", "queued", "queued"} {
		events.next(want)
	}
	if e := events.next("left"); e.text("lease") != public(first) || e.json["evicted"] != true || e.text("break_reason") != "not before the migration" {
		t.Errorf("%s", e.data)
	}
	if log := g.log.String(); strings.Count(log, `"event":"evict"`) != 5 || strings.Count(log, fmt.Sprintf(`"lease":%q,"break_reason":"not before the migration"`, public(first))) != 1 {
		t.Errorf("%s", log)
	}
	g.wantNotTakenBack()
}

// TestEvictASet: a request for several names ends as a whole, and gives back what it had.
func TestEvictASet(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	g.acquired("b")
	id := newID()
	set := g.later("POST", "/locks", `{"names":["a","b"],"wait_ms":60000}`, "Lease-Id: "+id)
	g.eventually("it waits", func() bool { return g.lock("b").Waiting == 1 })
	g.do("DELETE", "/queues/a?lease="+public(id), "").problem(t, 409, fencing.CodeConflict)
	g.do("DELETE", "/queues/b?lease="+public(id), "").want(t, 204)
	if a := set().problem(t, 412, fencing.CodeLeaseLost); a.text("reason") != "evicted" {
		t.Errorf("%s", a.body)
	}
	g.eventually("what it had is free", func() bool { return !g.lock("a").Held() })
}

// TestEvictAttached: the stream of a lease that is waited for ends.
func TestEvictAttached(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	g.acquired("a")
	s := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach)
	e := s.next("queued")
	g.do("DELETE", "/queues/a?lease="+e.text("lease"), `{"reason":"deploy"}`).want(t, 204)
	if e := s.next("refused"); e.text("reason") != "evicted" || e.text("break_reason") != "deploy" || e.number("status") != 412 {
		t.Errorf("%s", e.data)
	}
	s.ended()
}
