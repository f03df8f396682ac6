package sql

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// While a user's transaction is open that has done something which its rights allow, at the isolation that is the default, other names
// are granted and leases renewed; but for a statement that writes what it reads from the view, as the documents say.
func TestUsersOfMariaDB(t *testing.T) {
	t.Parallel()
	for what, do := range map[string]func(t *testing.T, tx *sql.Tx, a *Store, g grant){
		"guard of a lease that has ended since the snapshot": func(t *testing.T, tx *sql.Tx, a *Store, g grant) {
			var n int
			if err := tx.QueryRow("select count(*) from leases").Scan(&n); err != nil {
				t.Fatal(err)
			}
			mustDo(t, a, fencing.ReleaseRequest{Name: "x", Lease: g.lease})
			var ends sql.NullString
			t.Log(tx.QueryRow("select guard('x', ?)", g.token).Scan(&ends))
		},
		"guard in an update": func(t *testing.T, tx *sql.Tx, a *Store, g grant) {
			if _, err := tx.Exec("update written set text = 'b' where guard('x', ?) is not null", g.token); err != nil {
				t.Fatal(err)
			}
		},
		"guard in set": func(t *testing.T, tx *sql.Tx, a *Store, g grant) {
			if _, err := tx.Exec("set @until = guard('x', ?)", g.token); err != nil {
				t.Fatal(err)
			}
		},
		"guard in insert select": func(t *testing.T, tx *sql.Tx, a *Store, g grant) {
			if _, err := tx.Exec("insert into written select guard('x', ?)", g.token); err != nil {
				t.Fatal(err)
			}
		},
		"the view in insert select": func(t *testing.T, tx *sql.Tx, a *Store, g grant) {
			if _, err := tx.Exec("insert into written select name from leases where name = 'x'"); err != nil {
				t.Fatal(err)
			}
		},
		"the view in update": func(t *testing.T, tx *sql.Tx, a *Store, g grant) {
			if _, err := tx.Exec("update written set text = (select fencing_token from leases where name = 'x')"); err != nil {
				t.Fatal(err)
			}
		},
		"the view for update": func(t *testing.T, tx *sql.Tx, a *Store, g grant) {
			if _, err := tx.Exec("select * from leases where name = 'x' for update"); err != nil {
				t.Fatal(err)
			}
		},
		"guard selected": func(t *testing.T, tx *sql.Tx, a *Store, g grant) { // as it is to be
			if _, err := tx.Exec("select guard('x', ?)", g.token); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			place := newPlace(t, sqltest.MariaDB(t))
			if _, err := place.db.Exec("create table written (text varchar(100)) engine = InnoDB; insert into written values ('a')"); err != nil {
				t.Fatal(err)
			}
			a := openGateway(t, Options{URL: place.url, Logger: testLog(t)})
			g := acquire(t, a, "x", time.Minute)
			tx, err := place.db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			do(t, tx, a, g)
			if _, err := a.Do(t.Context(), fencing.RenewRequest{Name: "x", Lease: g.lease}); err != nil && code(err) != fencing.CodeLeaseLost {
				t.Errorf("a renewal: %v", err)
			}
			_, err = a.Do(t.Context(), request(fencing.Name(fmt.Sprintf("y/%d", g.token)), time.Minute))
			if (err != nil) != strings.HasPrefix(what, "the view in") {
				t.Errorf("a grant of another name: %v", err)
			}
		})
	}
}

// A transaction that alone is at SERIALIZABLE holds up no renewal, and no grant either unless its token was refused and is above all
// live ones, as the documents say.
func TestOneSerializableTransaction(t *testing.T) {
	t.Parallel()
	for what, ask := range map[string]string{"guard": "select guard('x', ?)", "refused token": "select guard('x', ? + 1000000)", "view": "select max(name) from leases where fencing_token = ?"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			place := newPlace(t, sqltest.MariaDB(t))
			a := openGateway(t, Options{URL: place.url, Logger: testLog(t)})
			g := acquire(t, a, "x", time.Minute)
			tx, err := place.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			var is sql.NullString
			t.Log(tx.QueryRow(ask, g.token).Scan(&is))
			if _, err := a.Do(t.Context(), fencing.RenewRequest{Name: "x", Lease: g.lease}); err != nil {
				t.Errorf("a renewal: %v", err)
			}
			if _, err := a.Do(t.Context(), request("y", time.Minute)); (err != nil) != (what == "refused token") {
				t.Errorf("a grant of another name: %v", err)
			}
		})
	}
}
