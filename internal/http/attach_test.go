package http

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

const attach = "Accept: text/event-stream"

// TestAttached: a lease lives as long as its stream, many times its TTL, and is
// released when the client closes.
func TestAttached(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	const ttl = 4 * time.Second
	s := g.stream("POST", "/locks/a", `{"ttl_ms":4000,"owner":"me"}`, attach)
	if s.resp.Header.Get("Fencing-Token") == "" || s.resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v", s.resp.Header)
	}
	e := s.next("granted")
	if e.text("owner") != "me" || e.number("waited_ms") != 0 || e.number("expires_in_ms") < 500 {
		t.Errorf("%s", e.data)
	}
	id, token := e.text("lease_id"), e.number("fencing_token")
	for _, path := range []string{"/locks/a", "/locks?attached=true"} {
		if body := g.do("GET", path, "").want(t, 200).body; !strings.Contains(body, `"name":"a"`) || !strings.Contains(body, `"attached":true`) {
			t.Errorf("%s: %s", path, body)
		}
	}
	g.eventually("the stream is counted", g.metric(`fencepost_http_streams{kind="attached"} 1`))
	last := e.number("elapsed_ms")
	for time.Since(s.sent) < 3*ttl/2 {
		e := s.next("renewed")
		now := time.Since(s.sent)
		deadline := time.Duration(e.number("elapsed_ms")+e.number("expires_in_ms")) * time.Millisecond
		if e.number("elapsed_ms") < last || deadline > now+ttl {
			t.Errorf("%s at %v, after %d ms", e.data, now, last)
		}
		if e.number("fencing_token") != token || e.text("lease") != public(id) {
			t.Errorf("%s", e.data)
		}
		last = e.number("elapsed_ms")
	}
	s.cancel()
	g.eventually("the lock is free", func() bool { return !g.lock("a").Held() })
	if past := g.do("GET", "/history/a", "").body; !strings.Contains(past, `"outcome":"released"`) {
		t.Errorf("%s", past)
	}
	g.waitForLog(`"status":200,"code":"ok"`)
	if strings.Contains(g.log.String(), `"level":"WARN"`) {
		t.Errorf("a client may close:\n%s", g.log)
	}
	g.wantNotTakenBack()
	body := g.do("GET", "/metrics", "").body
	if !strings.Contains(body, `fencepost_http_streams{kind="attached"} 0`) || strings.Contains(body, `duration_seconds_count{method="POST"`) {
		t.Error("the stream is still counted, or counts as time to answer")
	}
}

func TestAttachedWaits(t *testing.T) {
	t.Parallel()
	g := startRunning(t, heartbeatEach(20*time.Millisecond))
	g.do("POST", "/locks/a", "").want(t, 201)
	g.do("POST", "/locks/a", "", attach).problem(t, 423, fencing.CodeLocked)

	// The wait runs out.
	s := g.stream("POST", "/locks/a", `{"wait_ms":30}`, attach)
	if e := s.next("queued"); e.number("position") != 1 || e.text("name") != "a" {
		t.Errorf("%s", e.data)
	}
	if e := s.next("refused"); e.text("code") != "wait_timeout" || e.number("status") != 423 || e.number("elapsed_ms") < 30 || e.number("position") != 1 {
		t.Errorf("%s", e.data)
	}
	s.ended()

	// The place is told again when it has changed.
	first := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach)
	first.next("queued")
	second := g.stream("POST", "/locks/a", `{"wait_ms":86400000,"ttl_ms":2000}`, attach)
	if second.resp.Header.Get("Fencing-Token") != "" {
		t.Errorf("%v", second.resp.Header)
	}
	if e := second.next("queued"); e.number("position") != 2 {
		t.Errorf("%s", e.data)
	}
	first.cancel()
	if e := second.next("queued"); e.number("position") != 1 {
		t.Errorf("%s", e.data)
	}
	before := second.heartbeats()
	g.eventually("heartbeats", func() bool { return second.heartbeats() > before+3 })
	g.do("DELETE", "/locks/a", "", "If-Match: "+g.do("GET", "/locks/a", "").header.Get("ETag")).want(t, 204)
	e := second.next("granted")
	if e.number("waited_ms") < 20 || e.number("waited_ms") != e.number("elapsed_ms") || e.number("expires_in_ms") > 2000 {
		t.Errorf("%s", e.data)
	}
	second.next("renewed")
	second.cancel()
	g.eventually("the lock is free", func() bool { return !g.lock("a").Held() })
}

