package http

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// withdraw takes the line of a key out of the file.
func (g *guarded) withdraw(name string) {
	g.t.Helper()
	delete(g.lines, name)
	g.keys.Replace(g.parse(g.t))
}

// TestWithdrawnWhileWaiting: a request that waits does not get the lock when its key has
// been withdrawn meanwhile, and the next one does.
func TestWithdrawnWhileWaiting(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{"/locks/ours/a": `{"wait_ms":60000}`, "/locks": `{"names":["ours/a","ours/b"],"wait_ms":60000}`} {
		t.Run(path, func(t *testing.T) {
			g := startGuarded(t)
			held := g.do("POST", "/locks/ours/a", "", g.as["all"]).want(t, 201)
			waits := g.later("POST", path, body, g.as["lock"])
			g.waiting("ours/a", 1)
			next := g.later("POST", "/locks/ours/a", `{"wait_ms":60000}`, g.as["ours"])
			g.waiting("ours/a", 2)
			g.withdraw("lock")
			g.do("DELETE", "/locks/ours/a", "", g.as["all"], "Lease-Id: "+held.text("lease_id")).want(t, 204)
			waits().problem(t, 401, fencing.CodeUnauthenticated)
			next().want(t, 201)
			g.eventually("nothing is left of it", func() bool { return !g.lock("ours/b").Held() })
		})
	}
}

// TestWithdrawnLeavesTheQueue: its place goes within seconds, not when its turn comes: it
// keeps others waiting, readers among them.
func TestWithdrawnLeavesTheQueue(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{"/locks/ours/a": `{"wait_ms":60000}`, "/locks": `{"names":["ours/a","ours/b"],"wait_ms":60000}`} {
		g := startGuarded(t)
		g.do("POST", "/locks/ours/a", `{"mode":"shared"}`, g.as["all"]).want(t, 201)
		waits := g.later("POST", path, body, g.as["lock"])
		g.waiting("ours/a", 1)
		g.withdraw("lock")
		waits().problem(t, 401, fencing.CodeUnauthenticated)
		g.waiting("ours/a", 0)
		g.do("POST", "/locks/ours/a", `{"mode":"shared"}`, g.as["ours"]).want(t, 201)
	}
}

// TestWithdrawnAndGivenBack: a wait that was ended for a key that is in force again is refused all the same, and in the audit.
func TestWithdrawnAndGivenBack(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errWithdrawn)
	c := g.begin(httptest.NewRecorder(), httptest.NewRequest("POST", "/locks/ours/a", nil))
	c.asked, c.parked = []fencing.Name{"ours/a"}, true
	if err := c.acquired(ctx, &acquire{}, ctx.Err()); err != errWithdrawn {
		t.Errorf("it comes to %v", err)
	}
	lines := auditLines(t, g.log.String())
	if len(lines) != 1 || lines[0]["name"] != "ours/a" || lines[0]["code"] != string(fencing.CodeUnauthenticated) {
		t.Errorf("the audit has %v", lines)
	}
}

// TestRefusalsAreLoggedOnce: a refusal by keys is one line, and many are not many lines.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	for _, who := range []string{"wrong", "lock"} {
		before := len(g.linesAbove("DEBUG"))
		for range 5 * failureBurst {
			g.do("GET", "/locks", "", g.as[who])
		}
		if n := len(g.linesAbove("DEBUG")) - before; n != failureBurst+1 {
			t.Errorf("%s: %d lines", who, n)
		}
	}
}

