package http

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// tokens returns the tokens of a granted set, by name.
func (e *streamEvent) tokens() map[string]int64 {
	tokens := map[string]int64{}
	for _, lock := range e.json["locks"].([]any) {
		l := lock.(map[string]any)
		tokens[l["name"].(string)] = int64(l["fencing_token"].(float64))
	}
	return tokens
}

// skip waits for the next event that is no renewal, and checks its name.
func (s *openedStream) skip(name string) *streamEvent {
	s.t.Helper()
	for {
		select {
		case e, open := <-s.events:
			switch {
			case !open:
				s.t.Fatalf("the stream has ended; want %s", name)
			case e.name == "renewed":
				continue
			case e.name != name:
				s.t.Fatalf("event %s %s, want %s", e.name, e.data, name)
			}
			return &e
		case <-time.After(patience):
			s.t.Fatalf("no event %s", name)
		}
	}
}

func (g *gateway) breakLock(name string) {
	g.t.Helper()
	g.do("DELETE", "/locks/"+name, "", "If-Match: "+g.do("GET", "/locks/"+name, "").header.Get("ETag")).want(g.t, 204)
}

// TestSession: several names live as long as their stream, with one heartbeat, and are all
// released when the client closes.
func TestSession(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	s := g.stream("POST", "/locks", `{"names":["c","a","b"],"ttl_ms":3000,"owner":"me"}`, attach)
	e := s.next("granted")
	tokens := e.tokens()
	if len(tokens) != 3 || e.number("waited_ms") != 0 || e.text("lease_id") == "" || s.resp.Header.Get("Fencing-Token") != "" {
		t.Errorf("%s %v", e.data, s.resp.Header)
	}
	g.eventually("the stream is counted", g.metric(`fencepost_http_streams{kind="attached"} 1`))
	for renewals := 0; time.Since(s.sent) < 4500*time.Millisecond; renewals++ {
		r := s.next("renewed")
		now := time.Since(s.sent)
		if deadline := time.Duration(r.number("elapsed_ms")+r.number("expires_in_ms")) * time.Millisecond; deadline > now+3*time.Second {
			t.Errorf("%s at %v", r.data, now)
		}
		if most := int(now/time.Second) + 1; renewals > most {
			t.Fatalf("%d renewals in %v", renewals, now)
		}
	}
	for name, token := range tokens {
		if l := g.lock(fencing.Name(name)); !l.Held() || int64(l.Holders[0].Token) != token || l.Holders[0].Attached == "" {
			t.Errorf("%s: %+v", name, l)
		}
	}
	s.cancel()
	g.free("a", "b", "c")
	if past := g.do("GET", "/history/b", "").body; !strings.Contains(past, `"outcome":"released"`) {
		t.Errorf("%s", past)
	}
	g.wantNotTakenBack()
}

// free waits until names are not held.
func (g *gateway) free(names ...fencing.Name) {
	g.t.Helper()
	for _, name := range names {
		g.eventually(string(name)+" is free", func() bool { return !g.lock(name).Held() })
	}
}

// TestSessionWaits: the stream says which name it waits for; a session that does not get all
// has none.
func TestSessionWaits(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	held := g.acquired("b")
	g.do("POST", "/locks", `{"names":["a","b"]}`, attach).problem(t, 423, fencing.CodeLocked)
	s := g.stream("POST", "/locks", `{"names":["a","b"],"wait_ms":30}`, attach)
	if e := s.next("queued"); e.text("name") != "b" || e.number("position") != 1 {
		t.Errorf("%s", e.data)
	}
	if e := s.next("refused"); e.text("code") != "wait_timeout" || e.text("name") != "b" {
		t.Errorf("%s", e.data)
	}
	s.ended()
	g.free("a")

	d := g.acquired("d")
	s = g.stream("POST", "/locks", `{"names":["a","b","c","d"],"wait_ms":86400000}`, attach)
	s.next("queued")
	g.release("b", held)
	if e := s.next("queued"); e.text("name") != "d" {
		t.Errorf("%s", e.data)
	}
	g.release("d", d)
	if e := s.next("granted"); len(e.tokens()) != 4 {
		t.Errorf("%s", e.data)
	}
	s.cancel()
	g.free("a", "b", "c", "d")
}

