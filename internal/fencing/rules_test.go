//go:build !race

package fencing_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// TestRefusedOperationChangesNothing: a refused operation leaves behind what an
// Expire at the same instant leaves, and when the clocks differ nothing changes
// at all. An operation that only looks never changes anything, but that it puts right
// what was written while the clocks differed, as any other does. The one exception is a
// waiter that no longer waits.
func TestRefusedOperationChangesNothing(t *testing.T) {
	refused := map[fencing.Code]int{}
	randomSteps(t, 20_000, func(r *rand.Rand, s *fencing.State, now fencing.Instant, guard fencing.Guard, op fencing.Op) {
		if r.IntN(20) == 0 {
			guard.Floor = fencing.MaxToken
		}
		before := s.Clone()
		if guard.Sent == now && !fencing.OnlyLooks(op) {
			fencing.Step(before, now, guard, fencing.ExpireRequest{Name: op.LockName()})
		} else if r := before.Records[op.LockName()]; guard.Sent == now && r != nil && r.RetryAt == fencing.AfterSkew {
			fencing.Step(before, now, guard, fencing.InspectRequest{Name: op.LockName()})
		}
		out := fencing.Step(s, now, guard, op)
		if !fencing.OnlyLooks(op) && out.Err == nil || out.Code() == fencing.CodeLocked && out.Err.Position != 0 {
			return
		}
		if out.Err != nil {
			refused[out.Err.Code]++
		}
		if !reflect.DeepEqual(essenceOf(s), essenceOf(before)) {
			t.Fatalf("%#v at %d (skewed: %t) came to %v and left\n%+v\ninstead of\n%+v", op, now, guard.Sent != now, out.Err, essenceOf(s), essenceOf(before))
		}
	})
	for _, code := range []fencing.Code{
		fencing.CodeLocked, fencing.CodeLeaseLost, fencing.CodeStaleToken, fencing.CodeClockSkew,
		fencing.CodeInvalidRequest, fencing.CodeReplaced, fencing.CodeTooManyRequests, fencing.CodeQuarantined, fencing.CodeConflict, fencing.CodeNotFound,
	} {
		if refused[code] < 3 {
			t.Errorf("only %d refusals were %s: the operations miss their aim", refused[code], code)
		}
	}
}

// TestRetryChangesNothing is P7 of the rules: an operation that is sent again at
// once has no further effect, and the same answer.
func TestRetryChangesNothing(t *testing.T) {
	randomSteps(t, 10_000, func(_ *rand.Rand, s *fencing.State, now fencing.Instant, guard fencing.Guard, op fencing.Op) {
		first := fencing.Step(s, now, guard, op)
		if first.Code() == fencing.CodeLocked && first.Err.Position != 0 {
			return // it has given up its place, and is a newcomer when it is sent again
		}
		once := s.Clone()
		second := fencing.Step(s, now, guard, op)
		if _, acquires := op.(fencing.AcquireRequest); acquires {
			uncount(s, op.LockName())
			uncount(once, op.LockName())
		}
		if !reflect.DeepEqual(essenceOf(s), essenceOf(once)) {
			t.Fatalf("%#v, sent again, left\n%+v\ninstead of\n%+v", op, essenceOf(s), essenceOf(once))
		}
		if len(second.Granted)+len(second.Ended)+len(second.Left) > 0 || second.Joined || second.Noticed || second.Evicted != nil {
			t.Fatalf("%#v, sent again, did %+v", op, second)
		}
		lingers := first.Holder.Token != 0 && second.Holder.Token == 0 && hangsOnNothing(s, op)
		if first.Code() != second.Code() || first.Holder.Token != second.Holder.Token && !lingers {
			t.Fatalf("%#v came to %v with the token %d, and then to %v with %d", op, first.Err, first.Holder.Token, second.Err, second.Holder.Token)
		}
		if _, acquires := op.(fencing.AcquireRequest); acquires && (first.Fresh != second.Fresh || (first.Place == nil) != (second.Place == nil)) {
			t.Fatalf("%#v came to %+v and then to %+v", op, first, second)
		}
	})
}

// hangsOnNothing reports whether an operation by which a stream lets go of a lease has nothing to do.
func hangsOnNothing(s *fencing.State, op fencing.Op) bool {
	switch op.(type) {
	case fencing.ReleaseRequest, fencing.TakeBackRequest:
		h, ok := s.Records[op.LockName()].Holders.Find(op.LockLease().Public())
		return ok && h.Attached == ""
	}
	return false
}

// uncount takes the count of takeovers away: a request that is no stream is not known again, and
// counts each time.
func uncount(s *fencing.State, name fencing.Name) {
	if r := s.Records[name]; r != nil {
		for _, h := range slices.Collect(r.Holders.All()) {
			h.Epoch = 0
			r.Holders.Put(h)
		}
	}
}

