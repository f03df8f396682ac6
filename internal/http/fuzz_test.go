package http

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// serve runs a request through the whole handler and fails on a panic or 5xx.
func (g *gateway) serve(t *testing.T, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	g.Handler().ServeHTTP(w, r)
	if w.Code >= 500 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if w.Code >= 400 && !strings.Contains(w.Body.String(), `"type":"urn:fencepost:problem:`) {
		t.Fatalf("%d without a problem: %s", w.Code, w.Body)
	}
	return w
}

func quiet(o *Options) { o.Logger = nil }

// forget lets an hour pass, so that a million executions don't pile up locks.
func (g *gateway) forget(t *testing.T) {
	g.clock.advance(time.Hour)
	if _, err := g.store.Expire(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
}

var nameSeeds = []string{"a", "orders/42", "a:b", "..", "a//b", "\x00", "é", strings.Repeat("n", 256), "%2e", "a b", "locks", "a?b", "a#b"}

// FuzzName: a name is taken as it is or refused; the same name is the same lock
// however it is escaped.
func FuzzName(f *testing.F) {
	for _, seed := range nameSeeds {
		f.Add(seed)
	}
	f.Fuzz(tryName(newServer(f, quiet)))
}

func tryName(g *gateway) func(*testing.T, string) {
	return func(t *testing.T, name string) {
		g.forget(t)
		request := func(method, escaped string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(method, "http://localhost/", nil)
			path, err := url.PathUnescape(escaped)
			if err != nil {
				t.Fatal(err)
			}
			r.URL = &url.URL{Path: "/locks/" + path, RawPath: "/locks/" + escaped}
			return g.serve(t, r)
		}
		_, err := fencing.ParseName(name)
		escaped := url.PathEscape(name)
		w := request("POST", escaped)
		if (err == nil) != (w.Code == 201) {
			t.Fatalf("%q: %d %s, ParseName says %v", name, w.Code, w.Body, err)
		}
		if err != nil {
			return
		}
		token := w.Header().Get("Fencing-Token")
		for _, spelling := range []string{name, escaped, strings.ReplaceAll(name, "/", "%2F"), strings.ReplaceAll(name, "a", "%61")} {
			w = request("GET", spelling)
			if w.Header().Get("Etag") != `"`+token+`"` {
				t.Fatalf("%q is another lock than %q", spelling, name)
			}
		}
		r := httptest.NewRequest("DELETE", "http://localhost/", nil)
		r.URL = &url.URL{Path: "/locks/" + name}
		r.Header.Set("If-Match", w.Header().Get("Etag"))
		if w = g.serve(t, r); w.Code != 204 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}

// fuzzedID is a lease id that is well-formed.
const fuzzedID = "01JZ0000000000000000000000.EXAMPLE-EXAMPLE-EXAMPLE"

var leaseIDSeeds = []string{
	"", fuzzedID, fuzzedID[:26], fuzzedID + ",", strings.ToLower(fuzzedID), fuzzedID + "\n", "8" + fuzzedID[1:], fuzzedID + strings.Repeat("x", 40), ".",
}

// FuzzLeaseID: a lease id is taken as it is or refused, by every method alike.
func FuzzLeaseID(f *testing.F) {
	for _, seed := range leaseIDSeeds {
		f.Add(seed)
	}
	f.Fuzz(tryLeaseID(newServer(f, quiet)))
}

func tryLeaseID(g *gateway) func(*testing.T, string) {
	return func(t *testing.T, leaseID string) {
		g.forget(t)
		_, err := fencing.ParseLeaseID(leaseID)
		for _, method := range []string{"POST", "PUT", "GET", "DELETE"} {
			r := httptest.NewRequest(method, "http://localhost/locks/a", nil)
			r.Header["Lease-Id"] = []string{leaseID}
			w := g.serve(t, r)
			if (err != nil) != (w.Code == 400) {
				t.Fatalf("%s %q: %d %s, ParseLeaseID says %v", method, leaseID, w.Code, w.Body, err)
			}
		}
	}
}

var namesSeeds = [][2]string{{"a", "b"}, {"a", "a"}, {"", "a"}, {"a/..", "b"}, {"\xff", "a"}, {"a\"", "b"}, {"a&name=c", "b"}}

// FuzzNames: a set is taken as it is or refused, whether its names stand in a body
// or in a query.
func FuzzNames(f *testing.F) {
	for _, seed := range namesSeeds {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(tryNames(newServer(f, quiet)))
}

func tryNames(g *gateway) func(*testing.T, string, string) {
	return func(t *testing.T, one, two string) {
		if len(one)+len(two) > 1<<10 {
			return // another refusal: the body is too large
		}
		g.forget(t)
		_, errOne := fencing.ParseName(one)
		_, errTwo := fencing.ParseName(two)
		good := errOne == nil && errTwo == nil && one != two
		body, err := json.Marshal(map[string]any{"names": []string{one, two}})
		if err != nil {
			t.Fatal(err)
		}
		id := fencing.NewLeaseID(time.Now()).Reveal()
		post := httptest.NewRequest("POST", "http://localhost/locks", strings.NewReader(string(body)))
		put := httptest.NewRequest("PUT", "http://localhost/locks", strings.NewReader(string(body)))
		del := httptest.NewRequest("DELETE", "http://localhost/locks?"+url.Values{"name": {one, two}}.Encode(), nil)
		for _, c := range []struct {
			r      *http.Request
			status int
		}{{post, 201}, {put, 200}, {del, 204}} {
			c.r.Header.Set("Lease-Id", id)
			want := c.status
			if !good {
				want = 400
			}
			if w := g.serve(t, c.r); w.Code != want {
				t.Fatalf("%s %q %q: %d %s, want %d", c.r.Method, one, two, w.Code, w.Body, want)
			}
		}
	}
}

var bodySeeds = []string{
	"", "{}", `{"ttl_ms":1000,"owner":"o","metadata":{"k":"v"}}`, `{"ttl_ms":1e9}`, `{"max_hold_ms":99999999999999999999}`,
	`{"mode":"shared","limit":3}`, `{"metadata":{"a":{}}}`, `{"owner":"\ud800"}`, "\xff", `[`, `{"a":`, `{"ttl_ms":-0}`,
}

// FuzzBody: a body that is taken gives a lease within the bounds.
func FuzzBody(f *testing.F) {
	for _, seed := range bodySeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(tryBody(newServer(f, quiet)))
}

func tryBody(g *gateway) func(*testing.T, []byte) {
	return func(t *testing.T, body []byte) {
		g.forget(t)
		w := g.serve(t, httptest.NewRequest("POST", "http://localhost/locks/a", strings.NewReader(string(body))))
		if w.Code == 201 {
			r := httptest.NewRequest("GET", "http://localhost/locks/a", nil)
			etag := g.serve(t, r).Header().Get("Etag")
			r = httptest.NewRequest("DELETE", "http://localhost/locks/a", nil)
			r.Header.Set("If-Match", etag)
			if w := g.serve(t, r); w.Code != 204 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		} else if w.Code != 400 && w.Code != 413 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for _, method := range []string{"PUT", "DELETE"} {
			r := httptest.NewRequest(method, "http://localhost/locks/a", strings.NewReader(string(body)))
			r.Header.Set("Lease-Id", fuzzedID)
			if w := g.serve(t, r); w.Code != 400 && w.Code != 412 && w.Code != 413 {
				t.Fatalf("%s: %d %s", method, w.Code, w.Body)
			}
		}
	}
}