// TestPlacesAreLookedUpTogether: what it costs the store to tell the streams that wait
// for a name where they stand does not grow with them.
func TestPlacesAreLookedUpTogether(t *testing.T) {
	t.Parallel()
	const each = 20 * time.Millisecond
	g := startRunning(t, heartbeatEach(each))
	g.acquired("a")
	var looks atomic.Int64
	g.store.set(func(s *scriptedStore) {
		s.beforeName = func(verb string, _ fencing.Name) error {
			if verb == "inspect" || verb == "history" {
				looks.Add(1)
			}
			return nil
		}
	})
	began := time.Now()
	var streams []*openedStream
	for i := range 40 {
		s := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach)
		if e := s.next("queued"); e.number("position") != int64(i)+1 {
			t.Fatalf("%s", e.data)
		}
		streams = append(streams, s)
	}
	streams[0].cancel()
	for i, s := range streams[1:] {
		if e := s.next("queued"); e.number("position") != int64(i)+1 {
			t.Errorf("%s", e.data)
		}
	}
	if most := int64(time.Since(began)/each) + 1; looks.Load() > most {
		t.Errorf("the store was asked %d times in %v", looks.Load(), time.Since(began))
	}
	for _, s := range streams[1:] {
		s.cancel()
	}
	g.eventually("nobody waits", func() bool {
		g.places.mu.Lock()
		defer g.places.mu.Unlock()
		return len(g.places.names) == 0
	})
}

func TestAttachedIsLost(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	s := g.stream("POST", "/locks/a", `{"ttl_ms":20000}`, attach)
	s.next("granted")
	g.do("DELETE", "/locks/a", "", "If-Match: "+g.do("GET", "/locks/a", "").header.Get("ETag")).want(t, 204)
	if e := s.next("lost"); e.text("code") != "lease_lost" || e.text("reason") != "broken" || e.number("status") != 412 {
		t.Errorf("%s", e.data)
	}
	s.ended()

	s = g.stream("POST", "/locks/b", `{"ttl_ms":2500,"max_hold_ms":3500}`, attach)
	s.next("granted")
	for e := range s.rest() {
		if e.name == "lost" && (e.text("reason") != "expired" || e.number("elapsed_ms") < 3500) {
			t.Errorf("%s", e.data)
		}
	}

	// A store out of reach: it can't be told, and is not said to be lost for sure.
	s = g.stream("POST", "/locks/c", `{"ttl_ms":1500}`, attach)
	s.next("granted")
	var releases atomic.Int32
	g.store.set(func(s *scriptedStore) {
		s.before = func(verb string) error {
			switch verb {
			case "renew":
				return fencing.Unavailable(errors.New("down"))
			case "release":
				releases.Add(1)
			}
			return nil
		}
	})
	for e := range s.rest() {
		if e.name != "renewed" && !(e.name == "lost" && e.text("code") == "unavailable" && e.number("status") == 503) {
			t.Errorf("%s %s", e.name, e.data)
		}
	}
	g.eventually("it is released: nobody counts on it any more", func() bool { return releases.Load() > 0 })
	g.eventually("the lock is free", func() bool { return !g.lock("c").Held() })
}

// TestAttachedIsGivenNotice: a stream is told at once, and the lease ends with the notice.
func TestAttachedIsGivenNotice(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	events := g.stream("GET", "/events?prefix=a", "")
	s := g.stream("POST", "/locks/a", `{"ttl_ms":600000}`, attach)
	granted := s.next("granted")
	tag := fmt.Sprintf(`If-Match: "%d"`, granted.number("fencing_token"))
	g.do("DELETE", "/locks/a?notice_ms=600000", `{"reason":"deploy"}`, tag).want(t, 202)
	s.next("renewed") // at once: the next renewal is due in minutes
	e := s.next("notice")
	if e.text("lease") != public(granted.text("lease_id")) || e.number("breaks_in_ms") < 500000 || e.number("breaks_in_ms") > 600000 || e.text("break_reason") != "deploy" {
		t.Errorf("%s", e.data)
	}
	events.next("granted")
	if e := events.next("notice"); e.text("breaks_at") == "" || e.text("break_reason") != "deploy" {
		t.Errorf("%s", e.data)
	}
	// The end is brought forward, to the expiry that is told.
	g.do("PUT", "/locks/a", `{"ttl_ms":3000}`, "Lease-Id: "+granted.text("lease_id")).want(t, 200)
	g.do("DELETE", "/locks/a?notice_ms=3500", `{"reason":"now"}`, tag).want(t, 202)
	for e := range s.rest() {
		switch e.name {
		case "notice":
			if e.number("breaks_in_ms") > 3500 || e.text("break_reason") != "now" {
				t.Errorf("%s", e.data)
			}
		case "lost":
			if e.text("reason") != "broken" || e.text("break_reason") != "now" {
				t.Errorf("%s", e.data)
			}
		}
	}
	events.next("notice")
	g.acquired("a") // nobody reaps here
	if e := events.next("broken"); e.text("break_reason") != "now" {
		t.Errorf("%s", e.data)
	}
}

