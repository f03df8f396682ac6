package embedded

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// BenchmarkManyHolders has a name with so many permits: "refused" is an acquire of one
// more, which writes nothing; "crowded" is a pair, acquire and release, of the last
// permit; "other" is a pair of another name, with a refusal before it.
func BenchmarkManyHolders(b *testing.B) {
	for _, permits := range []int{100, 10_000} {
		for _, what := range []string{"refused", "crowded", "other"} {
			b.Run(fmt.Sprintf("%s, %d permits", what, permits), func(b *testing.B) { benchmarkManyHolders(b, what, permits) })
		}
	}
}

func benchmarkManyHolders(b *testing.B, what string, permits int) {
	s := open(b, Options{Dir: b.TempDir()})
	permit := func(name fencing.Name, limit int) fencing.AcquireRequest {
		r := acquire(name, time.Hour)
		r.Mode, r.Limit = fencing.ModeShared, limit
		return r
	}
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			for range permits / 100 {
				if _, err := s.Acquire(b.Context(), permit("crowded", 0)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
	refused := permit("crowded", permits)
	b.ResetTimer()
	for range b.N {
		if what != "crowded" {
			if _, err := s.Acquire(b.Context(), refused); err == nil {
				b.Fatal("one more than may holds the name")
			}
		}
		if what == "refused" {
			continue
		}
		r := permit(fencing.Name(what), permits+1)
		if _, err := s.Acquire(b.Context(), r); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Release(b.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			b.Fatal(err)
		}
	}
}
