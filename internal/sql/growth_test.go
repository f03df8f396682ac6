package sql

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/seed"
	"fencepost/internal/sql/sqltest"
)

// However many pairs there were, the tables stay small, with autovacuum at work: snapshots take the place of the log. FENCEPOST_PAIRS says
// how many there are.
func TestSystemGrowth(t *testing.T) {
	server := sqltest.StartPostgres(t, "autovacuum_naptime = 1s", "max_wal_size = 256MB")
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t), snapshotAt: 4 << 20}
	a, b := openGateway(t, o), openGateway(t, o)
	db := server.DB(t, url)
	all := seed.Number(t, "FENCEPOST_PAIRS", 60_000)
	var done atomic.Uint64
	w := &work{t: t, stores: []*Store{a, b}, stop: func() {}} // a busy machine may have a caller wait for longer than it is answered
	for c := range 64 {
		s := w.stores[c%2]
		w.all.Go(func() {
			for i := 0; done.Add(1) <= all && !t.Failed(); i++ {
				r := request(fencing.Name(fmt.Sprintf("growth/%d/%d", c, i%8)), time.Minute)
				_, err := w.until(r, s)
				if err == nil {
					_, err = w.until(fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}, s)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	w.end()
	size := func(table string) (bytes int64) {
		if err := db.QueryRowContext(t.Context(), "select pg_total_relation_size('fencepost."+table+"')").Scan(&bytes); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	await(t, "the log is cut", func() bool {
		var entries int64
		if err := db.QueryRowContext(t.Context(), "select sum(length(entry)) from fencepost.log").Scan(&entries); err != nil {
			t.Fatal(err)
		}
		return entries < 5*4<<20
	})
	state := int64(len(decodedState(t, mustState(t, a))))
	t.Logf("%d pairs: the log takes %d bytes, snapshots %d, leases %d; the state has %d", all, size("log"), size("snapshot"), size("lease"), state)
	for table, most := range map[string]int64{"log": 100 << 20, "snapshot": 50<<20 + 20*state, "lease": 20 << 20} {
		if size(table) > most {
			t.Errorf("the table %s takes %d bytes", table, size(table))
		}
	}
	theSame(t, o, a, b)
}

func mustState(t *testing.T, s *Store) (state []byte) {
	await(t, "no snapshot is being written", func() bool {
		state, _ = stateOf(t, s)
		return state != nil
	})
	return state
}
