package http

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

func TestShared(t *testing.T) {
	g := start(t)
	for slot := range 2 {
		a := g.do("POST", "/locks/a", `{"mode":"shared","limit":2}`).want(t, 201)
		if a.text("mode") != "shared" || a.json["slot"] == nil || a.number("slot") != int64(slot) || a.json["limit"] != 2.0 {
			t.Errorf("%s", a.body)
		}
	}
	refused := g.do("POST", "/locks/a", `{"mode":"shared","limit":2}`).problem(t, 423, fencing.CodeLocked)
	for _, a := range []*answered{refused, g.do("GET", "/locks/a", "").want(t, 200)} {
		holders := a.json["holders"].([]any)
		if len(holders) != 2 || a.number("holder_count") != 2 || holders[1].(map[string]any)["slot"] != 1.0 || holders[1].(map[string]any)["limit"] != 2.0 {
			t.Errorf("%s", a.body)
		}
	}
	for range 3 {
		if a := g.do("POST", "/locks/b", `{"mode":"shared"}`).want(t, 201); a.json["slot"] != nil || a.json["limit"] != nil {
			t.Errorf("%s", a.body)
		}
	}
	g.acquired("c")
	for _, name := range []string{"b", "c"} { // where there is no limit, and no metadata
		a := g.do("GET", "/locks/"+name, "").want(t, 200)
		holder := a.json["holders"].([]any)[0].(map[string]any)
		if metadata, is := holder["metadata"].(map[string]any); !is || len(metadata) != 0 || holder["limit"] != nil {
			t.Errorf("%s", a.body)
		}
	}
	g.do("POST", "/locks/b", "").problem(t, 423, fencing.CodeLocked)
}

// An answer shows a bounded number of holders, and how many there are.
func TestManyHolders(t *testing.T) {
	const count = fencing.MaxHoldersShown + 20
	g := start(t)
	g.do("POST", "/locks/a", `{"mode":"shared","ttl_ms":20000}`).want(t, 201)
	for range count - 1 {
		g.do("POST", "/locks/a", `{"mode":"shared"}`).want(t, 201)
	}
	refused := g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked)
	if refused.number("retry_after_ms") != 20000 {
		t.Errorf("come back in %d ms", refused.number("retry_after_ms"))
	}
	for shown, answers := range map[int][]map[string]any{
		fencing.MaxHoldersShown:  {refused.json, g.do("GET", "/locks/a", "").want(t, 200).json},
		fencing.MaxHoldersListed: {g.do("GET", "/locks", "").want(t, 200).json["locks"].([]any)[0].(map[string]any)},
	} {
		for _, a := range answers {
			holders := a["holders"].([]any)
			if len(holders) != shown || a["holder_count"] != float64(count) || holders[0].(map[string]any)["ttl_ms"] != 20000.0 {
				t.Errorf("%d holders, first %v; there are %v", len(holders), holders[0], a["holder_count"])
			}
		}
	}
	if grants := g.do("GET", "/history/a", "").want(t, 200).json["grants"].([]any); len(grants) != fencing.MaxHoldersShown {
		t.Errorf("the history shows %d", len(grants))
	}
}

func TestReentry(t *testing.T) {
	g := start(t)
	id := newID()
	own := "Lease-Id: " + id
	token := g.do("POST", "/locks/a", "", own).want(t, 201).number("fencing_token")
	g.clock.advance(10 * time.Second)
	for range 2 {
		a := g.do("POST", "/locks/a", `{"hold":2,"ttl_ms":25000}`, own).want(t, 200)
		if a.number("hold") != 2 || a.number("fencing_token") != token || a.number("expires_in_ms") != 25000 || a.number("waited_ms") != 0 {
			t.Errorf("%s", a.body)
		}
	}
	for range 2 {
		a := g.do("DELETE", "/locks/a", "", own, "Lease-Hold: 2").want(t, 200)
		if a.number("hold") != 1 || a.text("lease") != public(id) || a.header.Get("Fencing-Token") == "" || a.json["lease_id"] != nil {
			t.Errorf("%s", a.body)
		}
	}
	g.do("POST", "/locks/a", `{"hold":2}`, own).want(t, 200)
	g.do("DELETE", "/locks/a", "", own, "Lease-Hold: 1").want(t, 204) // whatever the depth
	g.do("DELETE", "/locks/a", "", own, "Lease-Hold: 2").want(t, 204)
	g.wantNotTakenBack()
}

