package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

func TestMain(m *testing.M) { Main(m) }

// table makes a table of numbers.
func table(t *testing.T, db *sql.DB) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE kept (n int PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
}

// keep commits a number, within a second.
func keep(t *testing.T, db *sql.DB, n string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := db.ExecContext(ctx, "INSERT INTO kept VALUES ("+n+")")
	return err
}

// kept returns the numbers that a database has.
func kept(t *testing.T, db *sql.DB) string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT n FROM kept ORDER BY n")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var n string
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// each runs a test with both databases at once.
func each(t *testing.T, test func(t *testing.T, start func() *Server)) {
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, func() *Server { return StartPostgres(t) })
	})
	t.Run("MariaDB", func(t *testing.T) {
		t.Parallel()
		test(t, func() *Server { return StartMariaDB(t) })
	})
}

// A crash keeps what was committed and nothing else, and leaves no process. A stop in order and
// a pause lose nothing.
func TestCrash(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start func() *Server) {
		s := start()
		url := s.Database(t)
		db := s.DB(t, url)
		table(t, db)
		if err := keep(t, db, "1"); err != nil {
			t.Fatal(err)
		}
		open, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open.ExecContext(t.Context(), "INSERT INTO kept VALUES (2)"); err != nil {
			t.Fatal(err)
		}
		pids := append(children(s.process.Process.Pid), s.process.Process.Pid)
		if want := 5; s.kind == postgres && len(pids) < want {
			t.Errorf("%d processes are known, not the %d that there are at least", len(pids), want)
		}
		s.Kill(t)
		for _, pid := range pids {
			if state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil && !strings.Contains(string(state), ") Z ") {
				t.Errorf("process %d still runs: %s", pid, state)
			}
		}
		if err := s.DB(t, url).PingContext(t.Context()); err == nil {
			t.Error("a killed server answers")
		}
		s.Restart(t)
		if got := kept(t, s.DB(t, url)); got != "1" {
			t.Errorf("after the crash there is %q", got)
		}

		again := s.DB(t, url)
		if err := again.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Pause(t)
		if err := keep(t, again, "3"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a server that stands still has answered %v", err)
		}
		s.Continue(t)
		if err := keep(t, s.DB(t, url), "4"); err != nil {
			t.Error(err)
		}
		s.Stop(t)
		s.Restart(t)
		if got := kept(t, s.DB(t, url)); got != "1 4" && got != "1 3 4" {
			t.Errorf("at the end there is %q", got)
		}
		s.Kill(t) // what it leaves goes with the test
		s.Kill(t)
	})
}

// What a synchronous standby had to have is there once it is promoted; what an asynchronous one
// was kept from is not.
func TestStandby(t *testing.T) {
	t.Parallel()
	for name, synchronous := range map[string]bool{"synchronous": true, "asynchronous": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := StartPostgres(t)
			url := primary.Database(t)
			db := primary.DB(t, url)
			table(t, db)
			standby := StartStandby(t, primary, synchronous)
			other := standby.DB(t, strings.Replace(url, strconv.Itoa(primary.Port()), strconv.Itoa(standby.Port()), 1))
			if err := keep(t, other, "0"); err == nil {
				t.Error("a standby takes a commit")
			}
			if err := keep(t, db, "1"); err != nil {
				t.Fatal(err)
			}
			want := "1"
			if synchronous {
				standby.Pause(t)
				if err := keep(t, db, "2"); err == nil {
					t.Error("a commit did not wait for the standby")
				}
				standby.Continue(t)
				if err := keep(t, db, "3"); err != nil {
					t.Error(err)
				}
				want = "1 2 3" // the commit that stopped waiting had happened
			} else {
				if err := primary.waitFor("SELECT pg_current_wal_lsn() = replay_lsn FROM pg_stat_replication"); err != nil {
					t.Fatal(err)
				}
				standby.CutOff(t)
				if err := keep(t, db, "2"); err != nil {
					t.Error(err)
				}
			}
			primary.Kill(t)
			standby.Promote(t)
			if got := kept(t, other); got != want {
				t.Errorf("the promoted standby has %q, not %q", got, want)
			}
			if err := keep(t, other, "5"); err != nil {
				t.Error(err)
			}
		})
	}
}

// More clients than connections share them.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	bouncer := StartPgBouncer(t, Postgres(t), "default_pool_size = 2")
	url := bouncer.Database(t) + "&default_query_exec_mode=exec"
	if !strings.Contains(url, ":"+strconv.Itoa(bouncer.Port())+"/") {
		t.Fatalf("%s does not go through the pooler", url)
	}
	db := bouncer.DB(t, url)
	clients, servers := map[*sql.Conn]bool{}, map[int]bool{}
	for range 12 {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		clients[conn] = true
		var pid int
		if err := conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		servers[pid] = true
	}
	if len(servers) > 2 {
		t.Errorf("%d clients have %d connections", len(clients), len(servers))
	}
	bouncer.Kill(t)
	bouncer.Restart(t)
	if err := bouncer.DB(t, url).PingContext(t.Context()); err != nil {
		t.Error(err)
	}
}

// A user of User needs the password, and postgres and root need none.
func TestUser(t *testing.T) {
	t.Parallel()
	const password = `it's\"7`
	for _, s := range []*Server{Postgres(t), MariaDB(t)} {
		url := s.Database(t)
		name := s.User(t, password)
		admin := "" // the database that all may enter
		if s.kind == mariadb {
			admin = "information_schema"
		}
		for given, wanted := range map[string]bool{password: true, "wrong": false, "": false} {
			as := As(url, name, given)
			if admin != "" {
				as = as[:strings.LastIndexByte(as, '/')+1] + admin
			}
			if err := s.DB(t, as).PingContext(t.Context()); (err == nil) != wanted {
				t.Errorf("%s: the password %q: %v", s.kind.name, given, err)
			}
		}
	}
}

// What tests share they get once, each with a database of its own, and none may end it.
func TestShared(t *testing.T) {
	t.Parallel()
	for _, get := range []func(testing.TB) *Server{Postgres, MariaDB} {
		s := get(t)
		if get(t) != s {
			t.Error("there are two of them")
		}
		s.NoSync(t)
		for range 2 {
			table(t, s.DB(t, s.Database(t)))
		}
		if _, err := redistest.Launch(func(t testing.TB) { s.Kill(t) }); err == nil {
			t.Errorf("%s, which is shared, was killed", s.kind.name)
		}
		if err := s.ping(); err != nil {
			t.Error(err)
		}
	}
}

// A server that does not start shows why, and leaves nothing.
func TestStartThatFails(t *testing.T) {
	t.Parallel()
	for setting, start := range map[string]func(t testing.TB, setting ...string) *Server{"no_such_setting=1": StartPostgres, "--no-such-argument": StartMariaDB} {
		_, err := redistest.Launch(func(t testing.TB) { start(t, setting) })
		if name := strings.Trim(setting, "-=1"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", setting, err)
		}
	}
}
