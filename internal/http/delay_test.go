package http

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// TestLockDelay: after a break nobody is granted the name before the delay is over, which is
// told wherever the lock is shown; the queue goes on in its order.
func TestLockDelay(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.heldBefore("a", 3, 4*time.Second)
	broken := func(body string) {
		t.Helper()
		a := g.do("POST", "/locks/a", body).want(t, 201)
		if a.number("lock_delay_ms") != 5000 {
			t.Errorf("%s", a.body)
		}
		if holder := g.do("GET", "/locks/a", "").want(t, 200).json["holders"].([]any)[0].(map[string]any); holder["lock_delay_ms"] != 5000.0 {
			t.Errorf("%v", holder)
		}
		g.do("DELETE", "/locks/a", "", `If-Match: "`+a.header.Get("Fencing-Token")+`"`).want(t, 204)
	}
	broken(`{"lock_delay_ms":5000}`)
	g.clock.advance(1500*time.Millisecond + time.Microsecond)
	refused := g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked)
	if refused.number("delayed_ms") != 3500 || refused.number("retry_after_ms") != 3500 || refused.header.Get("Retry-After") != "4" ||
		refused.number("holder_count") != 0 || refused.number("estimated_wait_ms") != 3500 {
		t.Errorf("%s", refused.body)
	}
	if a := g.do("GET", "/locks/a", "").want(t, 200); a.number("delayed_ms") != 3500 || a.json["held"] != false {
		t.Errorf("%s", a.body)
	}
	if a := g.do("POST", "/locks", `{"names":["a","b"]}`).problem(t, 423, fencing.CodeLocked); a.text("name") != "a" || a.number("delayed_ms") != 3500 {
		t.Errorf("%s", a.body)
	}
	if a := g.later("POST", "/locks/a", `{"wait_ms":30}`)().problem(t, 423, fencing.CodeWaitTimeout); a.number("delayed_ms") != 3500 || a.number("retry_after_ms") != 3500 {
		t.Errorf("%s", a.body)
	}
	first := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach)
	first.next("queued")
	g.later("POST", "/locks/a", `{"wait_ms":60000}`)
	g.waiting("a", 2)
	g.clock.advance(3500 * time.Millisecond)
	if _, err := g.store.Expire(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	first.next("granted")
	if a := g.do("GET", "/locks/a", "").want(t, 200); a.json["delayed_ms"] != nil || a.number("waiting") != 1 {
		t.Errorf("%s", a.body)
	}
	if a := g.do("POST", "/locks", `{"names":["x","y"],"lock_delay_ms":5000}`).want(t, 201); a.json["locks"].([]any)[1].(map[string]any)["lock_delay_ms"] != 5000.0 {
		t.Errorf("%s", a.body)
	}
}

// TestLockDelayOfSharedHolders is shown in lists, where some hold the lock still.
func TestLockDelayOfSharedHolders(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.do("POST", "/locks/a", `{"mode":"shared","ttl_ms":1000,"lock_delay_ms":60000}`).want(t, 201)
	g.do("POST", "/locks/a", `{"mode":"shared"}`).want(t, 201)
	g.clock.advance(2 * time.Second)
	lock := g.do("GET", "/locks", "").want(t, 200).json["locks"].([]any)[0].(map[string]any)
	if lock["delayed_ms"] != 59000.0 || lock["held"] != true {
		t.Errorf("%v", lock)
	}
	refused := g.do("POST", "/locks/a", `{"mode":"shared"}`).problem(t, 423, fencing.CodeLocked)
	if refused.number("retry_after_ms") != 59000 || refused.number("holder_count") != 1 {
		t.Errorf("%s", refused.body)
	}
	if a := g.later("POST", "/locks/a", `{"mode":"shared","wait_ms":30}`)().problem(t, 423, fencing.CodeWaitTimeout); a.number("retry_after_ms") != 59000 {
		t.Errorf("%s", a.body)
	}
}
