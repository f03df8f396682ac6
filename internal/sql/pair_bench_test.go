package sql

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

func benchStore(b *testing.B, o Options) *Store {
	b.Helper()
	if _, err := Init(b.Context(), o.URL, Rights{}); err != nil {
		b.Fatal(err)
	}
	s, err := Open(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

// pairs has callers acquire and release names of their own, b.N times in all.
func pairs(b *testing.B, callers int, pair func(name fencing.Name) error) {
	b.Helper()
	var left sync.WaitGroup
	b.ResetTimer()
	for c := range callers {
		n := b.N / callers
		if c < b.N%callers {
			n++
		}
		left.Go(func() {
			for i := range n {
				if err := pair(fencing.Name(fmt.Sprintf("bench/%d/%d", c, i%4))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	left.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}

// BenchmarkPair compares an acquire and a release of the store with what is written by hand: a unique key, INSERT and DELETE.
func BenchmarkPair(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		for name, after := range map[string]time.Duration{"store": 0, "asking": -1} {
			b.Run(fmt.Sprintf("%s/%d", name, callers), func(b *testing.B) {
				s := benchStore(b, Options{URL: sqltest.Postgres(b).Database(b), aloneAfter: after})
				pairs(b, callers, func(name fencing.Name) error {
					lease := fencing.NewLeaseID(time.Now())
					_, err := s.Do(b.Context(), fencing.AcquireRequest{Name: name, Lease: lease, Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: 30 * time.Second})
					if err == nil {
						_, err = s.Do(b.Context(), fencing.ReleaseRequest{Name: name, Lease: lease})
					}
					return err
				})
			})
		}
		b.Run(fmt.Sprintf("by hand/%d", callers), func(b *testing.B) {
			url := sqltest.Postgres(b).Database(b)
			conns := make(chan *pgx.Conn, callers)
			for range min(callers, 100) {
				conn, err := pgx.Connect(b.Context(), url)
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close(b.Context())
				conns <- conn
			}
			conn := <-conns
			if _, err := conn.Exec(b.Context(), "create table lock (name text primary key, token bigint, lease text, owner text, expires_at timestamptz); create sequence tokens"); err != nil {
				b.Fatal(err)
			}
			conns <- conn
			pairs(b, callers, func(name fencing.Name) error {
				conn := <-conns
				defer func() { conns <- conn }()
				var token int64
				err := conn.QueryRow(b.Context(), `insert into lock values ($1, nextval('tokens'), $2, '', now() + interval '30 s')
					on conflict (name) do update set token = excluded.token, lease = excluded.lease, expires_at = excluded.expires_at where lock.expires_at < now() returning token`, string(name), "x").Scan(&token)
				if err == nil {
					_, err = conn.Exec(b.Context(), "delete from lock where name = $1 and token = $2", string(name), token)
				}
				return err
			})
		})
	}
}

// BenchmarkBesideAGuard is BenchmarkPair for 64 callers, without and with a transaction that guards a lease of another name all the
// time, and says how long the slowest hundredth of the acquires takes at least.
func BenchmarkBesideAGuard(b *testing.B) {
	for _, guarded := range []bool{false, true, false, true} {
		b.Run(fmt.Sprintf("guarded=%v", guarded), func(b *testing.B) {
			server := sqltest.Postgres(b)
			url := server.Database(b)
			s := benchStore(b, Options{URL: url})
			if guarded {
				r := fencing.AcquireRequest{Name: "guarded", Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: time.Hour}
				out, err := s.Do(b.Context(), r)
				if err != nil {
					b.Fatal(err)
				}
				tx, err := server.DB(b, url).BeginTx(b.Context(), nil)
				if err != nil {
					b.Fatal(err)
				}
				defer tx.Rollback()
				if _, err := tx.ExecContext(b.Context(), "select fencepost.guard($1, $2)", string(r.Name), int64(out.Holder.Token)); err != nil {
					b.Fatal(err)
				}
			}
			var mu sync.Mutex
			var took []time.Duration
			pairs(b, 64, func(name fencing.Name) error {
				lease, began := fencing.NewLeaseID(time.Now()), time.Now()
				_, err := s.Do(b.Context(), fencing.AcquireRequest{Name: name, Lease: lease, Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: 30 * time.Second})
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
				if err == nil {
					_, err = s.Do(b.Context(), fencing.ReleaseRequest{Name: name, Lease: lease})
				}
				return err
			})
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