// TestSessionHasOneFate: one name that is lost ends all; the others are not taken from a client
// that has not left, but not renewed either.
func TestSessionHasOneFate(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	s := g.stream("POST", "/locks", `{"names":["a","b","c"],"ttl_ms":60000}`, attach)
	s.next("granted")
	g.breakLock("b")
	if e := s.skip("lost"); e.text("name") != "b" || e.text("code") != "lease_lost" || e.text("reason") != "broken" {
		t.Errorf("%s", e.data)
	}
	if !g.lock("a").Held() || !g.lock("c").Held() {
		t.Error("the others were released before the client can have heard")
	}
	s.cancel()
	g.free("a", "c")

	// A client that does not go has them for a TTL.
	s = g.stream("POST", "/locks", `{"names":["d","e"],"ttl_ms":3000}`, attach)
	s.next("granted")
	g.breakLock("e")
	s.skip("lost")
	g.free("d")
	s.ended()

	// What would linger does so.
	id := newID()
	s = g.stream("POST", "/locks", `{"names":["f","g"],"ttl_ms":60000,"linger_ms":60000}`, attach, "Lease-Id: "+id)
	token := s.next("granted").tokens()["f"]
	g.breakLock("g")
	s.skip("lost")
	s.cancel()
	g.eventually("the stream is gone", func() bool { return g.lock("f").Holders[0].Attached == "" })
	s = g.stream("POST", "/locks", `{"names":["f"],"ttl_ms":60000}`, attach, "Lease-Id: "+id)
	if e := s.next("granted"); e.tokens()["f"] != token {
		t.Errorf("%s", e.data)
	}
	g.breakLock("f")
	if e := s.skip("lost"); e.text("name") != "f" {
		t.Errorf("%s", e.data)
	}
	s.ended()
}

// TestSessionReleasesLater: a name that is released for later is of the session no more, which keeps the rest, and its
// end is none of that name.
func TestSessionReleasesLater(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	id := newID()
	s := g.stream("POST", "/locks", `{"names":["a","b"],"ttl_ms":3000}`, attach, "Lease-Id: "+id)
	s.next("granted")
	g.do("DELETE", "/locks/a?after_ms=60000", "", "Lease-Id: "+id).want(t, 204)
	if e := s.skip("released"); e.text("name") != "a" {
		t.Errorf("%s", e.data)
	}
	s.next("renewed")
	if l := g.lock("b"); !l.Held() || l.Holders[0].Attached == "" {
		t.Errorf("%+v", l)
	}
	s.cancel()
	g.free("b")
	if l := g.lock("a"); !l.Held() || !l.Holders[0].Left() {
		t.Errorf("%+v", l)
	}

	id = newID()
	s = g.stream("POST", "/locks/c", `{"ttl_ms":3000}`, attach, "Lease-Id: "+id)
	s.next("granted")
	g.do("DELETE", "/locks/c?after_ms=60000", "", "Lease-Id: "+id).want(t, 204)
	if e := s.skip("lost"); e.text("code") != "lease_lost" || e.text("reason") != "released" {
		t.Errorf("%s", e.data)
	}
	s.ended()
	if l := g.lock("c"); !l.Held() {
		t.Errorf("%+v", l)
	}
}

