package sql

import (
	"bytes"
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// broken is a store of a gateway whose user has the rights of Init, on a server of its own.
type broken struct {
	t      testing.TB
	server *sqltest.Server
	url    string // of a user who may do anything
	user   string // the gateway's
	as     string // its URL
}

// do carries out statements, as who may do anything. {USER} and {DB} stand for those of the gateway.
func (b *broken) do(statements ...string) {
	b.t.Helper()
	db := b.server.DB(b.t, b.url)
	defer db.Close()
	b.doOn(db, statements...)
}

// doOn is do, on connections that stay.
func (b *broken) doOn(db *sql.DB, statements ...string) {
	b.t.Helper()
	database := b.url[strings.LastIndex(b.url, "/")+1:]
	database, _, _ = strings.Cut(database, "?")
	for _, s := range statements {
		if _, err := db.Exec(strings.NewReplacer("{USER}", b.user, "{DB}", database).Replace(s)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// cutting ends the connections of the gateway's user, by the kind of server.
var cutting = map[string]string{
	kindPostgres: "select pg_terminate_backend(pid) from pg_stat_activity where usename = '{USER}'",
	kindMySQL:    "kill user {USER}@'127.0.0.1'",
}

// cut ends the connections of the gateway's user.
func (b *broken) cut() {
	b.t.Helper()
	b.do(cutting[Kind(b.url)])
}

// crowd has another user, and one administrator, take all connections that the server has for anybody, also those of the gateway.
func (b *broken) crowd() (leave func()) {
	b.t.Helper()
	_, as := gatewayUser(b.t, b.server, b.url)
	admin := b.server.DB(b.t, b.url)
	admin.SetMaxOpenConns(1)
	var room int
	if err := admin.QueryRow(map[string]string{
		kindPostgres: "select current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int",
		kindMySQL:    "select @@max_connections",
	}[Kind(b.url)]).Scan(&room); err != nil {
		b.t.Fatal(err)
	}
	all := []*sql.DB{admin}
	await(b.t, "all connections are taken", func() bool {
		db := b.server.DB(b.t, as)
		db.SetMaxOpenConns(1)
		if db.Ping() == nil {
			all = append(all, db)
		} else { // the gateway has the rest, and would connect again if they were ended before
			db.Close()
			b.doOn(admin, cutting[Kind(b.url)])
		}
		return len(all) == room
	})
	return func() {
		for _, db := range all {
			db.Close()
		}
	}
}

// lock has a session of another user lock a table.
func (b *broken) lock(table string) (unlock func()) {
	db := b.server.DB(b.t, b.url)
	conn, err := db.Conn(b.t.Context())
	if err == nil && Kind(b.url) == kindPostgres {
		if _, err = conn.ExecContext(b.t.Context(), "begin"); err == nil {
			_, err = conn.ExecContext(b.t.Context(), "lock table fencepost."+table)
		}
	} else if err == nil {
		_, err = conn.ExecContext(b.t.Context(), "lock tables "+table+" write")
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return func() {
		_, err := conn.ExecContext(context.Background(), map[string]string{kindPostgres: "rollback", kindMySQL: "unlock tables"}[Kind(b.url)])
		conn.Close()
		db.Close()
		if err != nil {
			b.t.Error(err)
		}
	}
}

// causes are the ways in which a database can fail a gateway that runs, with what to undo that, what is told of it, and what is to be done.
var causes = []struct {
	what         string
	on           string // the kind of server; empty: both
	breaks       func(*broken) (mend func())
	says, remedy string
}{
	{"stopped", "", func(b *broken) func() { b.server.Stop(b.t); return func() { b.server.Restart(b.t) } }, "nothing accepts connections at its address", ""},
	{"standing still", "", func(b *broken) func() { b.server.Pause(b.t); return func() { b.server.Continue(b.t) } }, "it does not answer in time", ""},
	{"without tables", kindPostgres, func(b *broken) func() {
		b.do("alter schema fencepost rename to elsewhere")
		return func() { b.do("alter schema elsewhere rename to fencepost") }
	}, "no tables of fencepost", "gateway store init"},
	{"without tables", kindMySQL, func(b *broken) func() {
		b.do("rename table store to elsewhere")
		return func() { b.do("rename table elsewhere to store") }
	}, "no tables of fencepost", "gateway store init"},
	{"without the log", "", func(b *broken) func() {
		schema := map[string]string{kindPostgres: "fencepost."}[Kind(b.url)]
		b.do("alter table " + schema + "log rename to elsewhere")
		return func() { b.do("alter table " + schema + "elsewhere rename to log") }
	}, "lacks a part of the tables", "if a restore was broken off, repeat it"},
	{"of a later version", "", func(b *broken) func() {
		in := map[string]string{kindPostgres: "fencepost.store", kindMySQL: "store"}[Kind(b.url)]
		b.do("update " + in + " set version = version + 1")
		b.cut()
		return func() { b.do("update " + in + " set version = version - 1") }
	}, "of a newer version", "start that one"},
	{"of an earlier version", "", func(b *broken) func() {
		in := map[string]string{kindPostgres: "fencepost.store", kindMySQL: "store"}[Kind(b.url)]
		b.do("update " + in + " set version = version - 1")
		b.cut()
		return func() { b.do("update " + in + " set version = version + 1") }
	}, "of an older version", "gateway store init of this version, with -role"},
	{"without a right", kindPostgres, func(b *broken) func() {
		b.do("revoke insert on fencepost.log from {USER}")
		return func() { b.do("grant insert on fencepost.log to {USER}") }
	}, "lacks rights", "gateway store init -role"},
	{"without a right", kindMySQL, func(b *broken) func() {
		b.do("revoke insert on log from {USER}@'127.0.0.1'")
		return func() { b.do("grant insert on log to {USER}@'127.0.0.1'") }
	}, "lacks rights", "gateway store init -role"},
	{"without a right to write leases", kindPostgres, func(b *broken) func() {
		b.do("revoke insert, update on fencepost.lease from {USER}")
		return func() { b.do("grant insert, update on fencepost.lease to {USER}") }
	}, "lacks rights", "gateway store init -role"},
	{"without a right to write leases", kindMySQL, func(b *broken) func() {
		b.do("revoke insert, update on lease from {USER}@'127.0.0.1'")
		return func() { b.do("grant insert, update on lease to {USER}@'127.0.0.1'") }
	}, "lacks rights", "gateway store init -role"},
	{"with leases locked by a person", "", func(b *broken) func() { return b.lock("lease") }, "another session keeps the store locked", "end it there"},
	{"with the log locked by a person", "", func(b *broken) func() { return b.lock("log") }, "another session keeps the store locked", "end it there"},
	{"with another password", kindPostgres, func(b *broken) func() {
		b.do("alter role {USER} password 'other'")
		b.cut()
		return func() { b.do("alter role {USER} password 'secret'") }
	}, "refuses the user or the password", "FENCEPOST_STORE"},
	{"with another password", kindMySQL, func(b *broken) func() {
		b.do("alter user {USER}@'127.0.0.1' identified by 'other'")
		b.cut()
		return func() { b.do("alter user {USER}@'127.0.0.1' identified by 'secret'") }
	}, "refuses the user or the password", "FENCEPOST_STORE"},
	{"read-only", kindMySQL, func(b *broken) func() {
		b.do("set global read_only = on")
		return func() { b.do("set global read_only = off") }
	}, "does not accept writes", "the server that does"},
	{"locked by a person", "", func(b *broken) func() {
		db := b.server.DB(b.t, b.url)
		tx, err := db.Begin()
		if err == nil {
			_, err = tx.Exec("select id from " + map[string]string{kindPostgres: "fencepost.store", kindMySQL: "store"}[Kind(b.url)] + " for update")
		}
		if err != nil {
			b.t.Fatal(err)
		}
		return func() {
			tx.Rollback()
			db.Close()
		}
	}, "another session keeps the store locked", "end it there"},
	{"crowded", "", func(b *broken) func() { return b.crowd() }, "no room for another connection", "max_connections"},
}

// What keeps a gateway from its database is told with its cause and with what to do: by Check, which /readyz asks, by the doctor, and in the log. Once
// that is mended all goes on by itself.
func TestCauses(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(*testing.T) *sqltest.Server{
		kindPostgres: func(t *testing.T) *sqltest.Server { return sqltest.StartPostgres(t, "max_connections = 20") },
		kindMySQL:    func(t *testing.T) *sqltest.Server { return sqltest.StartMariaDB(t, "--max-connections=15") },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBroken(t, start(t))
			for _, tt := range causes {
				if tt.on == "" || tt.on == kind {
					t.Run(tt.what, func(t *testing.T) {
						b.t = t
						b.isTold(tt.breaks, tt.says, tt.remedy)
					})
				}
			}
		})
	}
}

func newBroken(t testing.TB, server *sqltest.Server) *broken {
	b := &broken{t: t, server: server, url: server.Database(t)}
	b.user, b.as = gatewayUser(t, server, b.url)
	return b
}

// impatience is for how long who asks waits to be told why nothing is decided: a quarter of what /readyz has.
const impatience = 500 * time.Millisecond

// isTold breaks the database of a gateway that runs, and mends it.
func (b *broken) isTold(breaks func(*broken) (mend func()), says, remedy string) {
	b.t.Helper()
	var log lines
	o := Options{URL: b.as, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s := openGateway(b.t, o)
	name := fencing.Name(b.t.Name())
	acquire(b.t, s, "before "+name, time.Minute)
	mend := breaks(b)
	is := func(err error) bool {
		f := fencing.FaultOf(err)
		return err != nil && strings.Contains(told(err), says) && (remedy == "" || f != nil && strings.Contains(f.Remedy, remedy))
	}
	var err error
	tried := 0
	await(b.t, "nothing is granted, and it is told why", func() bool {
		r := request(name+fencing.Name(itoa(tried)), time.Minute)
		r.Metadata = map[string]string{"filler": strings.Repeat("x", 200)} // there may be a little room in the tables
		ctx, cancel := context.WithTimeout(b.t.Context(), impatience)
		defer cancel()
		_, err = s.Do(ctx, r)
		tried++
		return is(err)
	})
	probe := func() error {
		ctx, cancel := context.WithTimeout(b.t.Context(), impatience)
		defer cancel()
		return s.Check(ctx)
	}
	if err := probe(); !is(err) {
		b.t.Errorf("it is not told why: %v", err)
	}
	c, err := Examine(b.t.Context(), o)
	if err == nil {
		err = c.Unable
	}
	if !is(err) {
		b.t.Errorf("the doctor says %v", err)
	}
	await(b.t, "the log has it", func() bool { return strings.Contains(log.String(), says) && strings.Contains(log.String(), remedy) })
	if n := strings.Count(log.String(), "answers again"); n > 0 {
		b.t.Errorf("the log has %d times that it answers again, which it does not", n)
	}
	mend()
	await(b.t, "it goes on", func() bool { return probe() == nil })
	acquire(b.t, s, "after "+name, time.Minute)
	await(b.t, "the log says so", func() bool { return strings.Contains(log.String(), "answers again") })
	s.Close()
}

// lines is a log that is read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// What the server says of a batch is said once, in one line; and a session that was ended is not said to be of a server that starts.
func TestAnErrorIsToldOnce(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	conn := connect(t, url)
	db := server.DB(t, url)
	if _, err := db.Exec("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fencepost' and datname = current_database()"); err != nil {
		t.Fatal(err)
	}
	_, err := conn.read(t.Context(), 0)
	if err == nil || strings.Contains(err.Error(), "\n") || strings.Count(err.Error(), "57P01") != 1 {
		t.Errorf("it is told %v", err)
	}
	if says := told(err); !strings.Contains(says, "an administrator has ended its session") {
		t.Errorf("it is told to be %s", says)
	}
}
