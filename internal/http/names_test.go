package http

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

func (a *answered) members() string {
	var names []string
	locks, _ := a.json["locks"].([]any)
	for _, lock := range locks {
		names = append(names, lock.(map[string]any)["name"].(string))
	}
	return strings.Join(names, " ")
}

func TestSet(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	own := "Lease-Id: " + id
	a := g.do("POST", "/locks", `{"names":["b","a/1"],"ttl_ms":9000,"owner":"o","metadata":{"k":"v"}}`, own).want(t, 201)
	want := `{"lease_id":"` + id + `","expires_in_ms":9000,"renew_in_ms":3000,"waited_ms":0,"locks":[{"name":"a/1","owner":"o","mode":"exclusive","fencing_token":`
	if !strings.HasPrefix(a.body, want) || a.members() != "a/1 b" || a.header.Get("Location") != "" {
		t.Errorf("%s %v", a.body, a.header)
	}
	again := g.do("POST", "/locks", `{"names":["a/1","b"],"ttl_ms":9000}`, own).want(t, 200)
	if again.body != a.body {
		t.Errorf("a retry answers\n%s\nafter\n%s", again.body, a.body)
	}
	g.clock.advance(time.Second)
	a = g.do("PUT", "/locks", `{"names":["b","a/1"]}`, own).want(t, 200)
	if !strings.HasPrefix(a.body, `{"lease":"`+public(id)+`","expires_in_ms":9000,"renew_in_ms":3000,"waited_ms":0,"locks":[`) || a.members() != "a/1 b" {
		t.Errorf("%s", a.body)
	}
	a = g.do("POST", "/locks", `{"names":["a/1","b"],"hold":2}`, own).want(t, 200)
	if strings.Count(a.body, `"hold":2`) != 2 {
		t.Errorf("%s", a.body)
	}
	for range 2 { // a retry
		a = g.do("DELETE", "/locks?name=b&name=a%2F1", "", own, "Lease-Hold: 2").want(t, 200)
		if strings.Count(a.body, `"hold":1`) != 2 || a.text("lease") != public(id) {
			t.Errorf("%s", a.body)
		}
	}
	a = g.do("PUT", "/locks", `{"names":["a/1","b"],"mode":"shared","limit":3}`, own).want(t, 200)
	if strings.Count(a.body, `"mode":"shared"`) != 2 || strings.Count(a.body, `"slot":0`) != 2 {
		t.Errorf("%s", a.body)
	}
	for range 2 {
		g.do("DELETE", "/locks?name=b&name=a/1", "", own).want(t, 204)
	}
	g.do("POST", "/locks", `{"names":["a/1","b"]}`, own).problem(t, 412, fencing.CodeLeaseLost)
	if g.lock("a/1").Held() || g.lock("b").Held() {
		t.Error("something is held")
	}
}

// TestSetIsAllOrNothing: what one name refuses leaves nothing on the others, when it is answered.
func TestSetIsAllOrNothing(t *testing.T) {
	t.Parallel()
	g := start(t)
	free := func() {
		t.Helper()
		for _, name := range []fencing.Name{"a", "c"} {
			if g.lock(name).Held() {
				t.Errorf("%s is held by a set that was refused", name)
			}
		}
	}
	held := g.acquired("b")
	a := g.do("POST", "/locks", `{"names":["a","b","c"]}`).problem(t, 423, fencing.CodeLocked)
	free()
	if a.text("name") != "b" || a.number("retry_after_ms") != 10000 {
		t.Errorf("%s", a.body)
	}
	a = g.do("POST", "/locks", `{"names":["c","b","a"],"wait_ms":20}`).problem(t, 423, fencing.CodeWaitTimeout)
	free()
	if a.text("name") != "b" || a.number("position") != 1 {
		t.Errorf("%s", a.body)
	}
	g.eventually("nobody waits", func() bool { return g.lock("b").Waiting == 0 })
	g.acquired("a")

	waits := g.later("POST", "/locks", `{"names":["b","c"],"wait_ms":60000}`)
	g.waiting("b", 1)
	g.clock.advance(1500 * time.Millisecond)
	g.release("b", held)
	if a := waits().want(t, 201); a.number("waited_ms") != 1500 || a.members() != "b c" || a.number("expires_in_ms") != 30000 {
		t.Errorf("%s", a.body)
	}
}

func TestSetIsReplaced(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.acquired("a")
	own := "Lease-Id: " + newID()
	older := g.later("POST", "/locks", `{"names":["a","b"],"wait_ms":60000}`, own)
	g.waiting("a", 1)
	newer := g.later("POST", "/locks", `{"names":["a","b"],"wait_ms":50}`, own)
	older().problem(t, 409, fencing.CodeReplaced)
	newer().problem(t, 423, fencing.CodeWaitTimeout)
}

