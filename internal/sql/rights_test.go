package sql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// A user with the rights of Init can do all that gateways do: what a turn needs, snapshots, cutting the log, and looking how the
// server is.
func TestRightsOfGateway(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := server.Database(t)
	_, as := gatewayUser(t, server, url)
	var stores []*Store
	for range 2 {
		s, err := Open(context.Background(), Options{URL: as, MaxSkew: time.Minute, snapshotAt: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		stores = append(stores, s)
	}
	one, two := stores[0], stores[1]
	const name = fencing.Name("orders/42")
	lease, other := fencing.NewLeaseID(time.Now()), fencing.NewLeaseID(time.Now())
	acquire := fencing.AcquireRequest{Name: name, Lease: lease, TTL: time.Minute, Hold: 1, Stamp: "a"}
	token := mustDo(t, one, acquire).Holder.Token
	mustDo(t, two, fencing.RenewRequest{Name: name, Lease: lease, TTL: time.Hour})
	mustDo(t, two, fencing.AdmitRequest{Name: name, Token: token, Slot: fencing.NoSlot})
	mustDo(t, one, fencing.ReleaseRequest{Name: name, Lease: lease})
	acquire.Lease = other
	next := mustDo(t, two, acquire).Holder.Token
	mustDo(t, one, fencing.BreakRequest{Name: name, Token: next})
	if err := one.Heartbeat(t.Context(), []fencing.Name{name}); err != nil {
		t.Error(err)
	}
	if _, err := one.List(t.Context(), fencing.ListRequest{Limit: 10}); err != nil {
		t.Error(err)
	}
	if _, err := one.Examine(t.Context()); err != nil {
		t.Error(err)
	}
	db := server.DB(t, url)
	number := func(query string) (n int) {
		t.Helper()
		if err := db.QueryRow(query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	await(t, "a log that is cut behind a snapshot", func() bool {
		lease := fencing.NewLeaseID(time.Now())
		mustDo(t, one, fencing.AcquireRequest{Name: "other", Lease: lease, TTL: time.Minute, Hold: 1, Stamp: "b"})
		mustDo(t, two, fencing.ReleaseRequest{Name: "other", Lease: lease})
		return number("select coalesce(min(seq), 0) from fencepost.log") > 1 && number("select count(*) from fencepost.snapshot where no = 0") > 0
	})

	// It needs no more: it can't make or change tables, nor change what is in the log.
	asUser := server.DB(t, as)
	for _, statement := range []string{
		"update fencepost.log set entry = ''", "update fencepost.store set version = 7", "delete from fencepost.store", "insert into fencepost.store values (1, 1, 1)",
		"delete from fencepost.snapshotter", "create table fencepost.mine ()", "drop table fencepost.log", "truncate fencepost.log", "select fencepost.guard('a', 1)",
	} {
		if _, err := asUser.Exec(statement); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

// An application's user looks at leases and guards them, and can do nothing else.
func TestRightsOfApplication(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url, user, nobody := server.Database(t), server.User(t, "secret"), server.User(t, "secret")
	if _, err := Init(t.Context(), url, Rights{Application: user}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	lease := fencing.NewLeaseID(time.Now())
	token := mustDo(t, s, fencing.AcquireRequest{Name: "orders/42", Lease: lease, TTL: time.Minute, Hold: 1, Stamp: "a"}).Holder.Token
	asUser := server.DB(t, sqltest.As(url, user, "secret"))
	guard := fmt.Sprintf("select fencepost.guard('orders/42', %d)", token)
	var found int64
	if err := asUser.QueryRow("select fencing_token from fencepost.leases where name = 'orders/42'").Scan(&found); err != nil || found != int64(token) {
		t.Errorf("the view shows %d, %v; want %d", found, err, token)
	}
	if _, err := asUser.Exec(guard); err != nil {
		t.Error(err)
	}
	refused := func(of *sql.DB, statements ...string) {
		t.Helper()
		for _, statement := range statements {
			if _, err := of.Exec(statement); err == nil || !strings.Contains(err.Error(), "42501") {
				t.Errorf("%s: %v", statement, err)
			}
		}
	}
	refused(asUser, "select * from fencepost.lease", "select * from fencepost.log", "select * from fencepost.snapshot", "select * from fencepost.store for update",
		"delete from fencepost.leases", "select fencepost.turn('{}', 100)", "delete from fencepost.lease")
	refused(server.DB(t, sqltest.As(url, nobody, "secret")), "select * from fencepost.leases", guard, "select * from fencepost.log")
}

// To make the tables again changes nothing, keeps what users may do, and says so. What is printed does the same.
func TestInitAgain(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url, user := server.Database(t), server.User(t, "secret")
	want := []Outcome{{Made: true, Version: schemaVersion}, {Version: schemaVersion}, {Raised: true, Version: schemaVersion}, {Version: schemaVersion}}
	db := server.DB(t, url)
	for i, rights := range []Rights{{Gateway: user}, {}, {}, {}} {
		if i == 2 {
			if _, err := db.Exec("update fencepost.store set version = 0"); err != nil {
				t.Fatal(err)
			}
		}
		is, err := Init(t.Context(), url, rights)
		if err != nil || is != want[i] {
			t.Errorf("%d: %+v, %v; want %+v", i, is, err, want[i])
		}
	}
	s, err := Open(context.Background(), Options{URL: sqltest.As(url, user, "secret")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	printed := server.Database(t)
	text, err := Script(printed, Rights{Gateway: user, Application: `odd "name`})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, `to "odd ""name";`) || strings.Contains(text, "USER") {
		t.Error(text)
	}
	text, _ = Script(printed, Rights{Gateway: user})
	if _, err := server.DB(t, printed).Exec(text); err != nil {
		t.Fatal(err)
	}
	if is, err := Init(t.Context(), printed, Rights{}); err != nil || is != want[1] {
		t.Errorf("after what was printed: %+v, %v", is, err)
	}
}

// Tables of a newer version are left alone.
func TestInitRefusesNewer(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := server.Database(t)
	if _, err := Init(t.Context(), url, Rights{}); err != nil {
		t.Fatal(err)
	}
	db := server.DB(t, url)
	if _, err := db.Exec("update fencepost.store set version = version + 1; drop view fencepost.leases"); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(t.Context(), url, Rights{}); err == nil || !strings.Contains(err.Error(), "newer version") {
		t.Error(err)
	}
	if _, err := db.Exec("select * from fencepost.leases"); err == nil {
		t.Error("the view is there again")
	}
	if _, err := Init(t.Context(), url, Rights{Gateway: "nobody"}); err == nil {
		t.Error("rights were given")
	}
}

// Rights are given to users who are there: none is made, as MariaDB would without a password.
func TestRightsOfNobody(t *testing.T) {
	t.Parallel()
	for _, server := range []*sqltest.Server{sqltest.Postgres(t), sqltest.MariaDB(t)} {
		url := server.Database(t)
		if _, err := Init(t.Context(), url, Rights{Gateway: "nobody_there"}); err == nil {
			t.Errorf("%s: somebody who is not there gets rights", url)
		}
	}
	var n int
	db := sqltest.MariaDB(t).DB(t, sqltest.MariaDB(t).Database(t))
	if err := db.QueryRow("select count(*) from mysql.user where user = 'nobody_there'").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d users were made, %v", n, err)
	}
}
