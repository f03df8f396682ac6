package sql

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/seed"
	"fencepost/internal/sql/sqltest"
)

// BenchmarkHeld says what held names cost a gateway: each has an owner of its own and 100 bytes of metadata. It takes them, and opens the store
// again behind a snapshot, and behind a log without one. kB-lock is by how much the memory of the process grows for a name, live-B what of
// it is in use. FENCEPOST_HELD says how many names there are (50,000).
func BenchmarkHeld(b *testing.B) {
	server := sqltest.Postgres(b)
	n := int(seed.Number(b, "FENCEPOST_HELD", 50_000))
	for _, behind := range []string{"snapshot", "log"} {
		b.Run(behind, func(b *testing.B) {
			o := Options{URL: initialised(b, server.Database(b)), Logger: testLog(b)}
			if behind != "snapshot" {
				o.snapshotAt = 1 << 40
			}
			holdAll(b, o, n, behind == "snapshot")
			debug.FreeOSMemory()
			before, resident := live(), residentMemory(b)
			began := time.Now()
			s, err := Open(b.Context(), o)
			if err != nil {
				b.Fatal(err)
			}
			took := time.Since(began)
			grown := residentMemory(b) - resident
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(took.Seconds(), "s-start")
			b.ReportMetric(float64(grown)/float64(n)/1000, "kB-lock")
			b.ReportMetric(float64(live()-before)/float64(n), "live-B")
			if stats, err := s.Stats(b.Context()); err != nil || stats.Held != n {
				b.Errorf("%d names are held, not %d: %v", stats.Held, n, err)
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// holdAll takes so many names. A gateway that does not end well leaves no snapshot.
func holdAll(b *testing.B, o Options, n int, ends bool) {
	s, err := Open(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	var group sync.WaitGroup
	var next atomic.Int64
	for range 1024 {
		group.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				r := request(fencing.Name(fmt.Sprintf("orders/%07d", i)), 10*time.Hour)
				r.Owner = fmt.Sprintf("worker-%d", i)
				r.Metadata = map[string]string{"note": strings.Repeat("m", 90) + fmt.Sprintf("%06d", i)}
				if _, err := s.Do(b.Context(), r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if !ends {
		s.cancel()
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// live returns how many bytes are in use.
func live() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func residentMemory(b *testing.B) int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kB, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return kB << 10
}
