package http

import (
	"context"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// TestSecretsStaySecret: a lease id is in the answer to the POST that asked for
// it and nowhere else: no log, metric, list, view or problem.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	g := start(t)
	const secret = "CANARY-CANARY-CANARY-CANARY"
	id := public(newID()) + "." + secret
	var elsewhere strings.Builder
	note := func(a *answered) *answered {
		elsewhere.WriteString(a.body)
		for name, values := range a.header {
			elsewhere.WriteString(name + strings.Join(values, "\n"))
		}
		return a
	}
	own := "Lease-Id: " + id
	if a := g.do("POST", "/locks/a", `{"owner":"o","metadata":{"k":"v"}}`, own).want(t, 201); a.text("lease_id") != id {
		t.Fatalf("%s", a.body)
	}
	made := g.acquired("b")
	g.do("POST", "/locks", `{"names":["s/1","s/2"]}`, own).want(t, 201)
	events := g.stream("GET", "/events", "")
	note(g.do("POST", "/locks", `{"names":["s/1","t"]}`, own).want(t, 400))
	note(g.do("PUT", "/locks", `{"names":["s/1","s/2"]}`, own).want(t, 200))
	note(g.do("PUT", "/locks", `{"names":["s/1","gone"]}`, own).want(t, 412))
	note(g.do("DELETE", "/locks?name=s/1&name=s/2", "", own).want(t, 204))
	note(g.do("DELETE", "/locks?lease_id="+id, "", own).want(t, 400))
	note(g.do("POST", "/locks/b", `{"wait_ms":1}`, own).want(t, 423))
	note(g.do("GET", "/history/s/1", "").want(t, 200))
	note(g.do("GET", "/events?"+id, "", own).want(t, 400))
	note(g.do("GET", "/events", "", "Last-Event-ID: "+id+"!").want(t, 400))
	note(g.do("PUT", "/locks/a", "", own).want(t, 200))
	note(g.do("GET", "/locks/a", "", own).want(t, 200))
	note(g.do("GET", "/locks", "", own).want(t, 200))
	note(g.do("POST", "/locks/a", "").want(t, 423))
	note(g.do("POST", "/locks/b", "", own).want(t, 423))
	note(g.do("PUT", "/locks/b", "", own).want(t, 412))
	note(g.do("PUT", "/locks/a", `{"ttl_ms":0}`, own).want(t, 400))
	note(g.do("PUT", "/locks/a", "", own, own).want(t, 400))
	note(g.do("DELETE", "/locks/a", "", own, `If-Match: "1"`).want(t, 400))
	note(g.do("PUT", "/locks/a", "", "Lease-Id: "+strings.ToLower(public(id))+"."+secret).want(t, 400))
	note(g.do("PUT", "/locks/a", "", own+"!").want(t, 400))
	note(g.do("PUT", "/locks/a", "", own+strings.Repeat("x", 40)).want(t, 400))
	note(g.do("DELETE", "/locks/a", "", "If-Match: "+id).want(t, 400))
	note(g.do("POST", "/locks/c", `{"`+id+`":1}`).want(t, 400))
	note(g.do("POST", "/locks/c", `{"lease_id":"`+id+`"}`).want(t, 400))
	note(g.do("POST", "/locks/c", `{"owner":"`+id+"\xff").want(t, 400))
	note(g.do("POST", "/locks/c", id).want(t, 400))
	note(g.do("GET", "/locks?"+id, "").want(t, 400))
	note(g.do("GET", "/locks?cursor="+id, "").want(t, 400))
	note(g.do("POST", "/locks/c?lease_id="+id, "").want(t, 400))
	note(g.do("PUT", "/locks/a", "", own, "Host: evil.example").want(t, 421))
	note(g.do("PATCH", "/locks/a", "", own).want(t, 405))
	for _, fail := range []func(string) error{
		func(string) error { return fencing.Unavailable(context.DeadlineExceeded) },
		func(string) error { panic("a defect") },
	} {
		g.store.set(func(s *scriptedStore) { s.before = fail })
		note(g.do("POST", "/locks/a", "", own))
		note(g.do("PUT", "/locks/a", "", own))
		note(g.do("DELETE", "/locks/a", "", own))
		g.store.set(func(s *scriptedStore) { s.before = nil })
	}
	note(g.do("DELETE", "/locks/a", "", own).want(t, 204))
	note(g.do("POST", "/locks/a", "", own).want(t, 412))
	g.clock.advance(time.Hour)
	note(g.do("DELETE", "/locks/b", "", "Lease-Id: "+made).want(t, 412))
	note(g.do("GET", "/metrics", "").want(t, 200))

	for seen := 0; seen < 3; { // a set of two, and what else is released
		e := <-events.events
		elsewhere.WriteString(e.data)
		if e.name == "released" {
			seen++
		}
	}
	log := g.log.String()
	for _, hidden := range []string{secret, strings.ToLower(secret), made[27:]} {
		if strings.Contains(log, hidden) {
			t.Errorf("%s is in the log", hidden)
		}
		if strings.Contains(elsewhere.String(), hidden) {
			t.Errorf("%s is in an answer", hidden)
		}
	}
	if !strings.Contains(log, `"lease":"`+public(id)+`"`) || !strings.Contains(log, `"lease":"`+public(made)+`"`) {
		t.Error("the public part belongs in the log")
	}
}

// TestLogLines: what happens all day is debug, what wants a look is not.
func TestLogLines(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.acquired("a")
	g.do("POST", "/locks/a", "").want(t, 423)
	g.do("GET", "/livez", "").want(t, 200)
	g.do("PUT", "/locks/a", "").want(t, 428)
	g.store.set(func(s *scriptedStore) { s.before = func(string) error { return fencing.QuarantineError(time.Second) } })
	g.do("POST", "/locks/b", "").want(t, 503)
	g.store.set(func(s *scriptedStore) { s.before = nil })
	g.store.Model.Close()
	g.do("GET", "/readyz", "").want(t, 503)
	g.do("GET", "/locks/a", "").want(t, 503)
	for _, want := range []string{
		`"level":"DEBUG","msg":"request","request_id":`,
		`"method":"POST","route":"/locks/{name}","status":201,"code":"ok","duration_ms":0,"lease":`,
		`"method":"POST","route":"/locks/{name}","status":423,"code":"locked"`,
		`"method":"POST","route":"/locks/{name}","status":503,"code":"quarantined"`,
		`"method":"GET","route":"/locks/{name}","status":503,"code":"unavailable","duration_ms":0,"error":`,
	} {
		if !strings.Contains(g.log.String(), want) {
			t.Errorf("no %s in\n%s", want, g.log)
		}
	}
	levels := map[string]string{"201": "DEBUG", "423": "DEBUG", "428": "INFO", "200": "DEBUG"}
	for line := range strings.Lines(g.log.String()) {
		for status, level := range levels {
			if strings.Contains(line, `"status":`+status+`,`) && !strings.Contains(line, `"level":"`+level+`"`) {
				t.Errorf("want %s: %s", level, line)
			}
		}
		if strings.Contains(line, `"status":503`) {
			want := `"level":"WARN"`
			if strings.Contains(line, "/readyz") || strings.Contains(line, `"code":"quarantined"`) {
				want = `"level":"DEBUG"`
			}
			if !strings.Contains(line, want) {
				t.Errorf("want %s: %s", want, line)
			}
		}
	}
}
