package sql

import (
	_ "embed"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// postgresTables1 are the tables and functions of version 1.
//
//go:embed testdata/postgres_1.sql
var postgresTables1 string

// Tables of version 1, with leases and a log in them, are of no use before store init has brought them up to date, and then the gateways go on.
func TestTablesOfVersion1(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		o := Options{URL: p.url, Logger: testLog(t)}
		before, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		held := acquire(t, before, "held", time.Minute)
		shared := request("shared", time.Minute)
		shared.Mode, shared.Limit = fencing.ModeShared, 2
		mustDo(t, before, shared)
		if err := before.Close(); err != nil {
			t.Fatal(err)
		}
		old := []string{"update store set version = 1"}
		if p.postgres() {
			old = append(statements(postgresTables1), "update fencepost.store set version = 1")
		}
		for _, statement := range old {
			if _, err := p.db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		if s, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "then run gateway store init of this version") {
			if err == nil {
				s.Close()
			}
			t.Fatalf("they are used: %v", err)
		}
		if is, err := Init(t.Context(), p.url, Rights{}); err != nil || !is.Raised {
			t.Fatalf("%+v, %v", is, err)
		}
		a := openGateway(t, o)
		mustDo(t, a, fencing.RenewRequest{Name: "held", Lease: held.lease, Owner: "café"})
		mustDo(t, a, fencing.RenewRequest{Name: "shared", Lease: shared.Lease})
		acquire(t, a, "more", time.Minute)
		p.compareFresh(t, o)
		theSame(t, o, a, openGateway(t, o))
	})
}

// Where some tables are there and others are not, as where a restore was broken off, store init makes none, and says what is missing.
func TestInitOfAPart(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		schema := ""
		if p.postgres() {
			schema = "fencepost."
		}
		for _, table := range []string{"log", "store"} {
			if _, err := p.db.ExecContext(t.Context(), "alter table "+schema+table+" rename to elsewhere"); err != nil {
				t.Fatal(err)
			}
			_, err := Init(t.Context(), p.url, Rights{})
			for _, says := range []string{"missing: " + table, "if a restore was broken off, repeat it", "there: lease, "} {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("without %s, not %q: %v", table, says, err)
				}
			}
			if _, err := p.db.ExecContext(t.Context(), "alter table "+schema+"elsewhere rename to "+table); err != nil { // fails if it was made
				t.Fatal(err)
			}
			if is, err := Init(t.Context(), p.url, Rights{}); err != nil || is.Made {
				t.Errorf("of the whole: %+v, %v", is, err)
			}
		}
	})
}

// An init that was broken off on MariaDB or MySQL, where each statement counts at once, may be repeated; tables of something else stay as they are.
func TestInitThatWasBrokenOff(t *testing.T) {
	t.Parallel()
	server := sqltest.MariaDB(t)
	url := server.Database(t)
	m, err := newDatabase(url)
	if err != nil {
		t.Fatal(err)
	}
	all := m.script(Rights{})
	for n := range all {
		url := server.Database(t)
		db := server.DB(t, url)
		for _, statement := range all[:n] {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Init(t.Context(), url, Rights{}); err != nil {
			t.Fatalf("behind %d statements: %v", n, err)
		}
		acquire(t, openGateway(t, Options{URL: url, Logger: testLog(t)}), "a", time.Minute)
	}
	if _, err := server.DB(t, url).ExecContext(t.Context(), "create table log (line text)"); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(t.Context(), url, Rights{}); err == nil || !strings.Contains(err.Error(), "if these tables are of something else") {
		t.Errorf("a table of something else: %v", err)
	}
}

// Who may not make the tables is told as whom to run store init, and not to run it.
func TestInitWithoutRights(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		server := sqltest.MariaDB(t)
		if p.postgres() {
			server = sqltest.Postgres(t)
		}
		user, as := gatewayUser(t, server, p.url)
		_, err := Init(t.Context(), as, Rights{Gateway: user})
		if err == nil || !strings.Contains(err.Error(), "run it as who may make a schema") || strings.Contains(err.Error(), "-role") {
			t.Errorf("it says %v", err)
		}
	})
}