// TestDowngrade: a holder that turns its lease into a shared one keeps its token,
// and lets others in.
func TestDowngrade(t *testing.T) {
	g := start(t)
	id := newID()
	token := g.do("POST", "/locks/a", "", "Lease-Id: "+id).want(t, 201).number("fencing_token")
	reader := g.later("POST", "/locks/a", `{"mode":"shared","limit":2,"wait_ms":60000}`)
	g.waiting("a", 1)
	a := g.do("PUT", "/locks/a", `{"mode":"shared","limit":2}`, "Lease-Id: "+id).want(t, 200)
	if a.text("mode") != "shared" || a.number("fencing_token") != token || a.json["slot"] == nil || a.number("slot") != 0 {
		t.Errorf("%s", a.body)
	}
	if a := reader().want(t, 201); a.number("slot") != 1 {
		t.Errorf("%s", a.body)
	}
	g.do("PUT", "/locks/a", `{"mode":"shared","limit":2}`, "Lease-Id: "+id).want(t, 200)
}

func TestHistory(t *testing.T) {
	g := start(t)
	if a := g.do("GET", "/history/a/b", "").want(t, 200); a.body != `{"name":"a/b","grants":[]}` {
		t.Errorf("%s", a.body)
	}
	first := g.do("POST", "/locks/a/b", `{"owner":"one"}`).want(t, 201)
	second := g.later("POST", "/locks/a/b", `{"owner":"two","wait_ms":60000,"mode":"shared"}`)
	g.waiting("a/b", 1)
	g.clock.advance(1200 * time.Millisecond)
	g.release("a/b", first.text("lease_id"))
	two := second().want(t, 201)
	g.clock.advance(300 * time.Millisecond)
	a := g.do("GET", "/history/a%2Fb", "").want(t, 200)
	want := fmt.Sprintf(`{"name":"a/b","grants":[{"lease":%q,"owner":"two","mode":"shared","fencing_token":%d,"acquired_at":"2026-01-01T00:00:01.200Z","held_ms":300,"waited_ms":1200,"outcome":"held"},`+
		`{"lease":%q,"owner":"one","mode":"exclusive","fencing_token":%d,"acquired_at":"2026-01-01T00:00:00.000Z","ended_at":"2026-01-01T00:00:01.200Z","held_ms":1200,"waited_ms":0,"outcome":"released"}]}`,
		public(two.text("lease_id")), two.number("fencing_token"), public(first.text("lease_id")), first.number("fencing_token"))
	if a.body != want {
		t.Errorf("got  %s\nwant %s", a.body, want)
	}
	g.clock.advance(time.Minute)
	if a := g.do("GET", "/history/a/b", "").want(t, 200); strings.Count(a.body, `"outcome":"expired"`) != 1 || strings.Contains(a.body, `"held"`) {
		t.Errorf("%s", a.body)
	}
	third := g.acquired("a/b")
	g.do("DELETE", "/locks/a/b", "", "If-Match: "+g.do("GET", "/locks/a/b", "").header.Get("ETag")).want(t, 204)
	a = g.do("GET", "/history/a/b", "").want(t, 200)
	if newest := a.json["grants"].([]any)[0].(map[string]any); newest["outcome"] != "broken" || newest["lease"] != public(third) {
		t.Errorf("%s", a.body)
	}
	if head := g.do("HEAD", "/history/a/b", "").want(t, 200); head.body != "" {
		t.Errorf("HEAD: %s", head.body)
	}
}
