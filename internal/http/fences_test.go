package http

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

func (g *gateway) admit(name string, token int64) *answered {
	g.t.Helper()
	return g.do("POST", "/fences/"+name, fmt.Sprintf(`{"fencing_token":%d}`, token))
}

// twoGrants returns the tokens of a lease that was released, and of a live one.
func (g *gateway) twoGrants(name string) (first, second int64) {
	g.t.Helper()
	id := newID()
	first = g.do("POST", "/locks/"+name, "", "Lease-Id: "+id).want(g.t, 201).number("fencing_token")
	g.do("DELETE", "/locks/"+name, "", "Lease-Id: "+id).want(g.t, 204)
	return first, g.do("POST", "/locks/"+name, "").want(g.t, 201).number("fencing_token")
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	g := start(t)
	first, second := g.twoGrants("a/b")
	if a := g.admit("a/b", first).want(t, 200); a.body != fmt.Sprintf(`{"name":"a/b","admitted":true,"highest_admitted":%d}`, first) {
		t.Errorf("%s", a.body)
	}
	g.admit("a/b", first).want(t, 200)
	g.admit("a%2Fb", second).want(t, 200)
	g.admit("a/b", second).want(t, 200)
	a := g.admit("a/b", first).problem(t, 412, fencing.CodeStaleToken)
	if a.number("highest_admitted") != second || a.number("highest_issued") != second {
		t.Errorf("%s", a.body)
	}
	a = g.admit("a/b", second+1).problem(t, 412, fencing.CodeStaleToken)
	if !strings.Contains(a.text("detail"), "above the highest token that was issued") {
		t.Errorf("%s", a.body)
	}
	g.admit("b", second).problem(t, 412, fencing.CodeStaleToken)
	fence := g.do("GET", "/locks/a/b", "").want(t, 200).json["fence"].(map[string]any)
	if fence["highest_admitted"] != float64(second) || fence["highest_issued"] != float64(second) {
		t.Errorf("%v", fence)
	}
}

