package fencing

import (
	"testing"
	"time"
)

// What is handed to a waiter is provisional where it is tentative, also if it is the gateway's own; who is granted what it asks for has it at once.
func TestTentative(t *testing.T) {
	const start = Instant(1_800_000_000_000_000)
	for _, tentative := range []bool{false, true} {
		s := NewState()
		step := func(op Op) Outcome { return Step(s, start, Guard{Gateway: "g", Tentative: tentative}, op) }
		ask := func(wait time.Duration) AcquireRequest {
			return AcquireRequest{Name: "x", Lease: NewLeaseID(start.Time()), Stamp: NewStamp(), Hold: 1, TTL: time.Minute, Wait: wait}
		}
		holds, waits := ask(0), ask(time.Minute)
		if out := step(holds); out.Holder.Token == 0 || out.Holder.Provisional {
			t.Errorf("tentative is %t: %+v", tentative, out)
		}
		step(waits)
		if out := step(ReleaseRequest{Name: "x", Lease: holds.Lease}); len(out.Granted) != 1 || out.Granted[0].Holder.Provisional != tentative {
			t.Errorf("tentative is %t: %+v", tentative, out)
		}
		if out := step(ConfirmRequest{Name: "x", Lease: waits.Lease, Stamp: waits.Stamp}); out.Err != nil || out.Holder.Provisional {
			t.Errorf("tentative is %t: %+v", tentative, out)
		}
	}
}
