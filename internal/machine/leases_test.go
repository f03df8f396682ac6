package machine

import (
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// What MayEnd says is all that a step ends, also where that puts an end right which was set while the clocks differed.
func TestMayEndAfterSkew(t *testing.T) {
	m := NewFollowing()
	m.Ready()
	const start = fencing.Instant(1_800_000_000_000_000)
	guard := fencing.Guard{Gateway: "a", MaxSkew: time.Second}
	lease := fencing.NewLeaseID(time.Now())
	step := func(now fencing.Instant, sent fencing.Instant, op fencing.Op) (fencing.Outcome, *Telling) {
		g := guard
		g.Sent = sent
		told := &Telling{Leases: map[fencing.EndedLease]fencing.Token{}}
		m.Advance(now)
		out := m.Step(1, told, g, op)
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		return out, told
	}
	out, _ := step(start, 0, fencing.AcquireRequest{Name: "x", Lease: lease, Stamp: "s", Mode: fencing.ModeExclusive, Hold: 1, TTL: 2 * time.Hour})
	token := out.Holder.Token
	step(start.Add(time.Hour), start.Add(time.Second), fencing.RenewRequest{Name: "x", Lease: lease, TTL: 10 * time.Second}) // the store's clock is wrong
	now := start.Add(20 * time.Second)                                                                                       // and is put right
	may := m.MayEnd(fencing.ExpireRequest{Name: "x"}, now)
	out, _ = step(now, 0, fencing.ExpireRequest{Name: "x"})
	if len(out.Ended) == 1 && !slices.Contains(may, token) {
		t.Errorf("a step has ended the lease with token %d, and may end %v", token, may)
	}
}
