package watchdog

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// crowded is a store on which everybody waits.
type crowded struct{ fencing.Store }

func (crowded) Listen(fencing.Listener) {}

func (crowded) Do(_ context.Context, op fencing.Op) (fencing.Outcome, error) {
	if _, acquires := op.(fencing.AcquireRequest); !acquires {
		return fencing.Outcome{}, nil
	}
	return fencing.Outcome{Now: fencing.InstantOf(time.Now()), Joined: true, Place: &fencing.Waiter{Position: 1}, Asked: time.Now()}, nil
}

func (crowded) Heartbeat(context.Context, []fencing.Name) error { return nil }

// What a parked request costs beside its caller's goroutine and request, on one
// name and on a name each.
func BenchmarkParked(b *testing.B) {
	const n = 10_000
	for _, names := range []int{1, n} {
		b.Run(fmt.Sprintf("names=%d", names), func(b *testing.B) {
			requests := make([]fencing.AcquireRequest, n)
			for i := range requests {
				requests[i] = request(fencing.Name(fmt.Sprintf("name/%d", i%names)))
			}
			var bytes uint64
			for b.Loop() {
				w := New(crowded{}, Options{})
				waiters := make([]*Waiter, n)
				before := heapBytes()
				for i := range requests {
					_, t, err := w.Join(b.Context(), requests[i])
					if err != nil {
						b.Fatal(err)
					}
					waiters[i] = t
				}
				bytes = heapBytes() - before
				runtime.KeepAlive(waiters)
				b.StopTimer()
				w.Stop()
				b.StartTimer()
			}
			b.ReportMetric(float64(bytes)/n, "B/waiter")
		})
	}
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A turn: the holder releases, the next in line has the lock and the former holder
// joins again, with so many waiting behind. Nothing but Step is below.
func BenchmarkHandOff(b *testing.B) {
	for _, waiting := range []int{1, 32, 10_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			model := fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(time.Now()) })
			w := New(model, Options{})
			w.Start()
			defer w.Stop()
			line := make([]*Waiter, 0, waiting)
			join := func() {
				r := request("a")
				r.TTL, r.Wait = time.Hour, time.Hour
				_, t, err := w.Join(b.Context(), r)
				if err != nil {
					b.Fatal(err)
				}
				line = append(line, t)
			}
			holder := request("a")
			holder.TTL = time.Hour
			if _, err := w.Do(b.Context(), holder); err != nil {
				b.Fatal(err)
			}
			for range waiting {
				join()
			}
			for b.Loop() {
				if _, err := w.Do(b.Context(), fencing.ReleaseRequest{Name: "a", Lease: holder.Lease}); err != nil {
					b.Fatal(err)
				}
				if _, err := line[0].Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				holder = line[0].ask
				line = line[1:]
				join()
			}
		})
	}
}
