package http

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"fencepost/api"
	"fencepost/internal/fencing"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	g := start(t)
	if a := g.do("GET", "/livez", "").want(t, 200); a.body != `{"status":"alive"}` {
		t.Errorf("%s", a.body)
	}
	if a := g.do("GET", "/readyz", "").want(t, 200); a.body != `{"status":"ready"}` {
		t.Errorf("%s", a.body)
	}
	want := `{"status":"ready","store":"model","version":"test","checks":[{"name":"store","ok":true,"took_ms":0},{"name":"accepting","ok":true},{"name":"quarantine","ok":true,"remaining_ms":0}]}`
	for _, path := range []string{"/readyz?verbose", "/readyz?verbose=1"} {
		if a := g.do("GET", path, "").want(t, 200); a.body != want {
			t.Errorf("%s", a.body)
		}
	}
	g.do("HEAD", "/readyz", "").want(t, 200)
	g.Drain()
	a := g.do("GET", "/readyz?verbose", "").problem(t, 503, fencing.CodeDraining)
	if !strings.Contains(a.body, `"checks":[{"name":"store","ok":true,"took_ms":0},{"name":"accepting","ok":false},`) {
		t.Errorf("%s", a.body)
	}
	g.store.Model.Close()
	g.do("GET", "/livez", "").want(t, 200)
	if a := g.do("GET", "/readyz?verbose", "").want(t, 503); !strings.Contains(a.body, `"name":"store","ok":false,"took_ms":0,"detail":"the store can't be reached`) {
		t.Errorf("%s", a.body)
	}
}

// A process that hangs for good is to be started again, also where it has no room for another connection.
func TestLivezOfWhatHangs(t *testing.T) {
	t.Parallel()
	hangs := errors.New("the lock of the store hangs")
	g := start(t, func(o *Options) { o.Alive = func() error { return hangs } })
	if a := g.do("GET", "/livez", "").problem(t, 503, fencing.CodeUnavailable); !strings.Contains(a.body, hangs.Error()) {
		t.Errorf("%s", a.body)
	}
	addr, _ := limited(t, ConnectionOptions{Most: 1, Alive: func() error { return hangs }})
	if status, _, _ := ask(t, dialTo(t, addr), "POST", "/a", "x"); status != 200 {
		t.Fatalf("status %d", status)
	}
	if status, _, body := ask(t, dialTo(t, addr), "GET", "/livez", ""); status != 503 || !strings.Contains(body, hangs.Error()) {
		t.Errorf("%d %s", status, body)
	}
}

