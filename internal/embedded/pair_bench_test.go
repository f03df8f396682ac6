package embedded

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// BenchmarkPair is an acquire and a release, each caller with a name of its own. CPU-µs
// is what the process has used for one, in the system too.
func BenchmarkPair(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("%d callers", callers), func(b *testing.B) {
			s := open(b, Options{Dir: b.TempDir()})
			var caller atomic.Int64
			pair := func() error {
				r := acquire(fencing.Name(fmt.Sprintf("orders/%d", caller.Add(1)%int64(4*callers))), time.Minute)
				if _, err := s.Do(b.Context(), r); err != nil {
					return nil // another one has it: the name is not its own
				}
				_, err := s.Do(b.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
				return err
			}
			before := used()
			b.ReportAllocs()
			b.ResetTimer()
			if callers == 1 {
				for range b.N {
					if err := pair(); err != nil {
						b.Fatal(err)
					}
				}
			} else {
				b.SetParallelism(callers / runtime.GOMAXPROCS(0))
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := pair(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			b.StopTimer()
			b.ReportMetric(float64((used()-before).Nanoseconds())/1e3/float64(b.N), "CPU-µs/op")
		})
	}
}

// used returns the CPU time of this process so far.
func used() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
