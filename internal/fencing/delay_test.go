package fencing_test

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// A lock delay that is over stays so when the clock is set back, once somebody was granted the
// name.
func TestADelayIsOverForGood(t *testing.T) {
	s := fencing.NewState()
	first := acquire(t, "a", 1)
	first.LockDelay = 10 * time.Second
	out := fencing.Step(s, epoch, fencing.Guard{}, first)
	fencing.Step(s, epoch, fencing.Guard{}, fencing.BreakRequest{Name: "a", Token: out.Holder.Token})
	if out = fencing.Step(s, epoch.Add(9*time.Second), fencing.Guard{}, acquire(t, "a", 2)); out.Code() != fencing.CodeLocked || out.Err.RetryAfter != time.Second {
		t.Fatalf("in the delay: %v", out.Err)
	}
	if out = fencing.Step(s, epoch.Add(10*time.Second), fencing.Guard{}, acquire(t, "a", 2)); out.Err != nil {
		t.Fatal(out.Err)
	}
	fencing.Step(s, epoch.Add(10*time.Second), fencing.Guard{}, fencing.ReleaseRequest{Name: "a", Lease: leaseID(t, 2, false)})
	if out = fencing.Step(s, epoch.Add(time.Second), fencing.Guard{}, acquire(t, "a", 3)); out.Err != nil {
		t.Errorf("after the clock was set back: %v", out.Err)
	}
}

// TestManyUnnoticedDelays: of many leases that ran out unnoticed a look goes through those that
// ended last, and the step that notices them counts all.
func TestManyUnnoticedDelays(t *testing.T) {
	s := fencing.NewState()
	for n := range 3 * fencing.MaxHoldersShown {
		r := acquire(t, "a", n)
		r.Mode, r.TTL = fencing.ModeShared, time.Duration(1000+n)*time.Millisecond
		switch {
		case n >= 2*fencing.MaxHoldersShown:
			r.LockDelay = 10 * time.Second
		case n == fencing.MaxHoldersShown: // neither the first step nor a look comes to it
			r.LockDelay = time.Minute
		}
		if out := fencing.Step(s, epoch, fencing.Guard{}, r); out.Err != nil {
			t.Fatal(out.Err)
		}
	}
	now := epoch.Add(2 * time.Second)
	if got := s.View("a", now, fencing.Guard{}, false).Delayed(); got != 9299*time.Millisecond {
		t.Errorf("delayed by %s", got)
	}
	refused, newcomer := 0, acquire(t, "a", 1000)
	newcomer.Mode = fencing.ModeShared
	for s.Records["a"].Holders.Len() > 0 {
		out := fencing.Step(s, now, fencing.Guard{}, newcomer)
		if out.Code() != fencing.CodeLocked {
			t.Fatalf("granted while %d leases have run out unnoticed: %v", s.Records["a"].Holders.Len(), out.Err)
		}
		refused++
		fencing.Step(s, now, fencing.Guard{}, fencing.ExpireRequest{Name: "a"})
	}
	if got := s.View("a", now, fencing.Guard{}, false).Delayed(); got != 59100*time.Millisecond || refused < 2 {
		t.Errorf("delayed by %s, %d refused", got, refused)
	}
}