// Where others have their health checks, the answer names ours.
func TestOtherHealthPaths(t *testing.T) {
	t.Parallel()
	g := start(t)
	for _, path := range []string{"/healthz", "/health", "/ready", "/live", "/ready/"} {
		if a := g.do("GET", path, "").problem(t, 404, fencing.CodeNotFound); !strings.Contains(a.body, "/livez") || !strings.Contains(a.body, "/readyz") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
}

// The cause of an outage is told to who asks for details, and to nobody else.
func TestReadyzTellsTheOutage(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.store.set(func(s *scriptedStore) {
		s.before = func(verb string) error {
			return fencing.Unavailable(&fencing.Outage{Detail: "it is not running", Err: errors.New("connection refused")})
		}
	})
	if a := g.do("GET", "/readyz?verbose", "").problem(t, 503, fencing.CodeUnavailable); !strings.Contains(a.body, "the store can't be reached: it is not running") {
		t.Errorf("%s", a.body)
	}
	if a := g.do("GET", "/readyz", "").problem(t, 503, fencing.CodeUnavailable); strings.Contains(a.body, "running") {
		t.Errorf("%s", a.body)
	}
}

// TestProbesShareARoundTrip: anybody may probe, so it costs the store no more than a few
// round trips a second. Who asks for details has one of its own.
func TestProbesShareARoundTrip(t *testing.T) {
	t.Parallel()
	g := start(t)
	var asked atomic.Int32
	g.store.set(func(s *scriptedStore) {
		s.before = func(verb string) error {
			if verb == "check" {
				asked.Add(1)
			}
			return nil
		}
	})
	for range 50 {
		g.do("GET", "/readyz", "").want(t, 200)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("50 probes asked the store %d times", n)
	}
	g.do("GET", "/readyz?verbose", "").want(t, 200)
	g.clock.advance(probeInterval)
	g.store.set(func(s *scriptedStore) { s.before = func(string) error { return fencing.Unavailable(nil) } })
	g.do("GET", "/readyz", "").want(t, 503)
	g.do("GET", "/readyz?verbose", "").want(t, 503)
	if n := asked.Load(); n != 2 {
		t.Errorf("it was asked %d times in all", n)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	g.do("POST", "/locks/a", "", "Lease-Id: "+id).want(t, 201)
	g.do("POST", "/locks/a", "", "Lease-Id: "+id).want(t, 200)
	g.do("POST", "/locks/a", "").want(t, 423)
	g.do("POST", "/locks/a", "", "Lease-Id: x").want(t, 400)
	g.do("HEAD", "/locks/a", "").want(t, 200)
	g.do("PROPFIND", "/locks/a", "").want(t, 405)
	g.do("FROB", "/"+strings.Repeat("x", 100), "").want(t, 404)
	g.store.set(func(s *scriptedStore) {
		s.acquire = func(context.Context, fencing.AcquireRequest) (fencing.Outcome, error) {
			return fencing.Outcome{}, fencing.Unavailable(nil)
		}
	})
	g.do("POST", "/locks/b", "").want(t, 503)
	body := g.do("GET", "/metrics", "").want(t, 200).body
	for _, line := range []string{
		`fencepost_http_requests_total{code="ok",method="POST",route="/locks/{name}"} 2`,
		`fencepost_http_requests_total{code="locked",method="POST",route="/locks/{name}"} 1`,
		`fencepost_http_requests_total{code="invalid_request",method="POST",route="/locks/{name}"} 1`,
		`fencepost_http_requests_total{code="ok",method="HEAD",route="/locks/{name}"} 1`,
		`fencepost_http_requests_total{code="method_not_allowed",method="other",route="none"} 1`,
		`fencepost_http_requests_total{code="not_found",method="other",route="none"} 1`,
		`fencepost_http_request_duration_seconds_count{method="POST",route="/locks/{name}"} 5`,
		`fencepost_acquire_outcomes_total{outcome="granted"} 1`,
		`fencepost_acquire_outcomes_total{outcome="retried"} 1`,
		`fencepost_acquire_outcomes_total{outcome="locked"} 1`,
		`fencepost_acquire_outcomes_total{outcome="unavailable"} 1`,
		`fencepost_grants_taken_back_total 1`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no %s in\n%s", line, body)
		}
	}
	if strings.Contains(body, "xxxx") || strings.Contains(body, "FROB") {
		t.Error("a client chose a label")
	}
	elsewhere := start(t, func(o *Options) { o.Gatherer = nil })
	elsewhere.do("GET", "/metrics", "").problem(t, 404, fencing.CodeNotFound)
}

func TestContractIsServed(t *testing.T) {
	t.Parallel()
	g := start(t)
	if a := g.do("GET", "/openapi.yaml", "").want(t, 200); a.body != string(api.OpenAPI) || a.header.Get("Content-Type") != "application/yaml" {
		t.Error("another document is served")
	}
	a := g.do("GET", "/openapi.yaml", "", "Accept: text/html,application/xhtml+xml,*/*;q=0.8").want(t, 200)
	if a.body != string(api.OpenAPI) || a.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("a browser saves it: %v", a.header)
	}
}

func TestPage(t *testing.T) {
	t.Parallel()
	g := start(t)
	for path, mime := range map[string]string{
		"/": "text/html; charset=utf-8", "/assets/style.css": "text/css; charset=utf-8",
		"/assets/js/main.js": "text/javascript; charset=utf-8", "/assets/icon.svg": "image/svg+xml",
	} {
		a := g.do("GET", path, "").want(t, 200)
		csp := a.header.Get("Content-Security-Policy")
		if a.header.Get("Content-Type") != mime || a.body == "" || !strings.HasPrefix(csp, "default-src 'none'; ") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %v", path, a.header)
		}
		g.do("HEAD", path, "").want(t, 200)
		for accept, want := range map[string]string{"gzip, br": "gzip", "br;q=1, GZIP;q=0.5": "gzip", "gzip;q=0": "", "identity": "", "": ""} {
			small := g.do("GET", path, "", "Accept-Encoding: "+accept).want(t, 200)
			if got := small.header.Get("Content-Encoding"); path != "/assets/icon.svg" && got != want || want == "" && small.body != a.body {
				t.Errorf("%s in %q is encoded as %q", path, accept, got)
			}
			if want == "" || path == "/assets/icon.svg" {
				continue
			}
			r, err := gzip.NewReader(strings.NewReader(small.body))
			if err != nil {
				t.Fatal(err)
			}
			if plain, err := io.ReadAll(r); err != nil || string(plain) != a.body || len(small.body) >= len(a.body) {
				t.Errorf("%s in gzip is another file of %d bytes, %v", path, len(small.body), err)
			}
		}
	}
	for _, path := range []string{"/assets/", "/assets/js", "/assets/none.js", "/assets/notes.txt", "/assets/index.html",
		"/assets/../index.html", "/assets/js/../style.css", "/assets//style.css", "/assets/%2e%2e/style.css", "/index.html"} {
		g.do("GET", path, "").problem(t, 404, fencing.CodeNotFound)
	}
	bare := start(t, func(o *Options) { o.Page = nil })
	bare.do("GET", "/", "").problem(t, 404, fencing.CodeNotFound)
	bare.do("GET", "/assets/style.css", "").problem(t, 404, fencing.CodeNotFound)
}

