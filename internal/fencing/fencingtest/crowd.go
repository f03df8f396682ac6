package fencingtest

import (
	"fmt"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// runExpiredCrowd has more leases of a name run out at one instant than one step ends.
// The lock is free from then on: whoever asks next, and does not wait, is granted it. A
// permit has its slot. Who finds others waiting is refused nevertheless.
func runExpiredCrowd(t *testing.T, open Open, caps Capabilities) {
	const crowd = 3*fencing.StepLimit + 1
	b := open(t)
	now := Epoch
	b.SetTime(now)
	for handle := range 2 {
		if handle == 0 || caps.Gateways {
			b.Store(handle).Listen(newMailbox())
		}
	}
	fill := func(name fencing.Name, limit int) {
		t.Helper()
		for i := range crowd {
			r := acquireOf(name, leaseOf(fmt.Sprintf("A%d", i)))
			r.Mode, r.Limit, r.TTL = fencing.ModeShared, limit, time.Second
			if _, err := b.Store(0).Do(t.Context(), r); err != nil {
				t.Fatalf("holder %d: %v", i, err)
			}
		}
	}
	ask := func(r fencing.AcquireRequest) (fencing.Outcome, fencing.Code) {
		out, err := b.Store(1).Do(t.Context(), r)
		return out, codeOf(err)
	}
	fill("readers", 0)
	if !caps.Quorum {
		fill("permits", crowd)
		fill("queued", 0)
		writer := acquireOf("queued", leaseOf("W"))
		writer.Wait = time.Minute
		if out, _ := ask(writer); !out.Waits() {
			t.Fatalf("the writer does not wait: %+v", out)
		}
	}
	now = now.Add(2 * time.Second)
	b.SetTime(now)

	if out, code := ask(acquireOf("readers", leaseOf("X"))); code != fencing.CodeOK || !out.Fresh {
		t.Errorf("a lock whose readers have all run out is answered %s", code)
	}
	if caps.Quorum {
		return
	}
	permit := acquireOf("permits", leaseOf("X"))
	permit.Mode, permit.Limit = fencing.ModeShared, 2
	if out, code := ask(permit); code != fencing.CodeOK || out.Holder.Slot != 0 {
		t.Errorf("a permit of which all have run out is answered %s with the slot %d", code, out.Holder.Slot)
	}
	if _, code := ask(acquireOf("queued", leaseOf("X"))); code != fencing.CodeLocked {
		t.Errorf("who asks for a lock that others wait for is answered %s", code)
	}
}
