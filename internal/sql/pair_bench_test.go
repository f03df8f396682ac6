package sql

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"fencepost/internal/embedded"
	"fencepost/internal/fencing"
	"fencepost/internal/seed"
	"fencepost/internal/sql/sqltest"
)

// benchRound is how long each of those that are compared has at a time.
const benchRound = 500 * time.Millisecond

// BenchmarkCompared prints how many pairs of an acquire and a release a second there are, for callers with names of their own: by the
// store with one, two and four gateways, by what is written by hand (a unique key, INSERT … ON CONFLICT and DELETE, a connection a
// caller, 100 at most), and by the embedded store. They take turns, FENCEPOST_ROUNDS times (5); what is printed are medians. Each is
// also measured with a millisecond between the gateway and the database.
//
//	go test ./internal/sql -run xxx -bench Compared -benchtime 1x
func BenchmarkCompared(b *testing.B) {
	b.Run("PostgreSQL", func(b *testing.B) { compared(b, sqltest.Postgres(b), byHandPostgres) })
	b.Run("MariaDB", func(b *testing.B) { compared(b, sqltest.MariaDB(b), byHandMariaDB) })
}

func compared(b *testing.B, server *sqltest.Server, byHand func(b *testing.B, url string, connections int) pairing) {
	rounds := int(seed.Number(b, "FENCEPOST_ROUNDS", 5))
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "round trip\tcallers\tby hand\tstore\tto by hand\t2 gateways\t4 gateways\tembedded\tto embedded\t")
	for _, delayed := range []bool{false, true} {
		through := func(url string) string { return url }
		trip := "loopback"
		if delayed {
			trip = "1 ms"
			through = func(url string) string { return behind(b, url, server.Port(), time.Millisecond/2) }
		}
		for _, callers := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s, %d callers", trip, callers), func(b *testing.B) {
				one := gatewayPairs(b, through(initialised(b, server.Database(b))), 1)
				two, four := gatewayPairs(b, through(initialised(b, server.Database(b))), 2), gatewayPairs(b, through(initialised(b, server.Database(b))), 4)
				hand := []pairing{byHand(b, through(server.Database(b)), min(callers, 100))}
				local, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { local.Close() })
				alone := []pairing{storePair(local)}
				rates := map[string][]float64{}
				for range rounds {
					for name, pairs := range map[string][]pairing{"store": one, "2": two, "4": four, "hand": hand, "embedded": alone} {
						rates[name] = append(rates[name], rate(b, callers, pairs))
					}
				}
				ratio := func(of string) float64 {
					all := make([]float64, rounds)
					for i := range all {
						all[i] = rates["store"][i] / rates[of][i]
					}
					return median(all)
				}
				fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f\t%.2f\t%.0f\t%.0f\t%.0f\t%.2f\t\n", trip, callers, median(rates["hand"]), median(rates["store"]), ratio("hand"),
					median(rates["2"]), median(rates["4"]), median(rates["embedded"]), ratio("embedded"))
			})
		}
	}
	w.Flush()
	fmt.Printf("\n%s\n%s", b.Name(), table.String())
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// pairing acquires and releases a name.
type pairing func(name fencing.Name) error

func storePair(s fencing.Store) pairing {
	return func(name fencing.Name) error {
		r := request(name, 30*time.Second)
		_, err := s.Do(context.Background(), r)
		if err == nil {
			_, err = s.Do(context.Background(), fencing.ReleaseRequest{Name: name, Lease: r.Lease})
		}
		return err
	}
}

func gatewayPairs(b *testing.B, url string, gateways int) (all []pairing) {
	for range gateways {
		all = append(all, storePair(openGateway(b, Options{URL: url})))
	}
	return all
}

func byHandPostgres(b *testing.B, url string, connections int) pairing {
	conns := make(chan *pgx.Conn, connections)
	for range connections {
		conn, err := pgx.Connect(b.Context(), url)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { conn.Close(context.Background()) })
		conns <- conn
	}
	conn := <-conns
	if _, err := conn.Exec(b.Context(), "create table lock (name text primary key, token bigint, lease text, owner text, expires_at timestamptz); create sequence tokens"); err != nil {
		b.Fatal(err)
	}
	conns <- conn
	return func(name fencing.Name) error {
		conn := <-conns
		defer func() { conns <- conn }()
		var token int64
		err := conn.QueryRow(context.Background(), `insert into lock values ($1, nextval('tokens'), $2, '', now() + interval '30 s')
			on conflict (name) do update set token = excluded.token, lease = excluded.lease, expires_at = excluded.expires_at where lock.expires_at < now() returning token`, string(name), "x").Scan(&token)
		if err == nil {
			_, err = conn.Exec(context.Background(), "delete from lock where name = $1 and token = $2", string(name), token)
		}
		return err
	}
}

func byHandMariaDB(b *testing.B, url string, connections int) pairing {
	db, err := sql.Open(sqltest.DSN(url))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	if _, err := db.Exec("create table lock_ (name varchar(255) primary key, token bigint not null auto_increment unique, lease text, owner text, expires_at datetime(6))"); err != nil {
		b.Fatal(err)
	}
	return func(name fencing.Name) error {
		_, err := db.Exec("insert into lock_ (name, lease, owner, expires_at) values (?, ?, '', utc_timestamp(6) + interval 30 second)", string(name), "x")
		if err == nil {
			_, err = db.Exec("delete from lock_ where name = ? and lease = ?", string(name), "x")
		}
		return err
	}
}

// rate returns how many pairs a second callers get through in a round, the first ones by the first way, and so on.
func rate(b *testing.B, callers int, ways []pairing) float64 {
	b.Helper()
	counts := make([]int, callers)
	var all sync.WaitGroup
	began := time.Now()
	for c := range callers {
		pair := ways[c%len(ways)]
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

// behind returns a URL by which a server answers later: each byte takes so long on its way, in both directions.
func behind(b *testing.B, url string, port int, late time.Duration) string {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { listener.Close() })
	address := fmt.Sprintf("127.0.0.1:%d", port)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", address)
			if err != nil {
				client.Close()
				continue
			}
			go passOn(server, client, late)
			go passOn(client, server, late)
		}
	}()
	return strings.Replace(url, address, listener.Addr().String(), 1)
}

func passOn(to, from net.Conn, late time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			data := make([]byte, 64<<10)
			n, err := from.Read(data)
			if err != nil {
				return
			}
			pieces <- piece{time.Now().Add(late), data[:n]}
		}
	}()
	defer to.Close()
	for p := range pieces {
		time.Sleep(time.Until(p.due)) // the delay itself
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	from.Close()
	for range pieces { // nobody wants them any more
	}
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
				sum += rate(b, 64, []pairing{pair})
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(sum/float64(b.N), "pairs/s")
		})
	}
}
