package sql

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// examined returns what is found at a server with settings.
func examined(t *testing.T, url string, o Options) (Condition, map[string]fencing.Finding) {
	t.Helper()
	o.URL = url
	c, err := Examine(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]fencing.Finding{}
	for _, f := range c.Findings {
		if f.OK != (f.Remedy == "") || f.OK && f.Promise != "" {
			t.Errorf("%+v", f)
		}
		found[f.Check] = f
	}
	return c, found
}

func TestExamine(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	c, found := examined(t, url, Options{MaxSkew: time.Minute})
	for check, says := range map[string]string{
		checkRole: "accepts writes", checkVersion: "PostgreSQL 1", checkPersistence: "on disk before", checkReplicas: "no standby follows it", checkTimeouts: "none of its timeouts",
		checkLog: "kB in the database", checkClock: "differ by", checkLoss: "until the lost ones have expired",
		checkRules: "version 1 of the rules is in force",
	} {
		if f := found[check]; !f.OK || !strings.Contains(f.Detail, says) {
			t.Errorf("%s: %+v, want %q", check, f, says)
		}
	}
	if c.Unable != nil || c.Stats != (fencing.Stats{}) || len(found) != 9 {
		t.Errorf("%+v", c)
	}

	// To look leaves no trace, and shows what there is.
	s, err := Open(context.Background(), Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mustDo(t, s, fencing.AcquireRequest{Name: "a", Lease: fencing.NewLeaseID(time.Now()), TTL: time.Minute, Hold: 1, Stamp: "a"})
	entries := func() (n int) {
		t.Helper()
		if err := server.DB(t, url).QueryRow("select count(*) from fencepost.log").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := entries()
	if c, _ := examined(t, url, Options{}); c.Unable != nil || c.Stats.Held != 1 {
		t.Errorf("%+v", c)
	}
	if after := entries(); after != before {
		t.Errorf("the log has %d entries, had %d", after, before)
	}
	own, err := s.Examine(t.Context())
	if err != nil || len(own) != 9 {
		t.Errorf("%+v, %v", own, err)
	}
}

func TestExamineFindsFault(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	for _, c := range []struct {
		what, option   string // of the connection, as a server's own setting would be
		options        Options
		check, promise string
		ok             bool
		says           string
	}{
		{"synchronous_commit", "-c synchronous_commit=off", Options{}, checkPersistence, "", true, "a gateway has it on in its own transactions"},
		{"statement_timeout", "-c statement_timeout=3s", Options{}, checkTimeouts, "", false, "statement_timeout is 3s"},
		{"idle_session_timeout", "-c idle_session_timeout=1s", Options{}, checkTimeouts, "", false, "opened again"},
		{"long timeouts", "-c statement_timeout=1min -c idle_session_timeout=1min", Options{}, checkTimeouts, "", true, "none of"},
		{"read-only by default, which a gateway is not", "-c default_transaction_read_only=on", Options{}, checkRole, "", true, "accepts writes"},
		{"a clock ahead", "", Options{MaxSkew: time.Second, clock: func() time.Time { return time.Now().Add(-time.Hour) }}, checkClock, "P1, P2", false, "ahead of this gateway's"},
		{"a clock behind", "", Options{MaxSkew: time.Second, clock: func() time.Time { return time.Now().Add(time.Hour) }}, checkClock, "P1, P2", false, "behind this gateway's"},
		{"no quarantine", "", Options{Quarantine: Quarantine{Off: true}}, checkLoss, "P1", false, "quarantine is off"},
		{"a short quarantine", "", Options{Quarantine: Quarantine{For: time.Second}}, checkLoss, "P1", false, "granted again after 1s, while some leases live for 30s"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			url := initialised(t, server.Database(t))
			if c.option != "" {
				url += "&options=" + strings.NewReplacer(" ", "%20", "=", "%3D").Replace(c.option)
			}
			_, found := examined(t, url, c.options)
			if f := found[c.check]; f.OK != c.ok || f.Promise != c.promise || !strings.Contains(f.Detail, c.says) {
				t.Errorf("%+v", f)
			}
			for check, f := range found {
				if check != c.check && !f.OK && c.check != checkRole {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

// Servers that were set up like that.
func TestExamineFindsUnsafeServer(t *testing.T) {
	t.Parallel()
	for setting, says := range map[string]string{"fsync": "fsync is off", "full_page_writes": "full_page_writes is off"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			_, found := examined(t, initialised(t, sqltest.StartPostgres(t, setting+" = off").Database(t)), Options{})
			if f := found[checkPersistence]; f.Promise != "P1, P2" || !strings.Contains(f.Detail, says) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// What a fail-over forgets is told, also to a user who may not see the states of standbys.
func TestExamineStandbys(t *testing.T) {
	t.Parallel()
	primary := sqltest.StartPostgres(t)
	url := primary.Database(t)
	_, as := gatewayUser(t, primary, url)
	says := func(url, what string, ok bool) {
		t.Helper()
		if _, found := examined(t, url, Options{}); found[checkReplicas].OK != ok || !strings.Contains(found[checkReplicas].Detail, what) {
			t.Errorf("%+v, want %q", found[checkReplicas], what)
		}
	}
	standby := sqltest.StartStandby(t, primary, false)
	says(url, "1 standby follows it, and no commit waits for it: a fail-over forgets the last ones; then no new leases are granted", true)
	says(as, "1 standby follows it, and no commit waits for it", true)

	// The standby itself is of no use, and says why.
	c, found := examined(t, strings.Replace(url, portOf(primary), portOf(standby), 1), Options{})
	if f := found[checkRole]; f.OK || f.Promise != "" || !strings.Contains(f.Detail, "standby") || c.Unable == nil {
		t.Errorf("%+v, %v", f, c.Unable)
	}
	// Where both are named the primary is found.
	both := strings.Replace(url, portOf(primary), portOf(standby)+",127.0.0.1"+portOf(primary), 1)
	if c, found := examined(t, both, Options{}); !found[checkRole].OK || c.Unable != nil {
		t.Errorf("%+v, %v", found[checkRole], c.Unable)
	}

	sqltest.StartStandby(t, primary, true)
	says(url, "2 standbys follow it", true)
	says(as, "the gateway's user may not see which of them a commit waits for", true)
}

func portOf(s *sqltest.Server) string { return ":" + strconv.Itoa(s.Port()) }

// A user without rights learns what to do, and a database without tables is said to be one.
func TestExamineWithoutRights(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url, user := initialised(t, server.Database(t)), server.User(t, "secret")
	db := server.DB(t, url)
	for _, statement := range []string{"grant usage on schema fencepost to " + user, "grant select on fencepost.store to " + user} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Examine(t.Context(), Options{URL: sqltest.As(url, user, "secret")})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(c.Findings, func(f fencing.Finding) bool { return f.Check == checkAccess })
	if i < 0 || c.Unable == nil || !strings.Contains(c.Findings[i].Detail, "permission denied") {
		t.Errorf("%+v", c)
	}
	if _, err := Examine(t.Context(), Options{URL: server.Database(t)}); !isNoSchema(err) {
		t.Error(err)
	}
}
