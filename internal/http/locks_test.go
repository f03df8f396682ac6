package http

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

func TestAcquireAnswer(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.clock.advance(123456 * time.Microsecond)
	a := g.do("POST", "/locks/orders/42", `{"owner":"worker \"7\"","ttl_ms":20000,"max_hold_ms":25000,"metadata":{"b":"2","a":"1"}}`).want(t, 201)
	id, token := a.text("lease_id"), a.number("fencing_token")
	if _, err := fencing.ParseLeaseID(id); err != nil {
		t.Error(err)
	}
	want := fmt.Sprintf(`{"name":"orders/42","lease_id":%q,"owner":"worker \"7\"","mode":"exclusive","fencing_token":%d,"hold":1,"ttl_ms":20000,`+
		`"acquired_at":"2026-01-01T00:00:00.123Z","expires_at":"2026-01-01T00:00:20.123Z","expires_in_ms":20000,"renew_in_ms":6666,"waited_ms":0,`+
		`"metadata":{"a":"1","b":"2"}}`, id, token)
	if a.body != want {
		t.Errorf("got  %s\nwant %s", a.body, want)
	}
	if got := a.header.Get("Location"); got != "/locks/orders/42" {
		t.Errorf("Location %q", got)
	}
	if got := a.header.Get("Fencing-Token"); got != strconv.FormatInt(token, 10) {
		t.Errorf("Fencing-Token %q, want %d", got, token)
	}
	if got := a.header.Get("Content-Length"); got != strconv.Itoa(len(a.body)+1) {
		t.Errorf("Content-Length %q: the answer was sent in chunks", got)
	}

	// max_hold_ms bounds the renewed lease; the answer counts what is left.
	g.clock.advance(10 * time.Second)
	a = g.do("PUT", "/locks/orders/42", "", "Lease-Id: "+id).want(t, 200)
	if a.number("ttl_ms") != 20000 || a.number("expires_in_ms") != 15000 || a.number("renew_in_ms") != 6666 {
		t.Errorf("renewed: %s", a.body)
	}
	if a.text("lease") != public(id) || a.json["lease_id"] != nil {
		t.Errorf("a renewal shows the public part only: %s", a.body)
	}
	a = g.do("PUT", "/locks/orders/42", `{"ttl_ms":100}`, "Lease-Id: "+id).want(t, 200)
	if a.number("expires_in_ms") != 100 || a.number("renew_in_ms") != 33 {
		t.Errorf("shortened: %s", a.body)
	}
	if a.header.Get("Fencing-Token") != strconv.FormatInt(token, 10) || a.header.Get("Location") != "" {
		t.Errorf("renewed: %v", a.header)
	}
}

// TestBodyIsJSONWhateverItsType: curl -d sends a form type.
func TestBodyIsJSONWhateverItsType(t *testing.T) {
	t.Parallel()
	g := start(t)
	for i, mime := range []string{"application/x-www-form-urlencoded", "text/plain", "nonsense"} {
		a := g.do("POST", fmt.Sprintf("/locks/n%d", i), `{"ttl_ms":1000}`, "Content-Type: "+mime).want(t, 201)
		if a.number("ttl_ms") != 1000 {
			t.Errorf("%s: %s", mime, a.body)
		}
	}
}

