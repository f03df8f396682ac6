package embedded

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// BenchmarkManyHolders has a name with so many permits. Of that name: "refused" is an
// acquire of one more, which writes nothing; "renewed" is a renewal of one, which nobody
// waits to have on disk; "pair" is an acquire and release of one more. "other" is a renewal
// of another name by one of eight clients, while one more renews permits of this name and
// is refused one, as fast as it can.
func BenchmarkManyHolders(b *testing.B) {
	for _, what := range []string{"refused", "renewed", "pair", "other"} {
		for _, permits := range []int{1, 100, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", what, permits), func(b *testing.B) { benchmarkManyHolders(b, what, permits) })
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
	must := func(_ fencing.Outcome, err error) {
		if err != nil {
			b.Error(err)
		}
	}
	held := make([]fencing.RenewRequest, permits)
	var group sync.WaitGroup
	var clients atomic.Int32
	for first := range min(permits, 100) {
		group.Go(func() {
			for i := first; i < permits; i += 100 {
				r := permit("crowded", 1<<20)
				must(s.Do(b.Context(), r))
				held[i] = fencing.RenewRequest{Name: r.Name, Lease: r.Lease, TTL: r.TTL}
			}
		})
	}
	group.Wait()
	refused := permit("crowded", permits)
	if what == "other" {
		over := make(chan struct{})
		defer group.Wait()
		defer close(over)
		group.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-over:
					return
				default:
					must(s.Do(b.Context(), held[i%permits]))
					s.Do(b.Context(), refused)
				}
			}
		})
		b.SetParallelism(4) // on two processors
		b.RunParallel(func(each *testing.PB) {
			r := acquire(fencing.Name(fmt.Sprint("other", clients.Add(1))), time.Hour)
			must(s.Do(b.Context(), r))
			for each.Next() {
				must(s.Do(b.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease, TTL: r.TTL}))
			}
		})
		return
	}
	b.ResetTimer()
	for i := range b.N {
		switch what {
		case "refused":
			if _, err := s.Do(b.Context(), refused); err == nil {
				b.Fatal("one more than may holds the name")
			}
		case "renewed":
			must(s.Do(b.Context(), held[i%permits]))
		case "pair":
			r := permit("crowded", 1<<20)
			must(s.Do(b.Context(), r))
			must(s.Do(b.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}))
		}
	}
	b.StopTimer()
}
