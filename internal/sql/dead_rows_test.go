package sql

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// A transaction elsewhere that stays open keeps dead rows from being removed. What a turn reads must not grow with them, and no turn
// reads a table whole.
func TestOpenTransactionElsewhere(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	db := server.DB(t, url)
	a := openGateway(t, Options{URL: url, Logger: testLog(t), aloneAfter: -1}) // every turn is one of two messages
	open, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback()
	for _, statement := range []string{"set transaction isolation level repeatable read", "select count(*) from fencepost.lease"} {
		if _, err := open.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	const pairs = 300
	entries := int64(0)
	slice := func() (read int64) {
		before := int64(0)
		count := func() (whole, byKey int64) {
			err := db.QueryRowContext(t.Context(), `select sum(seq_tup_read), sum(idx_tup_fetch) + (select sum(idx_tup_read) from pg_stat_user_indexes where schemaname = 'fencepost')
				from pg_stat_user_tables where schemaname = 'fencepost'`).Scan(&whole, &byKey)
			if err != nil {
				t.Fatal(err)
			}
			return whole, byKey
		}
		written := func() (n int64) {
			if err := db.QueryRowContext(t.Context(), "select n_tup_ins from pg_stat_user_tables where relid = 'fencepost.log'::regclass").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		_, before = count()
		for range pairs {
			g := acquire(t, a, "a", time.Minute)
			if _, err := a.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: g.lease}); err != nil {
				t.Fatal(err)
			}
		}
		entries += 2 * pairs
		await(t, "the statistics are written", func() bool { return written() >= entries })
		whole, after := count()
		if whole > 100 {
			t.Errorf("%d rows were read by tables read whole", whole)
		}
		return after - before
	}
	first := slice()
	var last int64
	for range 4 {
		last = slice()
	}
	t.Logf("%d rows read for %d pairs at first, %d at last", first, pairs, last)
	if last > first+first/3 {
		t.Errorf("%d rows are read for %d pairs, and %d were at first", last, pairs, first)
	}
}
