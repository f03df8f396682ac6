package fencing

import (
	"testing"
	"time"
)

// A lease that is kept does not end though its time is over, and holds the name: a newcomer waits, others who share it go on. When it is
// not kept any more it ends, and who waits has the name.
func TestKept(t *testing.T) {
	const start = Instant(1_800_000_000_000_000)
	s := NewState()
	step := func(now Instant, kept map[Token]bool, limit int, op Op) Outcome {
		return Step(s, now, Guard{Gateway: "g", Kept: kept, StepLimit: limit}, op)
	}
	ask := func(name Name, mode Mode, ttl, wait time.Duration) AcquireRequest {
		return AcquireRequest{Name: name, Lease: NewLeaseID(start.Time()), Stamp: NewStamp(), Mode: mode, Hold: 1, TTL: ttl, Wait: wait}
	}
	held := step(start, nil, 0, ask("x", ModeExclusive, time.Second, 0)).Holder.Token
	kept, later := map[Token]bool{held: true}, start.Add(time.Minute)
	if out := step(later, kept, 0, ExpireRequest{Name: "x"}); len(out.Ended) > 0 || out.More {
		t.Errorf("it has ended: %+v", out)
	}
	if out := step(later, kept, 0, ask("x", ModeExclusive, time.Second, 0)); out.Code() != CodeLocked {
		t.Errorf("a newcomer is told %q", out.Code())
	}
	waits := ask("x", ModeExclusive, time.Second, time.Minute)
	if out := step(later, kept, 0, waits); !out.Waits() {
		t.Errorf("a newcomer does not wait: %+v", out)
	}
	if out := step(later, nil, 0, ExpireRequest{Name: "x"}); len(out.Ended) != 1 || len(out.Granted) != 1 || out.Granted[0].Holder.Lease != waits.Lease.Public() {
		t.Errorf("when it is not kept: %+v", out)
	}

	kept = map[Token]bool{}
	for i := range 5 { // all but the last are over then, and the first is kept
		token := step(start, nil, 0, ask("y", ModeShared, time.Second, 0)).Holder.Token
		kept[token] = i == 0
	}
	live := ask("y", ModeShared, time.Hour, 0)
	step(start, nil, 0, live)
	if out := step(later, kept, 2, RenewRequest{Name: "y", Lease: live.Lease, TTL: time.Hour}); out.Err != nil || len(out.Ended) != 2 || !out.More {
		t.Errorf("another holder renews: %+v", out)
	}
	if out := step(later, kept, 2, ExpireRequest{Name: "y"}); len(out.Ended) != 2 || out.More {
		t.Errorf("what is left but the one that is kept: %+v", out)
	}
	if out := step(later, nil, 2, ExpireRequest{Name: "y"}); len(out.Ended) != 1 {
		t.Errorf("at last: %+v", out)
	}
}
