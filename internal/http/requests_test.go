package http

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

func requestsBound(rate, most int) func(*Options) {
	return func(o *Options) { o.MaxRequestRatePerPrincipal, o.MaxRequestsPerPrincipal = rate, most }
}

// TestRequestRate: a principal that asks for more than its rate is refused, in one line of
// the log, and others are served.
func TestRequestRate(t *testing.T) {
	t.Parallel()
	g := startGuarded(t, requestsBound(5, 0))
	for range 5 {
		g.do("GET", "/locks", "", g.as["ours"]).want(t, 200)
	}
	logged := len(g.linesAbove("DEBUG"))
	for range 10 {
		a := g.do("GET", "/locks", "", g.as["ours"]).problem(t, 429, fencing.CodeTooManyRequests)
		if a.header.Get("Retry-After") != "1" || !strings.Contains(a.text("detail"), "5 requests a second come from ours") {
			t.Errorf("%v %s", a.header, a.body)
		}
	}
	g.do("POST", "/locks/ours/a", "", g.as["ours"]).want(t, 429)
	g.do("GET", "/locks", "", g.as["read"]).want(t, 200)
	g.do("GET", "/openapi.yaml", "").want(t, 200)
	if lines := g.linesAbove("DEBUG")[logged:]; len(lines) != 1 || !strings.Contains(lines[0], `"setting":"FENCEPOST_MAX_REQUEST_RATE_PER_PRINCIPAL","principal":"ours"`) {
		t.Errorf("%s", lines)
	}
	g.clock.advance(time.Second / 5)
	g.do("GET", "/locks", "", g.as["ours"]).want(t, 200)
	g.do("GET", "/locks", "", g.as["ours"]).want(t, 429)
	if a := g.do("GET", "/metrics", "", g.as["all"]); !strings.Contains(a.body, `fencepost_http_requests_limited_total{limit="rate"} 12`) {
		t.Error("the metric does not count them")
	}
	g.clock.advance(requestRefusalLogged)
	for range 5 {
		g.do("GET", "/locks", "", g.as["ours"]).want(t, 200)
	}
	g.do("GET", "/locks", "", g.as["ours"]).want(t, 429)
	if n := len(g.linesAbove("DEBUG")) - logged; n != 2 {
		t.Errorf("%d lines, want one more after a minute", n)
	}
}

// TestRequestRateOfAddresses: without keys the address counts, whatever it asks for, but for
// probes.
func TestRequestRateOfAddresses(t *testing.T) {
	t.Parallel()
	g := start(t, requestsBound(4, 0))
	g.do("GET", "/locks", "").want(t, 200)
	g.do("GET", "/nothing", "").want(t, 404)
	g.do("GET", "/locks", "", "Host: evil.example").want(t, 421)
	g.do("GET", "/readyz?verbose", "").want(t, 200)
	for path, status := range map[string]int{"/locks": 429, "/nothing": 429, "/metrics": 429, "/readyz?verbose": 429, "/livez": 200, "/readyz": 200} {
		g.do("GET", path, "").want(t, status)
	}
	g.do("GET", "/locks", "", "Host: evil.example").want(t, 429)
}

// TestForbiddenRequestsAreCounted: what a key may not do uses up its rate, and beyond that
// it is refused for that, in no line of the audit.
func TestForbiddenRequestsAreCounted(t *testing.T) {
	t.Parallel()
	g := startGuarded(t, requestsBound(3, 0))
	g.do("POST", "/locks/theirs/a", "", g.as["ours"]).problem(t, 403, fencing.CodeForbidden)
	g.do("POST", "/locks", `{"names":["ours/a","theirs/a"]}`, g.as["ours"]).problem(t, 403, fencing.CodeForbidden)
	g.do("GET", "/locks", "", g.as["lock"]).problem(t, 403, fencing.CodeForbidden)
	g.do("GET", "/locks", "", g.as["ours"]).want(t, 200)
	audited := strings.Count(g.log.String(), `"msg":"audit"`)
	for range 2 {
		g.do("POST", "/locks/theirs/a", "", g.as["ours"]).problem(t, 429, fencing.CodeTooManyRequests)
	}
	g.do("GET", "/locks", "", g.as["ours"]).want(t, 429)
	for range 2 { // another principal, of which one was without the scope
		g.do("POST", "/locks/ours/a", "", g.as["lock"])
	}
	g.do("GET", "/locks", "", g.as["lock"]).problem(t, 429, fencing.CodeTooManyRequests)
	if n := strings.Count(g.log.String(), `"msg":"audit"`) - audited; n != 0 {
		t.Errorf("%d lines of the audit tell of what was asked too often", n)
	}
}