func TestNoRoute(t *testing.T) {
	t.Parallel()
	g := start(t)
	for _, path := range []string{"/lock", "/locksmith", "/livez/", "/metrics/x", "/%00", "/openapi.yml", "//"} {
		g.do("GET", path, "").problem(t, 404, fencing.CodeNotFound)
	}
	for _, path := range []string{"/lock", "/lock/a"} {
		if a := g.do("POST", path, "").problem(t, 404, fencing.CodeNotFound); !strings.Contains(a.text("detail"), "/locks/{name}") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	for _, c := range []struct{ method, path, allow string }{
		{"PATCH", "/locks/a", "GET, HEAD, POST, PUT, DELETE"}, {"OPTIONS", "/locks/a", "GET, HEAD, POST, PUT, DELETE"},
		{"PATCH", "/locks", "GET, HEAD, POST, PUT, DELETE"}, {"POST", "/events", "GET, HEAD"}, {"PUT", "/history/a", "GET, HEAD"}, {"POST", "/livez", "GET, HEAD"}, {"DELETE", "/", "GET, HEAD"}, {"TRACE", "/metrics", "GET, HEAD"},
	} {
		a := g.do(c.method, c.path, "").problem(t, 405, fencing.CodeMethodNotAllowed)
		if a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: Allow %q, want %q", c.method, c.path, a.header.Get("Allow"), c.allow)
		}
	}
}

// TestGuards: a Host that is not served gets nothing, and a page of another
// origin changes nothing.
func TestGuards(t *testing.T) {
	t.Parallel()
	g := start(t)
	for path, item := range contract().Paths.Map() {
		path = strings.NewReplacer("{name}", "a", "{file}", "style.css").Replace(path)
		for method := range item.Operations() {
			for _, host := range []string{"evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "localhost:", "localhost:80x", "user@localhost", "[::2]", "::1"} {
				a := g.do(method, path, "", "Host: "+host)
				if path == "/livez" || path == "/readyz" {
					a.want(t, 200)         // a probe asks by an address that nobody has listed
					if path == "/readyz" { // and is not told where the store is
						g.do(method, path+"?verbose", "", "Host: "+host).problem(t, 421, fencing.CodeMisdirected)
					}
				} else {
					a.problem(t, 421, fencing.CodeMisdirected)
				}
			}
			if method == "GET" {
				switch path {
				case "/events":
					method = "HEAD" // a stream has no end
				case "/fences/a":
					path += "?token=1"
				case "/authorize/a":
					continue // 403 is its answer to whoever has no token
				}
				g.do(method, path, "", "Sec-Fetch-Site: cross-site").want(t, 200)
				continue
			}
			g.do(method, path, "", "Sec-Fetch-Site: cross-site").problem(t, 403, fencing.CodeForbidden)
			g.do(method, path, "", "Origin: https://evil.example").problem(t, 403, fencing.CodeForbidden)
		}
	}
	for i, host := range []string{"localhost", "LOCALHOST:1", "127.0.0.1", "[::1]", "[::1]:8080"} {
		g.do("POST", fmt.Sprintf("/locks/h%d", i), "", "Host: "+host, "Origin: http://"+host).want(t, 201)
	}
	named := start(t, func(o *Options) { o.AllowedHosts = []string{"Locks.example", "other.example:8443", "fd00::1"} })
	for host, status := range map[string]int{
		"locks.example": 200, "locks.example:1": 200, "other.example:8443": 200, "[fd00::1]:80": 200,
		"other.example": 421, "other.example:1": 421, "localhost": 421, "127.0.0.1": 421,
	} {
		if a := named.do("GET", "/locks", "", "Host: "+host); a.status != status {
			t.Errorf("%s: %d, want %d", host, a.status, status)
		}
	}
}