func TestRetryWithTheSameLeaseID(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	first := g.do("POST", "/locks/a", "", "Lease-Id: "+id).want(t, 201)
	g.clock.advance(time.Second)
	second := g.do("POST", "/locks/a", "", "Lease-Id: "+id).want(t, 200)
	if first.number("fencing_token") != second.number("fencing_token") || second.text("lease_id") != id {
		t.Errorf("%s\n%s", first.body, second.body)
	}
	if second.number("expires_in_ms") != 29000 || second.header.Get("Location") != "" || second.header.Get("Fencing-Token") == "" {
		t.Errorf("%s %v", second.body, second.header)
	}
	g.do("DELETE", "/locks/a", "", "Lease-Id: "+id).want(t, 204)
	if a := g.do("DELETE", "/locks/a", "", "Lease-Id: "+id).want(t, 204); a.body != "" || a.header.Get("Content-Type") != "" {
		t.Errorf("204 with %q %v", a.body, a.header)
	}
	g.do("POST", "/locks/a", "", "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost)
	other := id[:27] + strings.Repeat("A", len(id)-27)
	if a := g.do("DELETE", "/locks/a", "", "Lease-Id: "+other).problem(t, 412, fencing.CodeLeaseLost); a.text("reason") != "unknown" {
		t.Errorf("another secret: %s", a.body)
	}
}

func TestLocked(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	token := g.do("POST", "/locks/a", `{"owner":"first","ttl_ms":9500}`, "Lease-Id: "+id).want(t, 201).number("fencing_token")
	g.clock.advance(100*time.Millisecond + time.Microsecond)
	a := g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked)
	if a.text("name") != "a" || a.number("waiting") != 0 || a.json["waiting"] == nil || a.number("retry_after_ms") != 9400 {
		t.Errorf("%s", a.body)
	}
	if a.header.Get("Retry-After") != "10" { // 9.4 s rounded up
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	holder := a.json["holders"].([]any)[0].(map[string]any)
	if holder["lease"] != public(id) || holder["owner"] != "first" || int64(holder["fencing_token"].(float64)) != token || holder["expires_in_ms"] != 9399.0 {
		t.Errorf("holder %v", holder)
	}
	if a.text("type") != "urn:fencepost:problem:locked" || a.number("status") != 423 {
		t.Errorf("%s", a.body)
	}
}

func TestLostReasons(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	g.do("POST", "/locks/a", `{"ttl_ms":1000}`, "Lease-Id: "+id).want(t, 201)
	g.clock.advance(1500 * time.Millisecond)
	a := g.do("PUT", "/locks/a", "", "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost)
	if a.text("reason") != "expired" || a.number("late_ms") != 500 || a.json["current_token"] != nil {
		t.Errorf("%s", a.body)
	}
	token := g.do("POST", "/locks/a", "").want(t, 201).number("fencing_token")
	a = g.do("DELETE", "/locks/a", "", "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost)
	if a.text("reason") != "superseded" || a.number("current_token") != token {
		t.Errorf("%s", a.body)
	}
	a = g.do("PUT", "/locks/a", "", "Lease-Id: "+newID()).problem(t, 412, fencing.CodeLeaseLost)
	if a.text("reason") != "unknown" || a.json["late_ms"] != nil {
		t.Errorf("%s", a.body)
	}
}

func TestBreak(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	token := g.do("POST", "/locks/a", "", "Lease-Id: "+id).want(t, 201).number("fencing_token")
	a := g.do("DELETE", "/locks/a", "", fmt.Sprintf(`If-Match: "%d"`, token+1)).problem(t, 412, fencing.CodeStaleToken)
	if len(a.json["holders"].([]any)) != 1 || a.text("name") != "a" {
		t.Errorf("%s", a.body)
	}
	etag := g.do("GET", "/locks/a", "").want(t, 200).header.Get("ETag")
	g.do("DELETE", "/locks/a", "", "If-Match: "+etag).want(t, 204)
	g.do("DELETE", "/locks/a", "", "If-Match: "+etag).want(t, 204)
	if a := g.do("PUT", "/locks/a", "", "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost); a.text("reason") != "broken" {
		t.Errorf("%s", a.body)
	}
}

// TestOneNameHasManySpellings: what URIs call equal is one lock.
func TestOneNameHasManySpellings(t *testing.T) {
	t.Parallel()
	g := start(t)
	for _, spellings := range [][]string{
		{"/locks/a:b", "/locks/a%3Ab", "/locks/a%3ab", "/locks/%61:b"},
		{"/locks/x/y", "/locks/x%2Fy", "/locks/x%2fy", "/locks%2Fx/y"},
		{"/locks/~t@h_e.r-e", "/locks/%7Et%40h%5Fe%2Er%2De"},
	} {
		var token int64
		for i, path := range spellings {
			if i == 0 {
				token = g.do("POST", path, "").want(t, 201).number("fencing_token")
			}
			if got := g.do("GET", path, "").want(t, 200); got.number("fencing_token") != token || got.json["held"] != true {
				t.Errorf("%s is another lock: %s", path, got.body)
			}
			g.do("POST", path, "").problem(t, 423, fencing.CodeLocked)
		}
	}
	g.do("POST", "/locks/"+strings.Repeat("n", 255), "").want(t, 201)
	g.do("POST", "/locks/a.b/..c/...", "").want(t, 201)
}

func TestInspect(t *testing.T) {
	t.Parallel()
	g := start(t)
	a := g.do("GET", "/locks/a/b", "").want(t, 200)
	want := `{"name":"a/b","held":false,"fencing_token":0,"holders":[],"holder_count":0,"waiting":0,"waiters":[],"fence":{"highest_issued":0,"highest_admitted":0},"advice":[]}`
	if a.body != want || a.header.Get("ETag") != `"0"` {
		t.Errorf("%s %s", a.body, a.header.Get("ETag"))
	}
	id := newID()
	token := g.do("POST", "/locks/a/b", `{"owner":"é","metadata":{"k":"v"}}`, "Lease-Id: "+id).want(t, 201).number("fencing_token")
	g.clock.advance(time.Second)
	a = g.do("GET", "/locks/a/b", "", "If-None-Match: *").want(t, 200)
	want = fmt.Sprintf(`{"name":"a/b","held":true,"mode":"exclusive","fencing_token":%[1]d,"holders":[{"lease":%[2]q,"owner":"é","mode":"exclusive",`+
		`"fencing_token":%[1]d,"hold":1,"ttl_ms":30000,"acquired_at":"2026-01-01T00:00:00.000Z","expires_at":"2026-01-01T00:00:30.000Z",`+
		`"attached":false,"expires_in_ms":29000,"metadata":{"k":"v"}}],"holder_count":1,"waiting":0,"waiters":[],"fence":{"highest_issued":%[1]d,"highest_admitted":0},"advice":[]}`, token, public(id))
	if a.body != want || a.header.Get("ETag") != fmt.Sprintf("%q", strconv.FormatInt(token, 10)) {
		t.Errorf("got  %s %s\nwant %s", a.body, a.header.Get("ETag"), want)
	}
	head := g.do("HEAD", "/locks/a/b", "").want(t, 200)
	if head.body != "" || head.header.Get("ETag") != a.header.Get("ETag") || head.header.Get("Content-Length") != strconv.Itoa(len(a.body)+1) {
		t.Errorf("HEAD: %q %v", head.body, head.header)
	}
	g.clock.advance(30 * time.Second)
	if a := g.do("GET", "/locks/a/b", "").want(t, 200); a.json["held"] != false || a.number("fencing_token") != token {
		t.Errorf("expired: %s", a.body)
	}
}

// TestAdvice: what can be told of the last leases is told with the lock, held or free.
func TestAdvice(t *testing.T) {
	t.Parallel()
	g := start(t)
	for range 4 {
		id := g.acquired("a/b")
		g.clock.advance(20 * time.Second)
		g.do("PUT", "/locks/a/b", "", "Lease-Id: "+id).want(t, 200)
		g.clock.advance(21 * time.Second)
		g.release("a/b", id)
	}
	want := `"advice":[{"code":"held_beyond_ttl","text":"4 of the last 4 leases with a TTL of 30s were held for longer than that, up to 41s: they depend on renewals in time","count":4,"of":4,"ttl_ms":30000,"held_ms":41000}]}`
	if a := g.do("GET", "/locks/a/b", "").want(t, 200); !strings.HasSuffix(a.body, want) {
		t.Errorf("got  %s\nwant %s", a.body, want)
	}
	id := g.acquired("a/b")
	for range 60 {
		g.clock.advance(20 * time.Second)
		g.do("PUT", "/locks/a/b", "", "Lease-Id: "+id).want(t, 200)
	}
	g.clock.advance(25 * time.Second)
	var got []string
	for _, a := range g.do("GET", "/locks/a/b", "").want(t, 200).json["advice"].([]any) {
		a := a.(map[string]any)
		got = append(got, fmt.Sprint(a["code"], " ", a["lease"] == public(id)))
	}
	if strings.Join(got, ", ") != "renewal_late true, held_long true, held_beyond_ttl false" {
		t.Errorf("got %v", got)
	}
	if list := g.do("GET", "/locks", "").want(t, 200); strings.Contains(list.body, "advice") {
		t.Errorf("%s", list.body)
	}
}

// TestBreakReason: who breaks a lease says why, and its holder, the history and the audit have it.
func TestBreakReason(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := g.acquired("a/b")
	tag := g.do("GET", "/locks/a/b", "").header.Get("ETag")
	g.do("DELETE", "/locks/a/b", `{"reason":"stuck, \"ann\" said <so>"}`, "If-Match: "+tag).want(t, 204)
	g.do("DELETE", "/locks/a/b", `{"reason":"other"}`, "If-Match: "+tag).want(t, 204)
	const why = `stuck, "ann" said <so>`
	for _, method := range []string{"PUT", "DELETE", "POST"} {
		if a := g.do(method, "/locks/a/b", "", "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost); a.text("reason") != "broken" || a.text("break_reason") != why {
			t.Errorf("%s: %s", method, a.body)
		}
	}
	if past := g.do("GET", "/history/a/b", "").want(t, 200).json["grants"].([]any)[0].(map[string]any); past["outcome"] != "broken" || past["break_reason"] != why {
		t.Errorf("%v", past)
	}
	if log := g.log.String(); strings.Count(log, `"break_reason":"stuck, \"ann\" said <so>"`) != 1 || strings.Count(log, `"event":"break"`) != 2 {
		t.Errorf("%s", log)
	}
	id = g.acquired("a/b")
	g.do("DELETE", "/locks/a/b", "", "If-Match: "+g.do("GET", "/locks/a/b", "").header.Get("ETag")).want(t, 204)
	if a := g.do("PUT", "/locks/a/b", "", "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost); strings.Contains(a.body, "break_reason") {
		t.Errorf("%s", a.body)
	}
}

// TestReleaseAfter: a release with after_ms is one when that time is over, seen as such meanwhile: no lock delay follows, nobody
// is told of an expiry, and nothing is advised. Its lease id is the one of a released lease at once.
func TestReleaseAfter(t *testing.T) {
	t.Parallel()
	g := start(t)
	for _, several := range []bool{false, true} {
		for range 6 {
			names, path, body := []string{"a"}, "/locks/a?after_ms=40000", `{"ttl_ms":60000,"lock_delay_ms":60000}`
			post := "/locks/a"
			if several {
				names, path, post, body = []string{"a", "b"}, "/locks?name=a&name=b&after_ms=40000", "/locks", `{"names":["a","b"],"ttl_ms":60000,"lock_delay_ms":60000}`
			}
			id := newID()
			g.do("POST", post, body, "Lease-Id: "+id).want(t, 201)
			for range 2 { // the second is a retry
				g.do("DELETE", path, "", "Lease-Id: "+id).want(t, 204)
			}
			if e := g.do("POST", post, body, "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost); e.text("reason") != "released" {
				t.Error(e.body)
			}
			for _, name := range names {
				if e := g.do("PUT", "/locks/"+name, "", "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost); e.text("reason") != "released" {
					t.Error(e.body)
				}
				g.do("POST", "/locks/"+name, "").problem(t, 423, fencing.CodeLocked)
				if body := g.do("GET", "/locks/"+name, "").want(t, 200).body; !strings.Contains(body, `"attached":false,"left":true,"expires_in_ms":40000`) || !strings.Contains(body, `"hold":1`) || !strings.Contains(body, `"advice":[]`) {
					t.Error(body)
				}
			}
			g.clock.advance(40 * time.Second)
			for _, name := range names {
				if body := g.do("GET", "/locks/"+name, "").want(t, 200).body; !strings.Contains(body, `"held":false`) || strings.Contains(body, "delayed_ms") || !strings.Contains(body, `"advice":[]`) {
					t.Error(body)
				}
				if past := g.do("GET", "/history/"+name, "").want(t, 200).json["grants"].([]any)[0].(map[string]any); past["outcome"] != "released" || past["held_ms"] != 40000.0 {
					t.Error(past)
				}
			}
			g.do("DELETE", path, "", "Lease-Id: "+id).want(t, 204)
			for _, name := range names {
				g.do("DELETE", "/locks/"+name, "", "Lease-Id: "+g.acquired(name)).want(t, 204)
			}
		}
	}
	id := g.acquired("c")
	for _, after := range []string{"?after_ms=1000", "?after_ms=5000"} { // it may be sooner, not later
		g.do("DELETE", "/locks/c"+after, "", "Lease-Id: "+id).want(t, 204)
		if body := g.do("GET", "/locks/c", "").want(t, 200).body; !strings.Contains(body, `"left":true,"expires_in_ms":1000`) {
			t.Error(body)
		}
	}
	g.do("DELETE", "/locks/c", "", "Lease-Id: "+id).want(t, 204)
	if body := g.do("GET", "/locks/c", "").want(t, 200).body; !strings.Contains(body, `"held":false`) {
		t.Error(body)
	}
}

// TestBreakWithNotice: the answer says what will happen, everybody sees it, the holder is told
// by the next answer that it gets, and at the end it is broken.
func TestBreakWithNotice(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	a := g.do("POST", "/locks/a", `{"ttl_ms":10000}`, "Lease-Id: "+id).want(t, 201)
	if strings.Contains(a.body, "breaks") {
		t.Errorf("%s", a.body)
	}
	tag := fmt.Sprintf(`If-Match: "%d"`, a.number("fencing_token"))
	for range 2 { // the second is a retry
		a = g.do("DELETE", "/locks/a?notice_ms=30000", `{"reason":"deploy at 4"}`, tag).want(t, 202)
		if a.text("name") != "a" || a.text("lease") != public(id) || a.number("expires_in_ms") != 10000 ||
			a.number("breaks_in_ms") != 30000 || a.text("breaks_at") != "2026-01-01T00:00:30.000Z" || a.text("break_reason") != "deploy at 4" {
			t.Errorf("%s", a.body)
		}
	}
	told := func(a *answered, left, breaks int64) {
		t.Helper()
		if a.number("expires_in_ms") != left || a.number("breaks_in_ms") != breaks || a.text("breaks_at") != "2026-01-01T00:00:30.000Z" || a.text("break_reason") != "deploy at 4" {
			t.Errorf("%s", a.body)
		}
	}
	for _, path := range []string{"/locks/a", "/locks?prefix=a"} {
		if body := g.do("GET", path, "").want(t, 200).body; !strings.Contains(body, `"breaks_in_ms":30000,"breaks_at":"2026-01-01T00:00:30.000Z","break_reason":"deploy at 4"`) {
			t.Errorf("%s: %s", path, body)
		}
	}
	told(g.do("POST", "/locks/a", "", "Lease-Id: "+id).want(t, 200), 10000, 30000)
	g.clock.advance(9 * time.Second)
	told(g.do("PUT", "/locks/a", "", "Lease-Id: "+id).want(t, 200), 10000, 21000)
	told(g.do("POST", "/locks/a", `{"hold":2,"ttl_ms":60000}`, "Lease-Id: "+id).want(t, 200), 21000, 21000)
	told(g.do("DELETE", "/locks/a", "", "Lease-Id: "+id, "Lease-Hold: 2").want(t, 200), 21000, 21000)
	if set := g.do("PUT", "/locks", `{"names":["a"],"ttl_ms":5000}`, "Lease-Id: "+id).want(t, 200).json["locks"].([]any)[0].(map[string]any); set["breaks_in_ms"] != 21000.0 {
		t.Errorf("%v", set)
	}
	g.do("PUT", "/locks/a", `{"ttl_ms":60000}`, "Lease-Id: "+id).want(t, 200)
	g.clock.advance(21 * time.Second)
	if a := g.do("PUT", "/locks/a", "", "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost); a.text("reason") != "broken" || a.text("break_reason") != "deploy at 4" {
		t.Errorf("%s", a.body)
	}
	g.do("DELETE", "/locks/a?notice_ms=30000", "", tag).want(t, 204)
	if past := g.do("GET", "/history/a", "").want(t, 200).json["grants"].([]any)[0].(map[string]any); past["outcome"] != "broken" || past["break_reason"] != "deploy at 4" {
		t.Errorf("%v", past)
	}
	if log := g.log.String(); strings.Count(log, `"notice_ms":30000,"break_reason":"deploy at 4"`) != 2 {
		t.Errorf("%s", log)
	}
}

// TestListSelects: what is asked for is asked for on the next page too, and the total is that
// of the prefix.
func TestListSelects(t *testing.T) {
	t.Parallel()
	g := start(t)
	names := func(a *answered) (names string) {
		for _, lock := range a.json["locks"].([]any) {
			names += lock.(map[string]any)["name"].(string) + " "
		}
		return names
	}
	first := g.do("POST", "/locks/a/1", `{"ttl_ms":600000,"metadata":{"build":"Nightly"}}`).want(t, 201)
	g.clock.advance(time.Minute)
	g.do("PUT", "/locks/a/1", "", "Lease-Id: "+first.text("lease_id")).want(t, 200)
	g.do("POST", "/locks/a/2", `{"ttl_ms":600000,"mode":"shared"}`).want(t, 201)
	g.do("POST", "/locks/a/3", `{"ttl_ms":30000}`).want(t, 201)
	g.do("POST", "/locks/b/1", `{"ttl_ms":600000}`).want(t, 201)
	later := g.later("POST", "/locks/b/1", `{"owner":"cleo","wait_ms":60000}`)
	g.waiting("b/1", 1)
	for query, want := range map[string]string{
		"q=night": "a/1 ", "q=BUILD": "a/1 ", "q=cleo": "b/1 ", "mode=shared": "a/2 ", "held_for_ms=60000": "a/1 ", "held_for_ms=60001": "",
		"expires_within_ms=30000": "a/3 ", "expires_within_ms=29999": "", "waiting=true": "b/1 ", "waiting=true&prefix=a/": "",
		"unrenewed=true": "a/2 a/3 b/1 ", "attached=true": "",
	} {
		a := g.do("GET", "/locks?"+query, "").want(t, 200)
		if got := names(a); got != want || a.json["total"] != nil || strings.Contains(a.body, "waiters") || strings.Contains(a.body, `"attached":true`) {
			t.Errorf("%s: %s", query, a.body)
		}
		if total := g.do("GET", "/locks?total=true&"+query, "").want(t, 200).number("total"); total != map[bool]int64{true: 3, false: 4}[strings.Contains(query, "prefix")] {
			t.Errorf("%s: the total is %d", query, total)
		}
	}
	a := g.do("GET", "/locks?total=true&mode=exclusive&expires_within_ms=600000&held_for_ms=1&waiting=true&limit=1", "").want(t, 200)
	if a.number("total") != 4 {
		t.Errorf("%s", a.body)
	}
	a = g.do("GET", "/locks?mode=exclusive&expires_within_ms=600000&unrenewed=true&limit=1", "").want(t, 200)
	path, _, _ := strings.Cut(strings.TrimPrefix(a.header.Get("Link"), "<"), ">")
	if next := g.do("GET", path, "").want(t, 200); names(a) != "a/3 " || names(next) != "b/1 " {
		t.Errorf("%s, and %s at %s", a.body, next.body, path)
	}
	// How long the first of a queue has waited is told of what is waited for.
	g.clock.advance(1500 * time.Millisecond)
	second := g.later("POST", "/locks/b/1", `{"owner":"dora","wait_ms":60000}`)
	g.waiting("b/1", 2)
	if lock := g.do("GET", "/locks?waiting=true", "").want(t, 200).json["locks"].([]any)[0].(map[string]any); lock["waiting"] != 2.0 || lock["waiting_ms"] != 1500.0 {
		t.Errorf("%v", lock)
	}
	if a := g.do("GET", "/locks", "").want(t, 200); strings.Contains(a.body, "waiting_ms") {
		t.Errorf("%s", a.body)
	}
	g.do("DELETE", "/locks/b/1", "", "If-Match: "+g.do("GET", "/locks/b/1", "").header.Get("ETag")).want(t, 204)
	held := later().want(t, 201)
	g.do("DELETE", "/locks/b/1", "", "Lease-Id: "+held.text("lease_id")).want(t, 204)
	second().want(t, 201)
}

func TestList(t *testing.T) {
	t.Parallel()
	g := start(t)
	if a := g.do("GET", "/locks", "").want(t, 200); a.body != `{"locks":[]}` || a.header.Get("Link") != "" {
		t.Errorf("empty: %s %v", a.body, a.header)
	}
	var want []string
	for i := range 7 {
		name := fmt.Sprintf("orders/%d", i)
		g.do("POST", "/locks/"+name, fmt.Sprintf(`{"owner":"Worker %d"}`, i%2)).want(t, 201)
		want = append(want, name)
	}
	g.acquired("other")

	var got []string
	path := "/locks?prefix=orders/&limit=3&q=worker"
	for pages := 0; path != ""; pages++ {
		if pages == 3 {
			t.Fatal("the pages have no end")
		}
		a := g.do("GET", path, "").want(t, 200)
		for _, lock := range a.json["locks"].([]any) {
			got = append(got, lock.(map[string]any)["name"].(string))
			if lock.(map[string]any)["waiters"] != nil {
				t.Error("a list has no waiters")
			}
		}
		link := a.header.Get("Link")
		if path, _, _ = strings.Cut(strings.TrimPrefix(link, "<"), ">; rel=\"next\""); (path == "") != (a.text("next_cursor") == "") {
			t.Errorf("Link %q beside %q", link, a.text("next_cursor"))
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %v, want %v", got, want)
	}
	if a := g.do("GET", "/locks?q=WORKER+1&prefix=", "").want(t, 200); len(a.json["locks"].([]any)) != 3 {
		t.Errorf("q: %s", a.body)
	}
	if a := g.do("HEAD", "/locks?limit=1000", "").want(t, 200); a.body != "" {
		t.Errorf("HEAD: %q", a.body)
	}
}