// TestHoldersGoFirst: what is held can be renewed and released when a principal may ask for
// nothing more, and the time for that is taken from what else it asks for.
func TestHoldersGoFirst(t *testing.T) {
	t.Parallel()
	const rate = 5
	g := startGuarded(t, requestsBound(rate, 0))
	lease := "Lease-Id: " + g.do("POST", "/locks/ours/a", "", g.as["ours"]).want(t, 201).text("lease_id")
	set := "Lease-Id: " + g.do("POST", "/locks", `{"names":["ours/x","ours/y"]}`, g.as["ours"]).want(t, 201).text("lease_id")
	token := g.do("GET", "/locks/ours/a", "", g.as["ours"]).want(t, 200).header.Get("ETag")
	for range rate - 3 {
		g.do("GET", "/locks", "", g.as["ours"]).want(t, 200)
	}
	g.do("POST", "/locks/ours/b", "", g.as["ours"]).want(t, 429)
	g.do("DELETE", "/locks/ours/a", "", g.as["ours"], "If-Match: "+token).want(t, 429) // a break is no release
	g.do("PUT", "/locks", `{"names":["ours/x","ours/y"]}`, g.as["ours"], set).want(t, 200)
	g.do("DELETE", "/locks?name=ours/x&name=ours/y", "", g.as["ours"], set).want(t, 204)
	for range holdingShare*rate - 2 {
		g.do("PUT", "/locks/ours/a", "", g.as["ours"], lease).want(t, 200)
	}
	g.do("PUT", "/locks/ours/a", "", g.as["ours"], lease).problem(t, 429, fencing.CodeTooManyRequests)

	g.clock.advance(time.Second / (holdingShare * rate))
	g.do("DELETE", "/locks/ours/a", "", g.as["ours"], lease).want(t, 204)
	g.clock.advance(holdingDebt) // all that was used up in advance
	g.do("POST", "/locks/ours/a", "", g.as["ours"]).want(t, 429)
	g.clock.advance(2 * time.Second / rate)
	g.do("POST", "/locks/ours/a", "", g.as["ours"]).want(t, 201)
}

// TestOnlyLeaseIDsGoFirst: without the id of a lease there is nothing to renew or release, so
// that it counts as anything else does.
func TestOnlyLeaseIDsGoFirst(t *testing.T) {
	t.Parallel()
	g := startGuarded(t, requestsBound(2, 0))
	held := g.do("POST", "/locks/ours/a", "", g.as["ours"]).want(t, 201)
	g.do("PUT", "/locks/ours/a", "", g.as["ours"]).want(t, 428)
	for _, header := range []string{"", "Lease-Id: ", "Lease-Id: x", "Lease-Id: " + public(held.text("lease_id"))} {
		g.do("PUT", "/locks/ours/a", "", g.as["ours"], header).problem(t, 429, fencing.CodeTooManyRequests)
		g.do("DELETE", "/locks/ours/a", "", g.as["ours"], header).problem(t, 429, fencing.CodeTooManyRequests)
	}
	g.do("PUT", "/locks/ours/a", "", g.as["ours"], "Lease-Id: "+held.text("lease_id")).want(t, 200)
}

// TestRequestsUnderWay: a principal has so many requests under way, and those that wait and
// streams are not among them.
func TestRequestsUnderWay(t *testing.T) {
	t.Parallel()
	g := startGuarded(t, requestsBound(0, 1))
	held := g.do("POST", "/locks/ours/a", "", g.as["all"]).want(t, 201)
	waits := g.later("POST", "/locks/ours/a", `{"wait_ms":60000}`, g.as["ours"])
	g.waiting("ours/a", 1)
	idle := func() {
		g.eventually("nothing is under way", func() bool {
			g.requests.mu.Lock()
			defer g.requests.mu.Unlock()
			return len(g.requests.by) == 0
		})
	}
	idle()
	watch := g.stream("GET", "/events", "", g.as["ours"])
	attached := g.stream("POST", "/locks/ours/b", "", attach, g.as["ours"])
	granted := attached.next("granted")
	watch.next("granted")
	idle()

	entered, proceed := make(chan struct{}), make(chan struct{})
	g.store.set(func(s *scriptedStore) {
		s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
			if r.Name == "ours/slow" {
				close(entered)
				<-proceed
			}
			return s.Model.Do(ctx, r)
		}
	})
	slow := g.later("POST", "/locks/ours/slow", "", g.as["ours"])
	<-entered
	if a := g.do("GET", "/locks", "", g.as["ours"]).problem(t, 429, fencing.CodeTooManyRequests); !strings.Contains(a.text("detail"), "FENCEPOST_MAX_REQUESTS_PER_PRINCIPAL") {
		t.Errorf("%s", a.body)
	}
	g.do("GET", "/locks", "", g.as["read"]).want(t, 200)
	g.do("DELETE", "/locks/ours/b", "", g.as["ours"], "Lease-Id: "+granted.text("lease_id")).want(t, 204)
	close(proceed)
	slow().want(t, 201)
	g.do("DELETE", "/locks/ours/a", "", g.as["all"], "Lease-Id: "+held.text("lease_id")).want(t, 204)
	waits().want(t, 201)
	idle()
	g.do("GET", "/locks", "", g.as["ours"]).want(t, 200)
}