// TestANoticeIsToldOnce: a store of several clocks tells the end of a notice anew with every
// renewal, some milliseconds apart, and may tell of none while nodes are out of reach.
func TestANoticeIsToldOnce(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	renewals := 0
	g.store.set(func(s *scriptedStore) {
		s.afterRenew = func(out *fencing.Outcome) {
			if h := &out.Holder; h.BreakAt != 0 {
				renewals++
				h.BreakAt = h.BreakAt.Add(time.Duration(renewals%3) * 5 * time.Millisecond)
				if renewals == 2 {
					h.BreakAt, h.BreakReason = 0, ""
				}
			}
		}
	})
	s := g.stream("POST", "/locks/a", `{"ttl_ms":2400}`, attach)
	tag := fmt.Sprintf(`If-Match: "%d"`, s.next("granted").number("fencing_token"))
	for _, notice := range []string{"3600000", "60000"} {
		g.do("DELETE", "/locks/a?notice_ms="+notice, "", tag).want(t, 202)
		told := 0
		for renewed := 0; renewed < 3; {
			select {
			case e := <-s.events:
				switch e.name {
				case "notice":
					told++
				case "renewed":
					renewed++
				default:
					t.Fatalf("%s %s", e.name, e.data)
				}
			case <-time.After(patience):
				t.Fatal("it is not renewed")
			}
		}
		if told != 1 {
			t.Errorf("a notice of %s ms was told %d times", notice, told)
		}
	}
}

// TestAttachesAgain: a client that comes back with its lease id has its lease
// again; the older stream is told, and its end releases nothing.
func TestAttachesAgain(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	own := "Lease-Id: " + newID()
	older := g.stream("POST", "/locks/a", `{"ttl_ms":3000}`, attach, own)
	token := older.next("granted").number("fencing_token")
	newer := g.stream("POST", "/locks/a", `{"ttl_ms":3000}`, attach, own)
	if e := newer.next("granted"); e.number("fencing_token") != token {
		t.Errorf("%s", e.data)
	}
	for e := range older.rest() {
		if e.name != "renewed" && !(e.name == "lost" && e.text("code") == "replaced" && e.number("status") == 409) {
			t.Errorf("%s %s", e.name, e.data)
		}
	}
	newer.next("renewed")
	newer.next("renewed")
	if !g.lock("a").Held() {
		t.Error("the older stream has released the lease")
	}

	// The same while they wait.
	own = "Lease-Id: " + newID()
	older = g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach, own)
	older.next("queued")
	second := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach, own)
	second.next("queued")
	if e := older.next("refused"); e.text("code") != "replaced" {
		t.Errorf("%s", e.data)
	}
	older.ended()
	newer.cancel()
	second.next("granted")
	g.wantNotTakenBack()
}

func TestAttachedDrains(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	id := newID()
	holds := g.stream("POST", "/locks/a", `{"ttl_ms":20000}`, attach, "Lease-Id: "+id)
	holds.next("granted")
	waits := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach)
	waits.next("queued")
	g.Drain()
	for _, s := range []*openedStream{holds, waits} {
		if e := s.next("draining"); e.text("code") != "draining" || e.number("status") != 503 {
			t.Errorf("%s", e.data)
		}
		s.ended()
	}
	if holders := g.lock("a").Holders; len(holders) != 1 || string(holders[0].Lease) != public(id) {
		t.Errorf("the lease was not kept: %v", holders)
	}
	g.do("PUT", "/locks/a", "", "Lease-Id: "+id).want(t, 200)
	g.do("POST", "/locks/b", "", attach).problem(t, 503, fencing.CodeDraining)
}