// TestSessionReleasesOneByOne: what the client releases by name leaves the rest.
func TestSessionReleasesOneByOne(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	id := newID()
	s := g.stream("POST", "/locks", `{"names":["a","b","c"],"ttl_ms":60000}`, attach, "Lease-Id: "+id)
	tokens := s.next("granted").tokens()
	g.release("b", id)
	if e := s.skip("released"); e.text("name") != "b" || e.number("fencing_token") != tokens["b"] || e.text("lease") != public(id) {
		t.Errorf("%s", e.data)
	}
	if !g.lock("a").Held() || !g.lock("c").Held() || g.lock("b").Held() {
		t.Error("the rest is gone")
	}
	g.do("DELETE", "/locks?name=a&name=c", "", "Lease-Id: "+id).want(t, 204)
	s.skip("released")
	s.skip("released")
	s.ended()
	g.stream("POST", "/locks", `{"names":["d"],"ttl_ms":60000}`, attach, "Lease-Id: "+id).next("granted")
	g.do("POST", "/locks", `{"names":["b","d"]}`, attach, "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost)
	if !g.lock("d").Held() {
		t.Error("a name that was refused has cost the others")
	}
}

// TestSessionGrows: names are added by a newer stream. Until that has all, the older one has
// what it had; what fails leaves all as it was.
func TestSessionGrows(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	id := newID()
	own := "Lease-Id: " + id
	older := g.stream("POST", "/locks", `{"names":["b","d"],"ttl_ms":3000}`, attach, own)
	tokens := older.next("granted").tokens()
	held := g.acquired("c")

	g.do("POST", "/locks", `{"names":["a","b","c","d"]}`, attach, own).problem(t, 423, fencing.CodeLocked)
	failed := g.stream("POST", "/locks", `{"names":["a","b","c","d"],"wait_ms":50}`, attach, own)
	failed.next("queued")
	failed.next("refused")
	given := g.stream("POST", "/locks", `{"names":["a","b","c","d"],"wait_ms":60000}`, attach, own)
	given.next("queued")
	given.cancel()
	g.waiting("c", 0)
	g.free("a")
	older.next("renewed")
	older.next("renewed")
	older.next("renewed")
	for name, token := range tokens {
		if l := g.lock(fencing.Name(name)); !l.Held() || int64(l.Holders[0].Token) != token {
			t.Fatalf("%s: %+v", name, l)
		}
	}

	newer := g.stream("POST", "/locks", `{"names":["a","b","c","d"],"ttl_ms":3000,"wait_ms":60000}`, attach, own)
	newer.next("queued")
	older.next("renewed")
	g.release("c", held)
	now := newer.next("granted").tokens()
	if len(now) != 4 || now["b"] != tokens["b"] || now["d"] != tokens["d"] {
		t.Errorf("%v before, %v now", tokens, now)
	}
	if e := older.skip("lost"); e.text("code") != "replaced" || e.json["name"] != nil {
		t.Errorf("%s", e.data)
	}
	older.ended()
	newer.next("renewed")
	newer.next("renewed")
	for name := range now {
		if !g.lock(fencing.Name(name)).Held() {
			t.Errorf("%s was released by the older stream", name)
		}
	}
	g.do("POST", "/locks", `{"names":["a","b"]}`, own).problem(t, 400, fencing.CodeInvalidRequest)
	g.do("POST", "/locks/b", "", own).problem(t, 400, fencing.CodeInvalidRequest)
	newer.cancel()
	g.free("a", "b", "c", "d")
}

// TestSessionLingers: all names outlive the stream, and may be attached again meanwhile.
func TestSessionLingers(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	const body = `{"names":["a","b"],"ttl_ms":60000,"linger_ms":60000}`
	own := "Lease-Id: " + newID()
	s := g.stream("POST", "/locks", body, attach, own)
	before := s.next("granted").tokens()
	s.cancel()
	g.eventually("the stream is gone", func() bool {
		a, b := g.lock("a"), g.lock("b")
		return a.Held() && b.Held() && a.Holders[0].Attached == "" && b.Holders[0].Attached == ""
	})
	s = g.stream("POST", "/locks", body, attach, own)
	if now := s.next("granted").tokens(); now["a"] != before["a"] || now["b"] != before["b"] {
		t.Errorf("%v, before %v", now, before)
	}
	s.cancel()
	g.eventually("the stream is gone", func() bool { return g.lock("a").Holders[0].Attached == "" })

	s = g.stream("POST", "/locks", `{"names":["a","b"],"ttl_ms":60000,"linger_ms":300}`, attach, own)
	s.next("granted")
	s.cancel()
	g.free("a", "b")
}

// TestSessionIsGivenNotice: the stream says which name is to be broken, once.
func TestSessionIsGivenNotice(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	s := g.stream("POST", "/locks", `{"names":["a","b"],"ttl_ms":3000}`, attach)
	tag := fmt.Sprintf(`If-Match: "%d"`, s.next("granted").tokens()["b"])
	g.do("DELETE", "/locks/b?notice_ms=3500", `{"reason":"deploy"}`, tag).want(t, 202)
	if e := s.skip("notice"); e.text("name") != "b" || e.text("break_reason") != "deploy" {
		t.Errorf("%s", e.data)
	}
	if e := s.skip("lost"); e.text("name") != "b" || e.text("reason") != "broken" || e.text("break_reason") != "deploy" {
		t.Errorf("%s", e.data)
	}
}

// TestSessionDrains: the leases are kept when the gateway shuts down; what was lost before
// keeps it from nothing.
func TestSessionDrains(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	id := newID()
	s := g.stream("POST", "/locks", `{"names":["a","b"],"ttl_ms":60000}`, attach, "Lease-Id: "+id)
	s.next("granted")
	lost := g.stream("POST", "/locks", `{"names":["c","d"],"ttl_ms":60000}`, attach)
	lost.next("granted")
	g.breakLock("c")
	lost.skip("lost")
	g.Drain()
	if e := s.skip("draining"); e.text("code") != "draining" {
		t.Errorf("%s", e.data)
	}
	s.ended()
	lost.ended()
	g.do("PUT", "/locks", `{"names":["a","b"]}`, "Lease-Id: "+id).want(t, 200)
}
