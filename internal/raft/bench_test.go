package raft

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// BenchmarkPair is an acquire and a release, each caller with a name of its own, as that of
// the embedded store; by the leader, and by another node, which passes them on.
func BenchmarkPair(b *testing.B) {
	for _, test := range []struct{ nodes, by, callers int }{{1, 0, 1}, {1, 0, 64}, {3, 0, 1}, {3, 0, 64}, {3, 1, 1}, {3, 1, 64}} {
		b.Run(fmt.Sprintf("node %d of %d, %d callers", test.by+1, test.nodes, test.callers), func(b *testing.B) {
			s := newCluster(b, test.nodes, nil).nodes[test.by].Store
			var caller atomic.Int64
			pair := func() error {
				r := acquire(fencing.Name(fmt.Sprintf("orders/%d", caller.Add(1)%int64(4*test.callers))), time.Minute)
				if _, err := s.Do(b.Context(), r); err != nil {
					return nil // another one has it: the name is not its own
				}
				_, err := s.Do(b.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
				return err
			}
			b.ReportAllocs()
			b.ResetTimer()
			if test.callers == 1 {
				for range b.N {
					if err := pair(); err != nil {
						b.Fatal(err)
					}
				}
				return
			}
			b.SetParallelism(test.callers / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := pair(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