// TestReleaseOnCloseIsTriedAgain: the store may be out of reach just then.
func TestReleaseOnCloseIsTriedAgain(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	fails := 3
	s := g.stream("POST", "/locks/a", `{"ttl_ms":20000}`, attach)
	s.next("granted")
	g.store.set(func(s *scriptedStore) {
		s.before = func(verb string) error {
			if verb == "release" && fails > 0 {
				fails--
				return fencing.Unavailable(errors.New("down"))
			}
			return nil
		}
	})
	s.cancel()
	g.eventually("the lock is free", func() bool { return !g.lock("a").Held() })
}

// TestReleaseOnCloseGivesUp: at the end of the lease there is nothing to release.
func TestReleaseOnCloseGivesUp(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	s := g.stream("POST", "/locks/a", `{"ttl_ms":1500}`, attach)
	s.next("granted")
	g.store.set(func(s *scriptedStore) {
		s.before = func(string) error { return fencing.Unavailable(errors.New("down")) }
	})
	s.cancel()
	g.waitForLog("could not be released; it expires with its TTL")
}

// rawAttach opens a stream over a connection of the test's own.
func (g *gateway) rawAttach(body string) *net.TCPConn {
	g.t.Helper()
	conn := g.dial()
	send(g.t, conn, "POST /locks/a HTTP/1.1\r\nHost: localhost\r\n"+attach+"\r\nTransfer-Encoding: chunked\r\n\r\n")
	send(g.t, conn, strings.ToLower(strings.Join([]string{hex(len(body)), body, "0", "", ""}, "\r\n")))
	return conn
}

func hex(n int) string { return string("0123456789abcdef"[n>>4]) + string("0123456789abcdef"[n&15]) }

// TestAttachedLeaves: in whatever way the client goes, the lock is free at once,
// and a grant it was not told of is taken back.
func TestAttachedLeaves(t *testing.T) {
	t.Parallel()
	for how, leave := range map[string]func(*net.TCPConn){
		"closes":      func(c *net.TCPConn) { c.Close() },
		"resets":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"half-closes": func(c *net.TCPConn) { c.CloseWrite() },
		"half-closes behind a next request": func(c *net.TCPConn) {
			c.Write([]byte("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"))
			c.CloseWrite()
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			g := startRunning(t)
			conn := g.rawAttach(`{"ttl_ms":20000}`)
			g.eventually("the lock is held", func() bool { return g.lock("a").Held() })
			leave(conn)
			g.eventually("the lock is free", func() bool { return !g.lock("a").Held() })

			held := g.acquired("a")
			conn = g.rawAttach(`{"wait_ms":60000}`)
			g.waiting("a", 1)
			leave(conn)
			g.waiting("a", 0)

			conn = g.rawAttach(`{"wait_ms":60000}`)
			g.waiting("a", 1)
			g.store.set(func(s *scriptedStore) { s.onGrant = func() { leave(conn) } })
			g.release("a", held)
			g.eventually("the lock is free", func() bool { return !g.lock("a").Held() && g.lock("a").Waiting == 0 })
		})
	}
}

