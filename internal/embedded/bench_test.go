package embedded

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// parked is a Listener that wakes the request whose grant it hears of.
type parked struct {
	mu     sync.Mutex
	grants map[fencing.Stamp]chan fencing.Grant
}

func newParked() *parked { return &parked{grants: map[fencing.Stamp]chan fencing.Grant{}} }

func (p *parked) await(stamp fencing.Stamp) chan fencing.Grant {
	p.mu.Lock()
	defer p.mu.Unlock()
	granted := make(chan fencing.Grant, 1)
	p.grants[stamp] = granted
	return granted
}

func (p *parked) Granted(g fencing.Grant, _ fencing.Instant, _ time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if granted := p.grants[g.Stamp]; granted != nil {
		delete(p.grants, g.Stamp)
		granted <- g
	}
}

func (p *parked) Replaced(fencing.Name, fencing.Stamp)           {}
func (p *parked) Ask(fencing.Name, fencing.Stamp)                {}
func (p *parked) Has([]fencing.Name, time.Time, []fencing.Entry) {}
func (p *parked) Gap()                                           {}

// BenchmarkHandOff lets callers take turns on one name: ns/op is a turn. p50 and
// p99 are of the time from the call of Release until the next holder is awake.
func BenchmarkHandOff(b *testing.B) {
	for _, hold := range []time.Duration{0, time.Millisecond} {
		b.Run("hold "+hold.String(), func(b *testing.B) { benchmarkHandOff(b, hold) })
	}
}

func benchmarkHandOff(b *testing.B, hold time.Duration) {
	s := open(b, Options{Dir: b.TempDir()})
	listener := newParked()
	s.Listen(listener)
	ctx := context.Background()
	var (
		turns, done = 0, make(chan struct{})
		left        time.Time
		latencies   []time.Duration
		group       sync.WaitGroup
	)
	// Only the holder uses turns, left and latencies.
	b.ResetTimer()
	for range 32 {
		group.Go(func() {
			for {
				r := acquire("contended", time.Minute)
				r.Wait = time.Minute
				granted := listener.await(r.Stamp)
				out, err := s.Do(ctx, r)
				if err != nil {
					b.Error(err)
					return
				}
				if out.Waits() {
					select {
					case <-granted:
					case <-done:
						return
					}
				}
				if !left.IsZero() {
					latencies = append(latencies, time.Since(left))
				}
				if turns++; turns == b.N {
					close(done)
					return
				}
				if turns > b.N {
					return
				}
				if hold > 0 {
					<-time.After(hold) // the work under the lock
				}
				left = time.Now()
				if _, err := s.Do(ctx, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
	b.StopTimer()
	if slices.Sort(latencies); len(latencies) > 0 {
		b.ReportMetric(float64(latencies[len(latencies)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(latencies[len(latencies)*99/100].Microseconds()), "p99-µs")
	}
}
