package http

import (
	"fmt"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// Who is refused a lock is told to ask again when that may be of use, and never sleeps for as long
// as a lease may live.
func TestComeBack(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		what      string
		code      fencing.Code // CodeLocked if empty
		expires   time.Duration
		delayed   time.Duration
		estimated time.Duration
		says      time.Duration // what the refusal says itself
		position  int
		ownID     bool
		without   bool // nothing of a lock
		want      time.Duration
	}{
		{what: "a lease that ends soon", expires: 3 * time.Second, want: 3 * time.Second},
		{what: "one of a day", expires: day, want: 10 * time.Second},
		{what: "the end of a wait", code: fencing.CodeWaitTimeout, expires: day, want: 10 * time.Second},
		{what: "as many wait as may", code: fencing.CodeTooManyRequests, expires: day, says: day, want: 10 * time.Second},
		{what: "as many wait as may, and it ends soon", code: fencing.CodeTooManyRequests, expires: time.Millisecond, says: time.Second, want: time.Second},
		{what: "a turn that comes before", expires: day, estimated: 4 * time.Second, want: 4 * time.Second},
		{what: "a turn that comes long after", expires: day, estimated: time.Hour, want: 10 * time.Second},
		{what: "a turn that comes at once, as it seems", expires: day, estimated: time.Millisecond, want: time.Second},
		{what: "a lease that ends before the turn", expires: 2 * time.Second, estimated: 4 * time.Second, want: 2 * time.Second},
		{what: "a delay", delayed: 5 * time.Second, want: 5 * time.Second},
		{what: "a long delay", delayed: time.Minute, want: time.Minute},
		{what: "a long delay with holders", expires: time.Second, delayed: time.Minute, want: time.Minute},
		{what: "a long delay with an estimate", delayed: time.Minute, estimated: time.Second, want: time.Minute},
		{what: "a place that is kept", expires: day, position: 1, ownID: true, want: fencing.RestTTL / 2},
		{what: "a place that is kept, and a delay", delayed: time.Minute, position: 1, ownID: true, want: fencing.RestTTL / 2},
		{what: "a place that is kept, and a lease that ends soon", expires: time.Second, position: 2, ownID: true, want: time.Second},
		{what: "a place that is not kept", expires: day, position: 1, want: 10 * time.Second},
		{what: "what the store says", says: 40 * time.Millisecond, want: 40 * time.Millisecond},
		{what: "what the store says of a day", expires: time.Second, says: day, want: 10 * time.Second},
		{what: "nothing", want: 0},
		{what: "a rate", code: fencing.CodeTooManyRequests, says: 30 * time.Second, without: true, want: 30 * time.Second},
		{what: "a quarantine", code: fencing.CodeQuarantined, says: 5 * time.Minute, without: true, want: 5 * time.Minute},
		{what: "a quarantine with a place that is kept", code: fencing.CodeQuarantined, says: 5 * time.Minute, without: true, ownID: true, want: fencing.RestTTL / 2},
		{what: "a store that can't be asked", code: fencing.CodeUnavailable, says: time.Minute, without: true, ownID: true, want: time.Minute},
	} {
		now := fencing.InstantOf(time.Unix(1_800_000_000, 0))
		lock := &fencing.Lock{Name: "a", Now: now}
		if tt.expires > 0 {
			lock.Holders, lock.HolderCount = []fencing.Holder{{ExpiresAt: now.Add(tt.expires)}}, 1
		}
		if tt.delayed > 0 {
			lock.DelayedUntil = now.Add(tt.delayed)
		}
		refusal := &fencing.Error{Code: fencing.CodeLocked, Lock: lock, Position: tt.position, RetryAfter: tt.says, EstimatedWait: tt.estimated}
		if tt.code != "" {
			refusal.Code = tt.code
		}
		if tt.without {
			refusal.Lock = nil
		}
		req := &acquire{ownID: tt.ownID}
		req.Wait = time.Second
		if got := problemOf(req.comeBack(refusal)).RetryAfter; got != tt.want {
			t.Errorf("%s: come back after %s, want %s", tt.what, got, tt.want)
		}
	}
	if err := fmt.Errorf("no code"); (&acquire{}).comeBack(err) != err {
		t.Error("an error without a code does not stay as it is")
	}
}

// What is told of a lease of a day, by header and body, at once and at the end of a wait.
func TestRetryAfterALongLease(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.do("POST", "/locks/a", `{"ttl_ms":86400000}`).want(t, 201)
	for body, code := range map[string]fencing.Code{"": fencing.CodeLocked, `{"wait_ms":20}`: fencing.CodeWaitTimeout} {
		if a := g.do("POST", "/locks/a", body).problem(t, 423, code); a.number("retry_after_ms") != 10000 || a.header.Get("Retry-After") != "10" {
			t.Errorf("%s %v", a.body, a.header)
		}
	}
	s := g.stream("POST", "/locks/a", `{"wait_ms":20}`, attach)
	s.next("queued")
	if e := s.next("refused"); e.number("retry_after_ms") != 10000 {
		t.Errorf("%s", e.data)
	}
}
