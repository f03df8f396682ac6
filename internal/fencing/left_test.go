package fencing_test

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// While version 1 of the rules is in force a release with Linger is what it was: the lease hangs on nothing, and expires.
func TestLeavingByEarlierRules(t *testing.T) {
	for rules, want := range map[int]fencing.Reason{1: fencing.ReasonExpired, 2: fencing.ReasonReleased} {
		s, id := fencing.NewState(), fencing.NewLeaseID(epoch.Time())
		s.Rules = rules
		step := func(now fencing.Instant, op fencing.Op) fencing.Outcome {
			t.Helper()
			out := fencing.Step(s, now, fencing.Guard{}, op)
			if out.Err != nil {
				t.Fatal(out.Err)
			}
			return out
		}
		step(epoch, fencing.AcquireRequest{Name: "a", Lease: id, TTL: time.Minute, Hold: 1, Stamp: "r"})
		out := step(epoch, fencing.ReleaseRequest{Name: "a", Lease: id, Linger: time.Second})
		if left := out.Holder.Left(); left != (rules > 1) || out.Holder.ExpiresAt != epoch.Add(time.Second) {
			t.Errorf("rules %d: %+v", rules, out.Holder)
		}
		if ended := step(epoch.Add(time.Second), fencing.ExpireRequest{Name: "a"}).Ended; len(ended) != 1 || ended[0].Reason != want {
			t.Errorf("rules %d: %+v", rules, ended)
		}
	}
}

// Nothing is advised of holders that leave, however long they have the lease live on.
func TestLeavingIsNoAdvice(t *testing.T) {
	s, now := fencing.NewState(), epoch
	step := func(op fencing.Op) fencing.Outcome {
		t.Helper()
		out := fencing.Step(s, now, fencing.Guard{}, op)
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		return out
	}
	for range 6 {
		id := fencing.NewLeaseID(epoch.Time())
		step(fencing.AcquireRequest{Name: "a", Lease: id, TTL: 10 * time.Second, Hold: 1, Stamp: "r"})
		step(fencing.ReleaseRequest{Name: "a", Lease: id, Linger: time.Hour})
		for _, after := range []time.Duration{59 * time.Minute, time.Minute} { // shortly before its end, and at it
			now = now.Add(after)
			out := step(fencing.InspectRequest{Name: "a"})
			if advice := fencing.Advise(out.Lock, out.Past); len(advice) > 0 {
				t.Fatalf("%+v", advice)
			}
		}
	}
}