func TestAdmitSlots(t *testing.T) {
	t.Parallel()
	g := start(t)
	var tokens []int64
	for range 2 {
		tokens = append(tokens, g.do("POST", "/locks/p", `{"mode":"shared","limit":2}`).want(t, 201).number("fencing_token"))
	}
	slot := func(slot int, token int64) *answered {
		return g.do("POST", "/fences/p", fmt.Sprintf(`{"fencing_token":%d,"slot":%d}`, token, slot))
	}
	slot(1, tokens[1]).want(t, 200)
	slot(0, tokens[0]).want(t, 200)
	slot(1, tokens[0]).problem(t, 412, fencing.CodeStaleToken)
	g.admit("p", tokens[0]).problem(t, 412, fencing.CodeStaleToken)
	if a := slot(9999, tokens[1]).problem(t, 400, fencing.CodeInvalidRequest); a.json["field"] != "slot" {
		t.Errorf("%v, want the field slot", a.json)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	g := start(t)
	first, second := g.twoGrants("a")
	judge := func(token int64) *answered {
		return g.do("GET", fmt.Sprintf("/fences/a?token=%d", token), "").want(t, 200)
	}
	if a := judge(first); a.body != fmt.Sprintf(`{"name":"a","fencing_token":%d,"verdict":"superseded","highest_issued":%d,"highest_admitted":0}`, first, second) {
		t.Errorf("%s", a.body)
	}
	g.do("HEAD", "/fences/a?token=1", "").want(t, 200)
	for token, verdict := range map[int64]string{second: "live", second + 1: "unissued"} {
		if got := judge(token).text("verdict"); got != verdict {
			t.Errorf("%d is %s, want %s", token, got, verdict)
		}
	}
	g.do("DELETE", "/locks/a", "", fmt.Sprintf(`If-Match: "%d"`, second)).want(t, 204)
	if got := judge(second).text("verdict"); got != "ended" {
		t.Errorf("a token whose lease was broken is %s", got)
	}
}

func TestBadFences(t *testing.T) {
	t.Parallel()
	g := start(t)
	for _, c := range []struct{ method, path, body, field, says string }{
		{"POST", "/fences/a", "", "fencing_token", "is missing; it must be an integer from 1 to 9007199254740991"},
		{"POST", "/fences/a", `{"fencing_token":0}`, "fencing_token", "from 1 to 9007199254740991"},
		{"POST", "/fences/a", `{"fencing_token":9007199254740992}`, "fencing_token", "from 1 to 9007199254740991"},
		{"POST", "/fences/a", `{"fencing_token":"1"}`, "fencing_token", "not a string"},
		{"POST", "/fences/a", `{"fencing_token":1,"slot":-1}`, "slot", "from 0 to 9999"},
		{"POST", "/fences/a", `{"fencing_token":1,"slot":10000}`, "slot", "from 0 to 9999"},
		{"POST", "/fences/a", `{"fencing_token":1,"token":1}`, "token", "known fields: fencing_token and slot"},
		{"POST", "/fences/a//b", `{"fencing_token":1}`, "name", "empty segment"},
		{"POST", "/fences/a?slot=1", `{"fencing_token":1}`, "query", "takes no query parameters"},
		{"GET", "/fences/a", "", "token", "is missing"},
		{"GET", "/fences/a?token=", "", "token", "from 1 to 9007199254740991"},
		{"GET", "/fences/a?token=01", "", "token", "from 1"},
		{"GET", "/fences/a?token=1&token=2", "", "token", "once is allowed"},
		{"GET", "/fences/a?t=1", "", "query", "known parameters: token"},
	} {
		a := g.do(c.method, c.path, c.body).problem(t, 400, fencing.CodeInvalidRequest)
		if a.text("field") != c.field || !strings.Contains(a.text("detail"), c.says) {
			t.Errorf("%s %s %s: %s", c.method, c.path, c.body, a.body)
		}
	}
	g.do("GET", "/fences/a?token=1", "", "Lease-Id: x").problem(t, 400, fencing.CodeInvalidRequest)
	g.do("POST", "/fences/a", `{"fencing_token":1}`, "Lease-Id: x").problem(t, 400, fencing.CodeInvalidRequest)
	g.do("POST", "/fences/a", strings.Repeat(" ", 20_000)).problem(t, 413, fencing.CodeTooLarge)
}

// What a proxy asks: whatever is wrong with the writer is 403, whatever its method, its
// query and its body.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	g := start(t)
	for i, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		name := fmt.Sprint("files/", i)
		first, second := g.twoGrants(name)
		ask := func(headers ...string) *answered {
			t.Helper()
			return g.do(method, "/authorize/"+name+"?uploads=1", "", headers...)
		}
		token := func(n int64) string { return "Fencing-Token: " + strconv.FormatInt(n, 10) }
		ask(token(first)).want(t, 200)
		ask(token(second)).want(t, 200)
		if a := ask(token(second)).want(t, 200); a.body != fmt.Sprintf(`{"name":%q,"admitted":true,"highest_admitted":%d}`, name, second) {
			t.Errorf("%s", a.body)
		}
		if a := ask(token(first)).problem(t, 403, fencing.CodeForbidden); a.number("highest_admitted") != second {
			t.Errorf("%s", a.body)
		}
		ask(token(second+1)).problem(t, 403, fencing.CodeForbidden)
		for what, headers := range map[string][]string{
			"is missing": nil, "given 2 times": {token(second), token(first)}, "must be a fencing token": {"Fencing-Token: 1.5"},
		} {
			if a := ask(headers...).problem(t, 403, fencing.CodeForbidden); !strings.Contains(a.text("detail"), what) {
				t.Errorf("%s: %s", what, a.body)
			}
		}
		g.do(method, "/authorize/a//b", "", token(second)).problem(t, 403, fencing.CodeForbidden)
	}
}