// TestNothingIsLeftWaiting is P5 of the rules: after every step that may hand on,
// the first waiter does not fit, P1: nobody has more holders beside it than it
// tolerates, and nothing but what is due can change by itself.
func TestNothingIsLeftWaiting(t *testing.T) {
	handed, full := 0, 0
	randomSteps(t, 20_000, func(_ *rand.Rand, s *fencing.State, now fencing.Instant, guard fencing.Guard, op fencing.Op) {
		out := fencing.Step(s, now, guard, op)
		record := s.Records[op.LockName()]
		if record == nil || fencing.OnlyLooks(op) {
			return
		}
		if out.Holder.Token == 0 {
			handed += len(out.Granted)
		}
		bears := fencing.AnyNumber
		for h := range record.Holders.All() {
			bears = min(bears, tolerates(h.Mode, h.Limit))
		}
		permits := 0
		for h := range record.Holders.All() {
			permits += h.Permits
		}
		if guard.Sent == now && permits > bears || record.Holders.Len() > mostHolders {
			t.Fatalf("P1: %d holders with %d permits, and one tolerates %d", record.Holders.Len(), permits, bears)
		}
		if record.Holders.Len() == mostHolders {
			full++
		}
		if waiting := record.Queue.Waiting(); len(waiting) > 0 && record.RetryAt == 0 && s.Due(op.LockName()) > now {
			first := &waiting[0].Ask
			if permits+max(1, first.Permits) <= min(bears, tolerates(first.Mode, first.Limit)) && record.Holders.Len() < mostHolders {
				t.Fatalf("P5: after %#v the first waiter fits: %+v", op, record)
			}
		}
		if due := s.Due(op.LockName()); guard.Sent == now && due <= now && record.ForgetAt != 0 { // else nothing is to be remembered of it
			t.Fatalf("after %#v something is due at once: %+v", op, record)
		}
		if due := s.Due(op.LockName()); due > now {
			before := s.Clone()
			fencing.Step(s, min(due-1, now.Add(time.Hour)), fencing.Guard{Gateway: "", MaxHolders: mostHolders}, fencing.ExpireRequest{Name: op.LockName()})
			if a, b := untroubled(s), untroubled(before); !reflect.DeepEqual(a, b) {
				t.Fatalf("before anything was due, an expire made\n%+v\nof\n%+v", a, b)
			}
			*s = *before
		}
	})
	if handed < 40 || full < 15 {
		t.Errorf("only %d leases were handed on, and a name was full only %d times: the operations miss their aim", handed, full)
	}
}

// untroubled returns the records without when a hand-off that was refused is tried
// again: each attempt may put that off.
func untroubled(s *fencing.State) map[fencing.Name]recordEssence {
	records := essenceOf(s).Records
	for name, r := range records {
		r.RetryAt = 0
		records[name] = r
	}
	return records
}

func tolerates(mode fencing.Mode, limit int) int {
	switch {
	case mode == fencing.ModeExclusive:
		return 1
	case limit == 0:
		return 1 << 30
	}
	return limit
}

func TestRenewIn(t *testing.T) {
	for _, tt := range []struct{ ttl, left, want time.Duration }{
		{30 * time.Second, 30 * time.Second, 10 * time.Second},
		{30 * time.Second, 29 * time.Second, 10 * time.Second},
		{30 * time.Second, 12 * time.Second, 6 * time.Second}, // a retry, or MaxHold
		{time.Second, 180 * time.Millisecond, 90 * time.Millisecond},
		{time.Second, -time.Millisecond, 0},
	} {
		h := fencing.Holder{TTL: tt.ttl}
		if got := h.RenewIn(tt.left); got != tt.want {
			t.Errorf("TTL %s with %s left is renewed in %s, want %s", tt.ttl, tt.left, got, tt.want)
		}
	}
}

// TestTheLastPlaceIsForgottenWithTheName: a name whose time is over, but for a place of somebody who waited out a
// quarantine, is forgotten in the step that takes the place out.
func TestTheLastPlaceIsForgottenWithTheName(t *testing.T) {
	for what, out := range map[string]func(waiter fencing.AcquireRequest) fencing.Op{
		"evicted": func(w fencing.AcquireRequest) fencing.Op {
			return fencing.EvictRequest{Name: w.Name, Waiter: w.Lease.Public()}
		},
		"left": func(w fencing.AcquireRequest) fencing.Op {
			return fencing.LeaveRequest{Name: w.Name, Lease: w.Lease, Stamp: w.Stamp}
		},
	} {
		s := fencing.NewState()
		do := func(now fencing.Instant, op fencing.Op) fencing.Outcome {
			return fencing.Step(s, now, fencing.Guard{Sent: now, MaxSkew: time.Second, Gateway: "1", MaxHolders: mostHolders}, op)
		}
		held := acquire(t, "a", 1)
		do(epoch, held)
		do(epoch, fencing.ReleaseRequest{Name: "a", Lease: held.Lease})
		over := s.Due("a")
		fencing.Arrive(s, over-1, fencing.Arrival{Server: "S", Lost: true, Least: time.Minute, Most: time.Minute})
		waiter := acquire(t, "a", 2)
		waiter.Wait = time.Minute
		if joined := do(over-1, waiter); joined.Place == nil {
			t.Fatalf("%+v", joined)
		}
		if do(over+1, out(waiter)); s.Records["a"] != nil {
			t.Errorf("%s: there is still %+v", what, s.Records["a"])
		}
	}
}
