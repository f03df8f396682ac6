package sql

import (
	"fmt"
	"testing"
	"time"

	"fencepost/internal/sql/sqltest"
)

// Connections are killed wherever they are in a turn: every commit is decided, and the rows of leases are the holders.
func TestKilledConnectionsMariaDB(t *testing.T) {
	t.Parallel()
	place := newPlace(t, sqltest.MariaDB(t))
	o := Options{URL: place.url, Logger: testLog(t)}
	a, b := openGateway(t, o), openGateway(t, o)
	w := startWork(t, 16, 8, a, b)
	kills := 0
	for began := time.Now(); kills < 60 && time.Since(began) < time.Minute; {
		rows, err := place.db.QueryContext(t.Context(), `select id from information_schema.processlist
			where db = database() and id <> connection_id() and command = 'Query' and info like ? limit 1`, []string{"commit%", "insert%", "%for update%", "%"}[kills%4])
		if err != nil {
			t.Fatal(err)
		}
		var ids []int
		for rows.Next() {
			var id int
			if err := rows.Scan(&id); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		rows.Close()
		for _, id := range ids {
			if _, err := place.db.Exec(fmt.Sprintf("kill %d", id)); err == nil { // else it has ended by itself
				kills++
			}
		}
	}
	w.end()
	t.Logf("%d connections killed", kills)
	if kills == 0 || w.granted.Load() == 0 {
		t.Error("nothing was killed, or granted")
	}
	theSame(t, o, a, b)
	place.compareFresh(t, o)
}

// compareFresh compares the rows of leases with what a gateway comes to that starts now.
func (p *place) compareFresh(t testing.TB, o Options) {
	t.Helper()
	s := openGateway(t, o)
	var want []string
	if err := s.peek(t.Context(), func() { want = holders(s.memory.Machine) }); err != nil {
		t.Fatal(err)
	}
	p.compare(t, want, p.leases(t, p.db))
}

// A gateway that starts from a snapshot comes to the same as those that carried the log out.
func TestSnapshotsMariaDB(t *testing.T) {
	t.Parallel()
	place := newPlace(t, sqltest.MariaDB(t))
	o := Options{URL: place.url, Logger: testLog(t), snapshotAt: 50_000}
	a, b := openGateway(t, o), openGateway(t, o)
	w := startWork(t, 16, 200, a, b)
	var cut uint64
	await(t, "snapshots are written, and the log cut", func() bool {
		err := place.db.QueryRow("select coalesce(min(seq), 0) from log").Scan(&cut)
		return err == nil && cut > 2*keptBehind
	})
	c := openGateway(t, o)
	w.end()
	theSame(t, o, a, b, c)
	place.compareFresh(t, o)
}
