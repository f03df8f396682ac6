package fencing_test

import (
	"runtime"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// A gateway that knows no more of a request than the store told it can take back what
// is provisional, and nothing else.
func TestTakeBackOfTheUnknown(t *testing.T) {
	s := fencing.NewState()
	here, there := fencing.Guard{Gateway: "1"}, fencing.Guard{Gateway: "2"}
	r := acquire(t, "a", 0)
	fencing.Step(s, epoch, here, r)
	waits := acquire(t, "a", 1)
	waits.Wait, waits.Stamp = time.Minute, "w"
	fencing.Step(s, epoch, there, waits)
	handed := fencing.Step(s, epoch, here, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}).Granted
	if len(handed) != 1 || !handed[0].Holder.Provisional {
		t.Fatalf("%+v", handed)
	}
	back := fencing.TakeBackRequest{Name: "a", Lease: fencing.HashedLeaseID(waits.Lease.Public(), fencing.SecretHash{}), Stamp: "w", Unknown: true}
	confirmed := s.Clone()
	fencing.Step(confirmed, epoch, there, fencing.ConfirmRequest{Name: "a", Lease: waits.Lease, Stamp: "w"})
	if fencing.Step(confirmed, epoch, there, back); confirmed.Records["a"].Holders.Len() != 1 {
		t.Error("a firm lease was taken back, of which its holder may have been told")
	}
	if fencing.Step(s, epoch, here, back); s.Records["a"].Holders.Len() != 1 {
		t.Error("another gateway has taken it back")
	}
	if fencing.Step(s, epoch, there, back); s.Records["a"].Holders.Len() != 0 {
		t.Error("a provisional lease was not taken back")
	}
}

// Leases that run out together end in one pass: what that allocates grows with their
// number, not with its square.
func TestManyLeasesEndTogether(t *testing.T) {
	ending := func(holders int) uint64 {
		s := fencing.NewState()
		for n := range holders {
			r := acquire(t, "a", n)
			r.Mode, r.TTL = fencing.ModeShared, time.Minute
			fencing.Step(s, epoch, fencing.Guard{}, r)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out := fencing.Step(s, epoch.Add(time.Minute), fencing.Guard{StepLimit: holders}, fencing.ExpireRequest{Name: "a"})
		runtime.ReadMemStats(&after)
		if len(out.Ended) != holders {
			t.Fatalf("%d of %d ended", len(out.Ended), holders)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := ending(100), ending(1600)
	if many > 40*few {
		t.Errorf("%d bytes for 100 leases, %d for 1600", few, many)
	}
}
