package sql

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// benchRound is how long callers have at a time.
const benchRound = 500 * time.Millisecond

// pairing acquires and releases a name.
type pairing func(name fencing.Name) error

// rate returns how many pairs a second callers get through in a round.
func rate(b *testing.B, callers int, pair pairing) float64 {
	b.Helper()
	counts := make([]int, callers)
	var all sync.WaitGroup
	began := time.Now()
	for c := range callers {
		all.Go(func() {
			for time.Since(began) < benchRound {
				if err := pair(fencing.Name(fmt.Sprintf("bench/%d/%d", c, counts[c]%4))); err != nil {
					b.Error(err)
					return
				}
				counts[c]++
			}
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return float64(sum) / took
}

// BenchmarkBesideAGuard has 64 callers, without and with a transaction that guards a lease of another name all the time, and says how
// long the slowest hundredth of the acquires takes at least.
func BenchmarkBesideAGuard(b *testing.B) {
	for _, guarded := range []bool{false, true, false, true} {
		b.Run(fmt.Sprintf("guarded=%v", guarded), func(b *testing.B) {
			server := sqltest.Postgres(b)
			url := initialised(b, server.Database(b))
			s := openGateway(b, Options{URL: url})
			if guarded {
				g := acquire(b, s, "guarded", time.Hour)
				tx, err := server.DB(b, url).BeginTx(b.Context(), nil)
				if err != nil {
					b.Fatal(err)
				}
				defer tx.Rollback()
				if _, err := tx.ExecContext(b.Context(), "select fencepost.guard($1, $2)", "guarded", int64(g.token)); err != nil {
					b.Fatal(err)
				}
			}
			var mu sync.Mutex
			var took []time.Duration
			pair := func(name fencing.Name) error {
				r, began := request(name, 30*time.Second), time.Now()
				_, err := s.Do(context.Background(), r)
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
				if err == nil {
					_, err = s.Do(context.Background(), fencing.ReleaseRequest{Name: name, Lease: r.Lease})
				}
				return err
			}
			sum := 0.0
			for b.Loop() {
				sum += rate(b, 64, pair)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(sum/float64(b.N), "pairs/s")
		})
	}
}