// TestRequestersAreBounded: however many addresses there are, so many are remembered, and
// none of them keeps a name out.
func TestRequestersAreBounded(t *testing.T) {
	q := requests{rate: 1, by: map[requester]*usage{}}
	now := time.Now()
	from := func(i int) requester {
		return requester{network: networkOf(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String())}
	}
	for i := range 3 * maxNetworks {
		q.enter(from(i), now, false)
	}
	if len(q.by) > maxNetworks+1 {
		t.Errorf("%d are remembered", len(q.by))
	}
	for i := range 10 {
		if _, refused, _ := q.enter(requester{name: fmt.Sprint("service", i)}, now, false); refused != nil {
			t.Errorf("%v", refused)
		}
	}
	if _, refused, _ := q.enter(from(3*maxNetworks), now, false); refused == nil {
		t.Error("those that come last share no allowance")
	}
	for _, u := range q.by {
		u.underWay = 0
	}
	q.enter(from(3*maxNetworks), now.Add(time.Minute), false)
	if len(q.by) != 1 {
		t.Errorf("%d are remembered of those that have gone", len(q.by))
	}
}

// TestLimitedRequestsTakeTheirTime: who asks again at once is not refused thousands of times a
// second, and what it waits for that is no time of the gateway's.
func TestLimitedRequestsTakeTheirTime(t *testing.T) {
	t.Parallel()
	g := startRunning(t, requestsBound(1, 0))
	g.eventually("one is refused", func() bool { return g.do("GET", "/locks", "").status == 429 })
	before := time.Now()
	for range 3 {
		g.do("GET", "/nothing", "")
	}
	if took := time.Since(before); took < 2*limitedPause {
		t.Errorf("three requests, of which one may be served, took %v", took)
	}

	unknown := startGuarded(t)
	for range failureBurst {
		unknown.do("GET", "/locks", "", unknown.as["wrong"]).want(t, 401)
	}
	before = time.Now()
	unknown.do("GET", "/locks", "", unknown.as["wrong"]).want(t, 429)
	if took := time.Since(before); took < limitedPause {
		t.Errorf("a refusal without a known key took %v", took)
	}
}

// refusedInTime asks with so many at once, each again as soon as it is answered, for that
// long, and returns how often one was refused, and how often its connection was to be closed.
func (g *gateway) refusedInTime(atOnce int, during time.Duration) (refused, closed int64) {
	var refusals, closings atomic.Int64
	var asking sync.WaitGroup
	for range atOnce {
		asking.Go(func() {
			for began, open := time.Now(), true; open && time.Since(began) < during; {
				w := httptest.NewRecorder()
				g.Handler().ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/nothing", nil))
				if w.Code == http.StatusTooManyRequests {
					refusals.Add(1)
				}
				if open = w.Header().Get("Connection") != "close"; !open {
					closings.Add(1)
				}
			}
		})
	}
	asking.Wait()
	return refusals.Load(), closings.Load()
}

// TestRefusalsAreBounded: a principal gets so many refusals a second, however many it asks
// for at once, and so many of them wait.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	const perSecond = int64(refusedAtOnce * time.Second / limitedPause)
	for _, atOnce := range []int{10, 250, maxHeldBack} {
		synctest.Test(t, func(t *testing.T) {
			g := newServer(t, requestsBound(1, 0))
			refused, closed := g.refusedInTime(atOnce, 10*time.Second)
			if most := min(10*perSecond, int64(atOnce)*100) + int64(atOnce); refused > most || refused < most/2 || closed > 0 {
				t.Errorf("%d at once: %d refusals in 10 s, want at most %d, and %d connections are closed", atOnce, refused, most, closed)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		g := newServer(t, requestsBound(1, 0))
		if refused, closed := g.refusedInTime(maxHeldBack+10, time.Second); closed == 0 || closed > 10 || refused < maxHeldBack {
			t.Errorf("%d refusals, and %d connections are closed", refused, closed)
		}
		if u := g.requests.by[requester{network: networkOf("192.0.2.1")}]; u == nil || u.heldBack != 0 {
			t.Errorf("%+v is left", u)
		}
	})
}