func TestAnyHost(t *testing.T) {
	t.Parallel()
	g := start(t, func(o *Options) { o.AllowedHosts = []string{"*"} })
	for _, host := range []string{"localhost", "evil.example", "10.1.2.3:8080", "[fd00::1]", "*"} {
		g.do("GET", "/locks", "", "Host: "+host).want(t, 200)
	}
	g.do("POST", "/locks/a", "", "Sec-Fetch-Site: cross-site").problem(t, 403, fencing.CodeForbidden)
	listed := start(t, func(o *Options) { o.AllowedHosts = []string{"locks.example"} })
	listed.do("GET", "/locks", "", "Host: *").want(t, 421)
}

func TestCheckHost(t *testing.T) {
	for entry, host := range map[string]string{
		"*": "", " Locks.Example ": "locks.example", "my_service:8080": "my_service:8080", "10.1.2.3": "10.1.2.3:5", "10.1.2.3:80": "10.1.2.3:80",
		"fd00::1": "[fd00::1]:5", "::1": "[::1]", "[FD00::1]": "[fd00::1]:7", "[fd00::1]:8443": "[fd00::1]:8443", "xn--strae-oqa.example": "xn--strae-oqa.example",
	} {
		if err := CheckHost(entry); err != nil {
			t.Errorf("%q: %v", entry, err)
		}
		if !newHostList([]string{entry}).allows(host) {
			t.Errorf("%q does not allow %q", entry, host)
		}
	}
	for _, entry := range []string{
		"", " ", "a b", "http://locks.example", "https://locks.example:8443/", "locks.example/", "locks.example:", "locks.example:0", "locks.example:65536",
		"locks.example:http", ":8080", "user@locks.example", "[fd00::1", "fd00::1]", "[fd00::1]:", "[fd00::1]x:1", "[10.1.2.3]", "[]", "fe80::1%eth0", "*.example", "*:8080",
		"straße.example", "a:b:80", "a\tb", "a,b",
	} {
		if err := CheckHost(entry); err == nil {
			t.Errorf("%q was accepted", entry)
		} else if !strings.Contains(err.Error(), strconv.Quote(entry)) {
			t.Errorf("%q is not named by %q", entry, err)
		}
		if list := newHostList([]string{entry}); len(list) != 0 {
			t.Errorf("%q is served as %v", entry, list)
		}
	}
}

func TestOnlyHosts(t *testing.T) {
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("secret")) })
	for _, c := range []struct {
		allowed             []string
		method, host, fetch string
		status              int
	}{
		{nil, "GET", "localhost:9090", "", 200},
		{nil, "GET", "127.0.0.1", "", 200},
		{nil, "GET", "[::1]:9090", "cross-site", 200},
		{nil, "GET", "evil.example", "", 421},
		{nil, "GET", "", "", 421},
		{nil, "POST", "localhost", "cross-site", 403},
		{[]string{"metrics.example"}, "GET", "metrics.example:9090", "", 200},
		{[]string{"metrics.example"}, "GET", "localhost", "", 421},
		{[]string{"*"}, "GET", "10.1.2.3:9090", "", 200},
	} {
		r := httptest.NewRequest(c.method, "http://localhost/livez", nil)
		r.Host = c.host
		r.Header.Set("Sec-Fetch-Site", c.fetch)
		w := httptest.NewRecorder()
		OnlyHosts(c.allowed, slog.New(slog.DiscardHandler), next).ServeHTTP(w, r)
		if w.Code != c.status || (w.Body.String() == "secret") != (c.status == 200) {
			t.Errorf("%+v: %d %s", c, w.Code, w.Body)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%+v: %v", c, w.Header())
		}
	}
}

// TestStrictTransportSecurity: what is answered over TLS has browsers come over TLS only;
// without it they are told nothing, for it would not count.
func TestStrictTransportSecurity(t *testing.T) {
	t.Parallel()
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, handler := range map[string]http.Handler{"server": newServer(t).Handler(), "admin": OnlyHosts(nil, slog.New(slog.DiscardHandler), next)} {
		for target, want := range map[string]string{
			"https://localhost/livez": "max-age=2592000", "https://localhost/nothing": "max-age=2592000", "https://evil.example/locks": "max-age=2592000",
			"http://localhost/livez": "",
		} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
			if got := w.Header().Get("Strict-Transport-Security"); got != want {
				t.Errorf("%s, %s: %q, want %q", name, target, got, want)
			}
		}
	}
}
