package fencing_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// heldBy returns a state in which a name has so many holders.
func heldBy(t testing.TB, holders int) *fencing.State {
	s := fencing.NewState()
	for n := range holders {
		if out := fencing.Step(s, epoch, fencing.Guard{}, permit(t, n)); out.Err != nil {
			t.Fatal(out.Err)
		}
	}
	return s
}

func permit(t testing.TB, n int) fencing.AcquireRequest {
	r := acquire(t, "a", n)
	r.Mode, r.Limit, r.TTL = fencing.ModeShared, 1<<20, time.Hour
	return r
}

// manyHoldersSteps are operations on a name with many holders, of which nothing is left.
var manyHoldersSteps = []struct {
	name string
	run  func(t testing.TB, s *fencing.State, n int)
}{
	{"acquire, renew and release", func(t testing.TB, s *fencing.State, n int) {
		r := permit(t, n)
		stepOK(t, s, epoch, r)
		stepOK(t, s, epoch, fencing.RenewRequest{Name: r.Name, Lease: r.Lease, TTL: time.Hour})
		stepOK(t, s, epoch, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
	}},
	{"expire", func(t testing.TB, s *fencing.State, n int) {
		r := permit(t, n)
		r.TTL = time.Second
		stepOK(t, s, epoch, r)
		if out := fencing.Step(s, epoch.Add(r.TTL), fencing.Guard{}, fencing.ExpireRequest{Name: r.Name}); len(out.Ended) != 1 {
			t.Fatalf("%+v", out)
		}
		if s.Due(r.Name) != epoch.Add(time.Hour) {
			t.Fatal("another one is due")
		}
	}},
	{"refuse", func(t testing.TB, s *fencing.State, n int) {
		r := permit(t, n)
		r.Limit = 1
		if out := fencing.Step(s, epoch, fencing.Guard{}, r); out.Code() != fencing.CodeLocked {
			t.Fatalf("%+v", out)
		}
	}},
}

func stepOK(t testing.TB, s *fencing.State, now fencing.Instant, op fencing.Op) {
	if out := fencing.Step(s, now, fencing.Guard{}, op); out.Err != nil {
		t.Fatal(out.Err)
	}
}

// TestManyHoldersAreNoLoad: on a name with 100 times as many holders a step may take ten
// times as long, which is far above what it takes and far below what a walk through the
// holders would take.
func TestManyHoldersAreNoLoad(t *testing.T) {
	const few, many, times = fencing.MaxHoldersShown, 100 * fencing.MaxHoldersShown, 100
	small, large := heldBy(t, few), heldBy(t, many)
	for _, step := range manyHoldersSteps {
		took := func(s *fencing.State) time.Duration { // the shortest of some rounds
			shortest := time.Duration(math.MaxInt64)
			for round := range 10 {
				began := time.Now()
				for i := range times {
					step.run(t, s, many+round*times+i)
				}
				shortest = min(shortest, time.Since(began))
				s.PruneTombstones(math.MaxInt64)
			}
			return shortest / times
		}
		a, b := took(small), took(large)
		t.Logf("%s: %s with %d holders, %s with %d", step.name, a, few, b, many)
		if b > 10*a {
			t.Errorf("%s: %.0f times as long with %d holders as with %d", step.name, float64(b)/float64(a), many, few)
		}
	}
}

// BenchmarkManyHolders is those steps on a name with 1 to 10,000 holders.
func BenchmarkManyHolders(b *testing.B) {
	for _, step := range manyHoldersSteps {
		for _, holders := range []int{1, 100, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", step.name, holders), func(b *testing.B) {
				s := heldBy(b, holders)
				b.ResetTimer()
				for n := range b.N {
					step.run(b, s, holders+n)
				}
			})
		}
	}
}
