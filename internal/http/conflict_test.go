package http

import (
	"testing"

	"fencepost/internal/fencing"
)

// conflicts posts bodies that contradict what a lease id has, and checks that each is
// refused with the field named.
func (g *gateway) conflicts(path string, bodies map[string]string, headers ...string) {
	g.t.Helper()
	for body, field := range bodies {
		if a := g.do("POST", path, body, headers...).problem(g.t, 409, fencing.CodeConflict); a.text("field") != field {
			g.t.Errorf("%s: the field is %q, want %q", body, a.text("field"), field)
		}
	}
}

// TestConflict: a POST that names something unlike what its lease id holds is refused,
// and changes nothing; what it does not name contradicts nothing.
func TestConflict(t *testing.T) {
	t.Parallel()
	g := start(t)
	own := "Lease-Id: " + newID()
	token := g.do("POST", "/locks/a", `{"owner":"w1","metadata":{"n":"1"}}`, own).want(t, 201).number("fencing_token")
	contradictions := map[string]string{
		`{"mode":"shared"}`:                         "mode",
		`{"mode":"shared","limit":2}`:               "mode",
		`{"mode":"shared","hold":2}`:                "mode",
		`{"owner":"w2"}`:                            "owner",
		`{"owner":"w2","mode":"exclusive"}`:         "owner",
		`{"owner":"w2","hold":2,"wait_ms":60000}`:   "owner",
		`{"owner":"W1","metadata":{"n":"1"}}`:       "owner",
		`{"mode":"shared","owner":"w1","limit":10}`: "mode",
	}
	g.conflicts("/locks/a", contradictions, own)
	g.conflicts("/locks/a", contradictions, own, attach)
	for _, body := range []string{"", `{"owner":""}`, `{"owner":"w1"}`, `{"mode":"exclusive"}`, `{"metadata":{"n":"2"},"ttl_ms":1000,"max_hold_ms":1000}`} {
		a := g.do("POST", "/locks/a", body, own).want(t, 200)
		if a.number("fencing_token") != token || a.number("hold") != 1 || a.json["metadata"].(map[string]any)["n"] != "1" || a.number("ttl_ms") != 30000 {
			t.Errorf("%s: %s", body, a.body)
		}
	}

	permit := "Lease-Id: " + newID()
	g.do("POST", "/locks/b", `{"mode":"shared","limit":3}`, permit).want(t, 201)
	g.conflicts("/locks/b", map[string]string{
		`{"mode":"exclusive"}`: "mode", `{"mode":"exclusive","hold":2}`: "mode", `{"mode":"shared","limit":2}`: "limit", `{"owner":"w1"}`: "owner",
	}, permit)
	if a := g.do("POST", "/locks/b", `{"mode":"shared","hold":2}`, permit).want(t, 200); a.number("hold") != 2 || a.json["limit"] != 3.0 {
		t.Errorf("%s", a.body)
	}
	g.do("POST", "/locks/b", `{"mode":""}`, permit).problem(t, 400, fencing.CodeInvalidRequest)
	g.wantNotTakenBack()
}

// TestConflictWhileWaiting: the same for what a lease id waits for; the request that
// waits goes on waiting. A stream is refused before it is one.
func TestConflictWhileWaiting(t *testing.T) {
	t.Parallel()
	g := start(t)
	held := g.acquired("a")
	own := "Lease-Id: " + newID()
	waits := g.later("POST", "/locks/a", `{"owner":"w1","wait_ms":60000}`, own)
	g.waiting("a", 1)
	contradictions := map[string]string{`{"mode":"shared","wait_ms":60000}`: "mode", `{"owner":"w2"}`: "owner"}
	g.conflicts("/locks/a", contradictions, own)
	g.conflicts("/locks/a", contradictions, own, attach)
	g.release("a", held)
	if a := waits().want(t, 201); a.text("owner") != "w1" || a.text("mode") != "exclusive" {
		t.Errorf("%s", a.body)
	}
}

// TestConflictOfASet: the same for several names, complete or not.
func TestConflictOfASet(t *testing.T) {
	t.Parallel()
	g := start(t)
	held := g.acquired("b")
	own := "Lease-Id: " + newID()
	waits := g.later("POST", "/locks", `{"names":["a","b"],"owner":"w1","wait_ms":60000}`, own)
	g.waiting("b", 1)
	contradictions := map[string]string{
		`{"names":["a","b"],"mode":"shared"}`: "mode", `{"names":["a","b"],"owner":"w2","wait_ms":60000}`: "owner",
	}
	g.conflicts("/locks", contradictions, own)
	g.release("b", held)
	if a := waits().want(t, 201); a.members() != "a b" {
		t.Errorf("%s", a.body)
	}
	g.conflicts("/locks", contradictions, own)
	if a := g.do("POST", "/locks", `{"names":["a","b"]}`, own).want(t, 200); a.members() != "a b" {
		t.Errorf("%s", a.body)
	}
	g.wantNotTakenBack()
}