// linesAbove returns the lines of the log of another level.
func (g *gateway) linesAbove(level string) (lines []string) {
	for line := range strings.Lines(g.log.String()) {
		if !strings.Contains(line, `"level":"`+level+`"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestWithdrawnWhileItsTurnDoesNotCome: nor is it told who holds the lock.
func TestWithdrawnWhileItsTurnDoesNotCome(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	g.do("POST", "/locks/ours/a", `{"owner":"somebody"}`, g.as["all"]).want(t, 201)
	waits := g.later("POST", "/locks/ours/a", `{"wait_ms":200}`, g.as["lock"])
	g.waiting("ours/a", 1)
	g.lines["lock"] = strings.Replace(g.lines["lock"], "prefix=ours/", "prefix=theirs/", 1)
	g.keys.Replace(g.parse(t))
	if a := waits().problem(t, 403, fencing.CodeForbidden); strings.Contains(a.body, "somebody") {
		t.Errorf("%s", a.body)
	}
}

// TestWithdrawnStreams: a stream of events ends, and one of a lease says that nothing
// renews it any more. The lease itself stays: its holder may believe in it.
func TestWithdrawnStreams(t *testing.T) {
	t.Parallel()
	g := startGuarded(t, heartbeatEach(10*time.Millisecond))
	watch := g.stream("GET", "/events", "", g.as["ours"])
	stays := g.stream("GET", "/events", "", g.as["all"])
	held := g.stream("POST", "/locks/ours/a", "", attach, g.as["ours"])
	granted := held.next("granted")
	waits := g.stream("POST", "/locks/ours/a", `{"wait_ms":60000}`, attach, g.as["ours"])
	waits.next("queued")
	watch.next("granted")
	watch.next("queued")
	g.withdraw("ours")
	watch.ended()
	for stream, event := range map[*openedStream]string{held: "lost", waits: "refused"} {
		e := stream.next(event)
		if e.json["code"] != string(fencing.CodeUnauthenticated) {
			t.Errorf("%s", e.data)
		}
		stream.ended()
	}
	g.waiting("ours/a", 0)
	if lock := g.lock("ours/a"); !lock.Held() || int64(lock.Holders[0].Token) != granted.number("fencing_token") {
		t.Errorf("%+v", lock)
	}
	stays.next("granted")
}

// TestExpiresWhileOpen: a key that expires ends its streams as well.
func TestExpiresWhileOpen(t *testing.T) {
	t.Parallel()
	g := startGuarded(t, heartbeatEach(10*time.Millisecond))
	g.lines["ours"] += " expires=" + g.clock.time().Add(time.Minute).Format(time.RFC3339)
	g.keys.Replace(g.parse(t))
	watch := g.stream("GET", "/events", "", g.as["ours"])
	g.clock.advance(59 * time.Second)
	g.do("POST", "/locks/ours/a", "", g.as["ours"]).want(t, 201)
	watch.next("granted")
	g.clock.advance(2 * time.Second)
	watch.ended()
	if a := g.do("POST", "/locks/ours/b", "", g.as["ours"]).problem(t, 401, fencing.CodeUnauthenticated); !strings.Contains(a.text("detail"), "expired") {
		t.Errorf("%s", a.body)
	}
}

// TestNarrowedWhileOpen: a stream goes by what the line says now.
func TestNarrowedWhileOpen(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	watch := g.stream("GET", "/events", "", g.as["ours"])
	g.lines["ours"] = strings.Replace(g.lines["ours"], "prefix=ours/", "prefix=theirs/", 1)
	g.keys.Replace(g.parse(t))
	for _, name := range []string{"ours/a", "theirs/a"} {
		g.do("POST", "/locks/"+name, "", g.as["all"]).want(t, 201)
	}
	if e := watch.next("granted"); e.text("name") != "theirs/a" {
		t.Errorf("%s", e.data)
	}
}

// TestFailuresAreLimited: who has no key is told to slow down, by every operation; who has
// one is served all the same, from the same address.
func TestFailuresAreLimited(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	for range failureBurst {
		g.do("GET", "/locks", "", g.as["wrong"]).problem(t, 401, fencing.CodeUnauthenticated)
	}
	logged := strings.Count(g.log.String(), `"msg":"audit"`)
	for _, r := range matrix {
		if strings.HasPrefix(r.want, "200") {
			g.do("GET", r.path, "").want(t, 200)
			continue
		}
		method, _, _ := strings.Cut(r.operation, " ")
		a := g.do(method, r.path, "", g.as["wrong"]).problem(t, 429, fencing.CodeTooManyRequests)
		if a.header.Get("Retry-After") != "1" {
			t.Errorf("%v", a.header)
		}
	}
	if n := strings.Count(g.log.String(), `"msg":"audit"`) - logged; n != 1 {
		t.Errorf("%d lines tell of the refusals, want 1", n)
	}
	g.do("POST", "/locks/ours/a", "", g.as["ours"]).want(t, 201)
	g.do("GET", "/locks", "", g.as["lock"]).problem(t, 403, fencing.CodeForbidden)
	g.clock.advance(failureInterval)
	g.do("GET", "/locks", "").problem(t, 401, fencing.CodeUnauthenticated)
	g.do("GET", "/locks", "").problem(t, 429, fencing.CodeTooManyRequests)
}

// TestFailuresAreBounded: however many addresses there are, so many are remembered.
func TestFailuresAreBounded(t *testing.T) {
	f := newFailures()
	now := time.Now()
	for i := range 3 * maxNetworks {
		f.note(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String(), now)
	}
	if len(f.clients) > maxNetworks+1 {
		t.Errorf("%d clients", len(f.clients))
	}
	if wait, _ := f.note("10.9.9.9", now); wait == 0 {
		t.Error("those that come last share no allowance")
	}
	if wait, _ := f.note("10.0.0.1", now); wait > 0 {
		t.Error("one that came first pays for the others")
	}
	later := now.Add(failureBurst * failureInterval)
	for i := range failureBurst {
		if wait, _ := f.note(fmt.Sprintf("2001:db8::%d", i), later); wait > 0 {
			t.Fatalf("after %d: %v", i, wait)
		}
	}
	if wait, first := f.note("2001:db8::ffff:1", later); wait <= 0 || !first {
		t.Error("the addresses of a network are not one client")
	}
	if wait, first := f.note("2001:db8::ffff:2", later); wait <= 0 || first {
		t.Errorf("%v %v", wait, first)
	}
	if wait, _ := f.note("2001:db8:0:1::1", later); wait > 0 {
		t.Error("another network is the same client")
	}
	if len(f.clients) > 10 {
		t.Errorf("%d clients are left", len(f.clients))
	}
}

// TestAudit: each refusal and each break has a line that says who, and no line has a key.
func TestAudit(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	held := g.do("POST", "/locks/ours/a", "", g.as["all"]).want(t, 201)
	token := fmt.Sprint(held.number("fencing_token"))
	g.do("GET", "/locks/ours/a", "")
	g.do("GET", "/locks/ours/a", "", g.as["wrong"])
	g.do("GET", "/locks/ours/a", "", g.as["expired"])
	g.do("GET", "/locks/ours/a", "", g.as["stranger"])
	g.do("GET", "/locks/ours/a", "", "Authorization: Basic b3VyczpzZWNyZXQ=")
	g.do("GET", "/locks/ours/a", "", g.as["all"], g.as["ours"])
	g.do("GET", "/locks/ours/a", "", g.as["other"])
	g.do("PUT", "/locks/ours/a", "", g.as["read"])
	g.do("POST", "/locks", `{"names":["ours/a","theirs/b"]}`, g.as["ours"])
	g.do("GET", "/locks/theirs%0A%22/x", "", g.as["ours"])
	g.do("DELETE", "/locks/ours/a", "", g.as["mtls"], `If-Match: "1"`)
	g.do("DELETE", "/locks/ours/a", "", g.as["admin"], `If-Match: "`+token+`"`).want(t, 204)
	type line struct {
		Event, Principal, Key, Code, Name, Client, Route, Method string
		Request                                                  string `json:"request_id"`
		Token                                                    int64  `json:"fencing_token"`
	}
	var got []string
	for text := range strings.Lines(g.log.String()) {
		var entry struct {
			Msg   string
			Audit line
		}
		if err := json.Unmarshal([]byte(text), &entry); err != nil || entry.Msg != "audit" {
			continue
		}
		a := entry.Audit
		if a.Client != "127.0.0.1" || a.Request == "" || a.Route == "" || a.Method == "" {
			t.Errorf("%s", text)
		}
		if (a.Key == "") != (a.Principal == "" || a.Principal == "ours.example") {
			t.Errorf("%s", text)
		}
		got = append(got, strings.Join(strings.Fields(fmt.Sprint(a.Event, " ", a.Code, " ", a.Principal, " ", a.Name, " ", a.Token)), " "))
	}
	want := []string{
		"refused unauthenticated ours/a 0", "refused unauthenticated ours/a 0", "refused unauthenticated expired ours/a 0", "refused unauthenticated ours/a 0", "refused unauthenticated ours/a 0", "refused unauthenticated ours/a 0",
		"refused forbidden other ours/a 0", "refused forbidden read ours/a 0", "refused forbidden ours theirs/b 0", "refused forbidden ours 0",
		"break stale_token ours.example ours/a 1", "break ok admin ours/a " + token,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for name, header := range g.as {
		if _, secret, _ := strings.Cut(header, "Bearer "); secret != "" && strings.Contains(g.log.String(), secret[13:]) {
			t.Errorf("the key of %s is in the log", name)
		}
	}
	if !strings.Contains(g.log.String(), `"route":"/locks/{name}","status":201,"code":"ok","duration_ms":0,"principal":"all","key":"`) {
		t.Errorf("the line of a request does not say who it was:\n%s", g.log)
	}
}
