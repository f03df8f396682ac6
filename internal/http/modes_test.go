package http

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

func TestShared(t *testing.T) {
	t.Parallel()
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

// TestPermits: a lease takes several permits at once, shows their slots, and gives some back.
func TestPermits(t *testing.T) {
	t.Parallel()
	g := start(t)
	slots := func(of any) string { return fmt.Sprint(of.(map[string]any)["permits"], of.(map[string]any)["slots"]) }
	one := g.do("POST", "/locks/a", `{"mode":"shared","limit":200}`).want(t, 201)
	if one.json["permits"] != nil || one.json["slots"] != nil || one.number("slot") != 0 {
		t.Errorf("%s", one.body)
	}
	a := g.do("POST", "/locks/a", `{"mode":"shared","limit":200,"permits":3}`).want(t, 201)
	if slots(a.json) != "3 [1 2 3]" || a.number("slot") != 1 || a.number("limit") != 200 {
		t.Errorf("%s", a.body)
	}
	own := "Lease-Id: " + a.text("lease_id")
	if again := g.do("POST", "/locks/a", `{"mode":"shared","limit":200,"permits":3}`, own).want(t, 200); slots(again.json) != "3 [1 2 3]" {
		t.Errorf("%s", again.body)
	}
	if refused := g.do("POST", "/locks/a", `{"mode":"shared","limit":200,"permits":2}`, own).problem(t, 409, fencing.CodeConflict); refused.text("field") != "permits" {
		t.Errorf("%s", refused.body)
	}
	g.do("POST", "/locks/a", `{"mode":"shared","limit":200,"permits":197}`).problem(t, 423, fencing.CodeLocked)
	many := g.do("POST", "/locks/a", `{"mode":"shared","limit":200,"permits":196}`).want(t, 201)
	if len(many.json["slots"].([]any)) != 196 {
		t.Errorf("%s", many.body)
	}
	back := g.do("PUT", "/locks/a", `{"permits":2}`, own).want(t, 200)
	if slots(back.json) != "2 [1 2]" {
		t.Errorf("%s", back.body)
	}
	holders := g.do("GET", "/locks/a", "").want(t, 200).json["holders"].([]any)
	shown := holders[2].(map[string]any)
	if slots(holders[1]) != "2 [1 2]" || shown["permits"] != 196.0 || len(shown["slots"].([]any)) != fencing.MaxSlotsShown {
		t.Errorf("%v", holders)
	}
	waiting := g.later("POST", "/locks/a", `{"mode":"shared","limit":200,"permits":3,"wait_ms":60000}`)
	g.waiting("a", 1)
	if w := g.do("GET", "/locks/a", "").want(t, 200).json["waiters"].([]any)[0].(map[string]any); w["permits"] != 3.0 {
		t.Errorf("%v", w)
	}
	g.do("PUT", "/locks/a", `{"permits":1}`, own).want(t, 200)
	g.do("DELETE", "/locks/a", "", "Lease-Id: "+one.text("lease_id")).want(t, 204)
	if a := waiting().want(t, 201); slots(a.json) != "3 [0 2 3]" {
		t.Errorf("%s", a.body)
	}
	set := g.do("POST", "/locks", `{"names":["x","y"],"mode":"shared","limit":4,"permits":2}`).want(t, 201)
	if strings.Count(set.body, `"permits":2,"slots":[0,1]`) != 2 {
		t.Errorf("%s", set.body)
	}
	renewed := g.do("PUT", "/locks", `{"names":["x","y"],"permits":1}`, "Lease-Id: "+set.text("lease_id")).want(t, 200)
	if strings.Contains(renewed.body, "slots") || strings.Count(renewed.body, `"slot":0`) != 2 {
		t.Errorf("%s", renewed.body)
	}
}

// TestLimitChanges: the holders of a pool raise and lower its limit, which lets in who waits or ends
// nobody, and who waits states it anew.
func TestLimitChanges(t *testing.T) {
	t.Parallel()
	g := start(t)
	var holders []string
	for range 2 {
		holders = append(holders, "Lease-Id: "+g.do("POST", "/locks/a", `{"mode":"shared","limit":2}`).want(t, 201).text("lease_id"))
	}
	first, second := g.later("POST", "/locks/a", `{"mode":"shared","limit":4,"wait_ms":60000}`), "Lease-Id: "+newID()
	g.waiting("a", 1)
	old := g.later("POST", "/locks/a", `{"mode":"shared","limit":2,"wait_ms":60000}`, second)
	g.waiting("a", 2)
	if w := g.do("GET", "/locks/a", "").want(t, 200).json["waiters"].([]any); w[0].(map[string]any)["limit"] != 4.0 || w[1].(map[string]any)["limit"] != 2.0 {
		t.Errorf("%v", w)
	}
	if a := g.do("PUT", "/locks/a", `{"limit":4}`, holders[0]).want(t, 200); a.number("limit") != 4 || a.number("slot") != 0 {
		t.Errorf("%s", a.body)
	}
	g.waiting("a", 2)
	if a := g.do("PUT", "/locks/a", `{"mode":"shared","limit":4,"ttl_ms":600000,"owner":"me"}`, holders[1]).want(t, 200); a.number("ttl_ms") != 600000 || a.text("owner") != "me" {
		t.Errorf("%s", a.body)
	}
	if a := first().want(t, 201); a.number("slot") != 2 {
		t.Errorf("%s", a.body)
	}
	g.waiting("a", 1) // who bears no more than two
	if a := g.do("POST", "/locks/a", `{"mode":"shared","limit":4,"wait_ms":60000}`, second).want(t, 201); a.number("slot") != 3 || a.number("limit") != 4 {
		t.Errorf("%s", a.body)
	}
	old().problem(t, 409, fencing.CodeReplaced)

	if a := g.do("PUT", "/locks/a", `{"limit":1}`, holders[1]).want(t, 200); a.number("limit") != 1 || a.number("slot") != 1 {
		t.Errorf("%s", a.body)
	}
	if a := g.do("GET", "/locks/a", "").want(t, 200); a.number("holder_count") != 4 {
		t.Errorf("%s", a.body)
	}
	g.do("DELETE", "/locks/a", "", holders[0]).want(t, 204)
	g.do("POST", "/locks/a", `{"mode":"shared","limit":4}`).problem(t, 423, fencing.CodeLocked)
	if refused := g.do("POST", "/locks/a", `{"mode":"shared","limit":2}`, holders[1]).problem(t, 409, fencing.CodeConflict); refused.text("field") != "limit" {
		t.Errorf("%s", refused.body)
	}
	g.do("POST", "/locks/a", `{"mode":"shared"}`, holders[1]).want(t, 200)

	several := g.do("POST", "/locks", `{"names":["x","y"],"mode":"shared","limit":4,"permits":2}`).want(t, 201)
	own := "Lease-Id: " + several.text("lease_id")
	if refused := g.do("PUT", "/locks/x", `{"limit":1}`, own).problem(t, 400, fencing.CodeInvalidRequest); refused.text("field") != "limit" || !strings.Contains(refused.text("detail"), "from 2, the permits that the lease keeps, to 10000") {
		t.Errorf("%s", refused.body)
	}
	if a := g.do("PUT", "/locks", `{"names":["x","y"],"limit":1,"permits":1}`, own).want(t, 200); strings.Count(a.body, `"limit":1,"slot":0`) != 2 {
		t.Errorf("%s", a.body)
	}
}

// An answer shows a bounded number of holders, and how many there are.
func TestManyHolders(t *testing.T) {
	t.Parallel()
	const count = fencing.MaxHoldersShown + 20
	g := start(t)
	g.do("POST", "/locks/a", `{"mode":"shared","ttl_ms":8000}`).want(t, 201)
	for range count - 1 {
		g.do("POST", "/locks/a", `{"mode":"shared"}`).want(t, 201)
	}
	refused := g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked)
	if refused.number("retry_after_ms") != 8000 {
		t.Errorf("come back in %d ms", refused.number("retry_after_ms"))
	}
	for shown, answers := range map[int][]map[string]any{
		fencing.MaxHoldersShown:  {refused.json, g.do("GET", "/locks/a", "").want(t, 200).json},
		fencing.MaxHoldersListed: {g.do("GET", "/locks", "").want(t, 200).json["locks"].([]any)[0].(map[string]any)},
	} {
		for _, a := range answers {
			holders := a["holders"].([]any)
			if len(holders) != shown || a["holder_count"] != float64(count) || holders[0].(map[string]any)["ttl_ms"] != 8000.0 {
				t.Errorf("%d holders, first %v; there are %v", len(holders), holders[0], a["holder_count"])
			}
		}
	}
	if grants := g.do("GET", "/history/a", "").want(t, 200).json["grants"].([]any); len(grants) != fencing.MaxHoldersShown {
		t.Errorf("the history shows %d", len(grants))
	}
}

