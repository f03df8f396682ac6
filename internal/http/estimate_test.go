package http

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// heldBefore has a name held and released a few times, for so long each.
func (g *gateway) heldBefore(name string, times int, held time.Duration) {
	for range times {
		id := g.acquired(name)
		g.clock.advance(held)
		g.release(name, id)
	}
}

// TestEstimates: who has to wait is told for how long, wherever it is told where it stands.
func TestEstimates(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.heldBefore("a", 3, 4*time.Second)
	id := g.acquired("a")
	g.clock.advance(time.Second)
	if a := g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked); a.number("estimated_wait_ms") != 3000 {
		t.Errorf("%s", a.body)
	}
	g.do("POST", "/locks/a", "", attach).problem(t, 423, fencing.CodeLocked)

	first := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach)
	if e := first.next("queued"); e.number("estimated_wait_ms") != 3000 {
		t.Errorf("%s", e.data)
	}
	second := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach)
	if e := second.next("queued"); e.number("position") != 2 || e.number("estimated_wait_ms") != 7000 {
		t.Errorf("%s", e.data)
	}
	if body := g.do("GET", "/locks/a", "").want(t, 200).body; strings.Count(body, `"estimated_wait_ms":`) != 2 || !strings.Contains(body, `"estimated_wait_ms":7000}`) {
		t.Errorf("%s", body)
	}
	second.cancel()
	g.waiting("a", 1)

	// The wait runs out: what is estimated is that of the place if it is kept, else that of another one.
	later := g.later("POST", "/locks/a", `{"wait_ms":30}`, "Lease-Id: "+newID())
	if a := later().problem(t, 423, fencing.CodeWaitTimeout); a.number("position") != 2 || a.number("estimated_wait_ms") != 7000 {
		t.Errorf("%s", a.body)
	}

	g.clock.advance(6 * time.Second) // twice what was told
	g.release("a", id)
	first.next("granted")
	g.eventually("the estimate is compared", g.metric("fencepost_wait_estimate_ratio_sum 2"))
	first.cancel()
}

// TestEstimatesOfPermits: who wants several waits for as many holders as they take.
func TestEstimatesOfPermits(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.heldBefore("a", 3, 4*time.Second)
	const one, two = `{"mode":"shared","limit":2}`, `{"mode":"shared","limit":2,"permits":2}`
	for range 2 {
		g.do("POST", "/locks/a", one).want(t, 201)
	}
	g.clock.advance(time.Second)
	for body, want := range map[string]int64{one: 1500, two: 3000} {
		if a := g.do("POST", "/locks/a", body).problem(t, 423, fencing.CodeLocked); a.number("estimated_wait_ms") != want {
			t.Errorf("%s: %s", body, a.body)
		}
	}
	s := g.stream("POST", "/locks/a", `{"mode":"shared","limit":2,"permits":2,"wait_ms":60000}`, attach)
	if e := s.next("queued"); e.number("estimated_wait_ms") != 3000 {
		t.Errorf("%s", e.data)
	}
	if body := g.do("GET", "/locks/a", "").want(t, 200).body; !strings.Contains(body, `"estimated_wait_ms":3000}`) {
		t.Errorf("%s", body)
	}
	s.cancel()
	g.waiting("a", 0)

	// Who takes its place over, and names nothing, is told of what the place has.
	own := "Lease-Id: " + newID()
	first := g.later("POST", "/locks/a", `{"mode":"shared","limit":2,"wait_ms":60000}`, own)
	g.waiting("a", 1)
	if a := g.do("POST", "/locks/a", `{"wait_ms":1}`, own).problem(t, 423, fencing.CodeWaitTimeout); a.number("estimated_wait_ms") != 1500 {
		t.Errorf("%s", a.body)
	}
	first().problem(t, 409, fencing.CodeReplaced)
	again := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach, own)
	if e := again.next("queued"); e.number("estimated_wait_ms") != 1500 {
		t.Errorf("%s", e.data)
	}
	again.cancel()
}

// TestNothingIsEstimated where too little is known, or the store does not tell.
func TestNothingIsEstimated(t *testing.T) {
	t.Parallel()
	g := start(t)
	wantNone := func(why, name string) {
		t.Helper()
		if a := g.do("POST", "/locks/"+name, "").problem(t, 423, fencing.CodeLocked); a.json["estimated_wait_ms"] != nil {
			t.Errorf("%s: %s", why, a.body)
		}
	}
	g.heldBefore("a", 2, time.Second)
	g.acquired("a")
	wantNone("two leases have ended", "a")
	g.heldBefore("b", 3, time.Second)
	g.acquired("b")
	g.store.set(func(s *scriptedStore) {
		s.beforeName = func(verb string, _ fencing.Name) error {
			if verb == "history" {
				return fencing.Unavailable(nil)
			}
			return nil
		}
	})
	wantNone("the store does not say", "b")
	g.store.set(func(s *scriptedStore) { s.beforeName = nil })
	if a := g.do("POST", "/locks/b", "").problem(t, 423, fencing.CodeLocked); a.number("estimated_wait_ms") != 1000 {
		t.Errorf("what failed is not tried again: %s", a.body)
	}
	if a := g.do("POST", "/locks", `{"names":["b","c"]}`).problem(t, 423, fencing.CodeLocked); a.json["estimated_wait_ms"] != nil {
		t.Errorf("several names: %s", a.body)
	}
}

// TestEstimatesCostAReadingASecond: what refusals cost the store does not grow with them, nor
// what is kept with the names; and who is granted costs nothing.
func TestEstimatesCostAReadingASecond(t *testing.T) {
	t.Parallel()
	g := start(t)
	var looks atomic.Int64
	g.store.set(func(s *scriptedStore) {
		s.beforeName = func(verb string, _ fencing.Name) error {
			if verb == "inspect" || verb == "history" {
				looks.Add(1)
			}
			return nil
		}
	})
	wantLooks := func(want int64) {
		t.Helper()
		if got := looks.Swap(0); got != want {
			t.Errorf("the store was asked %d times instead of %d", got, want)
		}
	}
	first := g.acquired("a")
	second := g.later("POST", "/locks/a", `{"wait_ms":60000}`)
	g.waiting("a", 1)
	g.release("a", first)
	g.release("a", second().text("lease_id"))
	wantLooks(0)

	g.acquired("a")
	for range 50 {
		g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked)
	}
	wantLooks(1)
	g.clock.advance(paceFresh)
	g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked)
	wantLooks(1)

	now := g.clock.time()
	for i := range 2 * maxPaces {
		p := &g.paces
		p.mu.Lock()
		p.room(now)
		p.names[fencing.Name(fmt.Sprint(i))] = &reading{at: now.Add(-paceFresh * time.Duration(i%2))}
		if len(p.names) > maxPaces {
			t.Fatalf("%d names are kept", len(p.names))
		}
		p.mu.Unlock()
	}
}