// TestSetLosesOne: the lost name is named, and the others are seen to.
func TestSetLosesOne(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	own := "Lease-Id: " + id
	g.do("POST", "/locks", `{"names":["a","b","c"]}`, own).want(t, 201)
	etag := g.do("GET", "/locks/b", "").header.Get("ETag")
	g.do("DELETE", "/locks/b", "", "If-Match: "+etag).want(t, 204)
	g.clock.advance(10 * time.Second)
	a := g.do("PUT", "/locks", `{"names":["a","b","c"]}`, own).problem(t, 412, fencing.CodeLeaseLost)
	if lost := fmt.Sprint(a.json["lost"]); lost != "[b]" || a.members() != "a c" || a.text("reason") != "broken" {
		t.Errorf("%s", a.body)
	}
	if left := g.lock("a").NextExpiry(); left != 30*time.Second {
		t.Errorf("a has %v left", left)
	}
	a = g.do("DELETE", "/locks?name=a&name=b&name=c", "", own).problem(t, 412, fencing.CodeLeaseLost)
	if lost := fmt.Sprint(a.json["lost"]); lost != "[b]" || a.members() != "" {
		t.Errorf("%s", a.body)
	}
	if g.lock("a").Held() || g.lock("c").Held() {
		t.Error("something is left behind")
	}
}

// TestSetRefusesOne: the refusal of one name says which, and the others are changed.
func TestSetRefusesOne(t *testing.T) {
	t.Parallel()
	g := start(t)
	own := "Lease-Id: " + newID()
	for name, body := range map[string]string{"a": `{"mode":"shared","limit":4}`, "b": `{"mode":"shared","limit":4,"permits":3}`, "c": `{"mode":"shared","limit":4}`} {
		g.do("POST", "/locks/"+name, body, own).want(t, 201)
	}
	a := g.do("PUT", "/locks", `{"names":["a","b","c"],"limit":2}`, own).problem(t, 400, fencing.CodeInvalidRequest)
	if a.text("name") != "b" || a.text("field") != "limit" || !strings.Contains(a.text("detail"), "from 3, the permits that the lease keeps,") {
		t.Errorf("%s", a.body)
	}
	for name, limit := range map[fencing.Name]int{"a": 2, "b": 4, "c": 2} {
		if is := g.lock(name).Holders[0].Limit; is != limit {
			t.Errorf("%s has the limit %d", name, is)
		}
	}
}

// TestSetPartlyUnknown: that a name could not be asked is never hidden behind
// one that is lost (P8).
func TestSetPartlyUnknown(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	own := "Lease-Id: " + id
	g.do("POST", "/locks", `{"names":["b","c"]}`, own).want(t, 201)
	down := errors.New("no route to c")
	g.store.set(func(s *scriptedStore) {
		s.beforeName = func(verb string, name fencing.Name) error {
			if name == "c" {
				return fencing.Unavailable(down)
			}
			return nil
		}
	})
	g.do("PUT", "/locks", `{"names":["a","b","c"]}`, own).problem(t, 503, fencing.CodeUnavailable)
	g.do("DELETE", "/locks?name=a&name=b&name=c", "", own).problem(t, 503, fencing.CodeUnavailable)
	if g.lock("b").Held() {
		t.Error("what could be released was not")
	}
	g.do("POST", "/locks", `{"names":["c","d"]}`, "Lease-Id: "+newID()).problem(t, 503, fencing.CodeUnavailable)
	g.store.set(func(s *scriptedStore) { s.beforeName = nil })
	a := g.do("DELETE", "/locks?name=a&name=b&name=c", "", own).problem(t, 412, fencing.CodeLeaseLost)
	if lost := fmt.Sprint(a.json["lost"]); lost != "[a]" {
		t.Errorf("%s", a.body)
	}
}

// TestSetOfNobody: a set whose client has left is taken back.
func TestSetOfNobody(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	held := g.acquired("b")
	body := `{"wait_ms":60000,"names":["a","b"]}`
	conn := g.dial()
	send(t, conn, fmt.Sprintf("POST /locks HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	g.waiting("b", 1)
	if !g.lock("a").Held() {
		t.Error("while a set waits, the names it has are held")
	}
	g.store.set(func(s *scriptedStore) { s.onGrant = func() { conn.CloseWrite() } })
	g.release("b", held)
	g.eventually("all is taken back", func() bool { return len(g.takenBack) >= 2 && !g.lock("a").Held() && !g.lock("b").Held() })
	if resp, body := receive(t, conn, "POST"); resp.StatusCode != 503 || strings.Contains(body, "lease_id") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}