func TestReentry(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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

// TestLabelsChange: a renewal may set owner and metadata, which everybody sees from then on.
func TestLabelsChange(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	g.do("POST", "/locks/a", `{"owner":"first","metadata":{"step":"1","of":"9"}}`, "Lease-Id: "+id).want(t, 201)
	if body := g.do("PUT", "/locks/a", `{"owner":"second"}`, "Lease-Id: "+id).want(t, 200).body; !strings.Contains(body, `"owner":"second"`) || !strings.Contains(body, `"metadata":{"of":"9","step":"1"}`) {
		t.Errorf("%s", body)
	}
	if body := g.do("PUT", "/locks", `{"names":["a"],"metadata":{"step":"2"}}`, "Lease-Id: "+id).want(t, 200).body; !strings.Contains(body, `"owner":"second"`) {
		t.Errorf("%s", body)
	}
	for _, path := range []string{"/locks/a", "/locks?q=SECOND"} {
		if body := g.do("GET", path, "").body; !strings.Contains(body, `"owner":"second"`) || !strings.Contains(body, `"metadata":{"step":"2"}`) {
			t.Errorf("%s: %s", path, body)
		}
	}
	g.do("PUT", "/locks/a", `{"metadata":{}}`, "Lease-Id: "+id).want(t, 200)
	g.do("PUT", "/locks/a", `{}`, "Lease-Id: "+id).want(t, 200)
	if body := g.do("GET", "/locks/a", "").body; !strings.Contains(body, `"metadata":{}`) || !strings.Contains(body, `"owner":"second"`) {
		t.Errorf("%s", body)
	}
	g.do("POST", "/locks/a", `{"owner":"first"}`, "Lease-Id: "+id).problem(t, 409, fencing.CodeConflict)
	g.do("POST", "/locks/a", `{}`, "Lease-Id: "+id).want(t, 200)
	for body, field := range map[string]string{
		`{"owner":"` + strings.Repeat("x", 257) + `"}`: "owner",
		`{"owner":7}`:           "owner",
		`{"metadata":{"":"x"}}`: "metadata",
		`{"metadata":{"k":"` + strings.Repeat("x", 257) + `"}}`: "metadata",
		`{"metadata":null}`: "metadata",
	} {
		if a := g.do("PUT", "/locks/a", body, "Lease-Id: "+id).problem(t, 400, fencing.CodeInvalidRequest); a.text("field") != field {
			t.Errorf("%s: %s", body, a.body)
		}
	}
	g.release("a", id)
	if body := g.do("GET", "/history/a", "").body; !strings.Contains(body, `"owner":"second"`) {
		t.Errorf("%s", body)
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
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