// TestAttachedLingers: a lease outlives its stream by what was asked for, and may be attached
// again meanwhile; without that it is lost.
func TestAttachedLingers(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	const body = `{"ttl_ms":60000,"linger_ms":60000,"owner":"me"}`
	id := newID()
	s := g.stream("POST", "/locks/a", body, attach, "Lease-Id: "+id)
	token := s.next("granted").number("fencing_token")
	s.cancel()
	g.eventually("the stream is gone", func() bool { l := g.lock("a"); return l.Held() && l.Holders[0].Attached == "" })
	if a := g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked); a.number("retry_after_ms") > 10000 {
		t.Errorf("%s", a.body)
	}
	s = g.stream("POST", "/locks/a", body, attach, "Lease-Id: "+id)
	if e := s.next("granted"); e.number("fencing_token") != token || e.number("expires_in_ms") > 60000 {
		t.Errorf("%s", e.data)
	}
	if h := g.lock("a").Holders[0]; h.Attached == "" {
		t.Errorf("%+v", h)
	}
	s.cancel()
	g.eventually("the stream is gone again", func() bool { return g.lock("a").Holders[0].Attached == "" })
	g.release("a", id) // it is not to wait for the end

	id = newID()
	s = g.stream("POST", "/locks/a", `{"ttl_ms":60000,"linger_ms":100}`, attach, "Lease-Id: "+id)
	s.next("granted")
	s.cancel()
	g.eventually("it is over", func() bool { return !g.lock("a").Held() })
	if a := g.do("POST", "/locks/a", "", "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost); a.text("reason") != "expired" {
		t.Errorf("%s", a.body)
	}

	for body, says := range map[string]string{
		`{"ttl_ms":5000,"linger_ms":5001}`: "is 5001; it must be from 0 to ttl_ms, 5000",
		`{"linger_ms":-1}`:                 "is -1; it must be from 0 to 86400000",
		`{"linger_ms":30001}`:              "is 30001; it must be from 0 to ttl_ms, 30000",
	} {
		if a := g.do("POST", "/locks/b", body, attach).problem(t, 400, fencing.CodeInvalidRequest); a.text("field") != "linger_ms" || !strings.Contains(a.text("detail"), says) {
			t.Errorf("%s: %s", body, a.body)
		}
	}
	for path, body := range map[string]string{"/locks/b": `{"linger_ms":1}`, "/locks": `{"names":["b"],"linger_ms":1}`} {
		if a := g.do("POST", path, body).problem(t, 400, fencing.CodeInvalidRequest); a.text("field") != "linger_ms" {
			t.Errorf("%s: %s", body, a.body)
		}
	}
}

// TestAttachedUnacknowledged: nothing is renewed for a client that does not take
// what it is sent, and its connection ends before its lease does.
func TestAttachedUnacknowledged(t *testing.T) {
	t.Parallel()
	g := startRunning(t, heartbeatEach(time.Millisecond))
	conn := g.dial()
	conn.SetReadBuffer(1) // the kernel has a least size, which heartbeats fill soon
	send(t, conn, "POST /locks/a HTTP/1.1\r\nHost: localhost\r\n"+attach+"\r\nContent-Length: 15\r\n\r\n{\"ttl_ms\":6000}")
	g.eventually("the lock is held", func() bool { return g.lock("a").Held() })
	g.eventually("it is not renewed", func() bool { return !g.lock("a").Held() })
	g.waitForLog(`"method":"POST","route":"/locks/{name}","status":200,"code":"ok"`) // not lost, but left
	lines := bufio.NewScanner(conn)
	for lines.Scan() && lines.Text() != "event: granted" {
	}
	if lines.Text() != "event: granted" {
		t.Error("the client was told of no grant")
	}
}

func TestConnectionTells(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c := newConnection(server)
	c.limitSilence(time.Minute)
	if !c.acknowledged() || c.left() {
		t.Fatal("a fresh connection")
	}
	unread := 0
	for full := false; !full || c.acknowledged(); { // a late deadline may leave nothing written
		server.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		n, err := server.Write(make([]byte, 16<<20))
		if unread += n; unread > 256<<20 || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%d bytes were acknowledged, and nobody has read them: %v", unread, err)
		}
		full = err != nil && unread > 0
	}
	if _, err := io.CopyN(io.Discard, client, int64(unread)); err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t}
	g.eventually("all is acknowledged", c.acknowledged)
	client.(*net.TCPConn).CloseWrite()
	g.eventually("the client has left", c.left)
	for _, unknown := range []*connection{nil, {}} {
		if unknown.limitSilence(time.Second); !unknown.acknowledged() || unknown.left() {
			t.Error("where nothing is known, all is well")
		}
	}
}

// TestPanicWhileAttachedWaits: a defect of the store is the request's, not the
// gateway's.
func TestPanicWhileAttachedWaits(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	g.acquired("a")
	g.store.set(func(s *scriptedStore) {
		s.before = func(verb string) error {
			if verb == "leave" {
				panic("a defect")
			}
			return nil
		}
	})
	conn := g.rawAttach(`{"wait_ms":20}`)
	text, _ := io.ReadAll(conn)
	if !strings.Contains(string(text), "event: queued") || strings.HasSuffix(string(text), "0\r\n\r\n") {
		t.Errorf("half an answer looks like a whole one: %s", text)
	}
	g.waitForLog("panic while serving a request")
	g.store.set(func(s *scriptedStore) { s.before = nil })
	if _, err := g.store.Expire(context.Background(), 100); err != nil {
		t.Error(err)
	}
}
