package sql

import (
	"cmp"
	"context"
	stdsql "database/sql"
	"database/sql/driver"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// setting is how a database is set up, and what a user is told of it.
type setting struct {
	what     string
	set      []string // DATABASE stands for the database
	finds    []string // the checks at which doctor finds something, beside those that it finds at each server of these tests
	encoding string   // of the database; empty: UTF8
	owner    string   // that is seen in the view of leases; empty: as it was given
}

// given is an owner that each encoding holds another part of.
const given = "café 漢 🙂"

// The settings of a PostgreSQL, of a database or of a role don't change what a gateway does. Each row was or is a usual one somewhere.
func TestPostgresSettings(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	rows := []setting{{what: "nothing"}}
	for _, s := range []string{
		"client_encoding = LATIN1", "client_encoding = SQL_ASCII", "bytea_output = escape", "array_nulls = off", "standard_conforming_strings = off",
		"backslash_quote = off", "transform_null_equals = on", "quote_all_identifiers = on", "extra_float_digits = -15", "datestyle = 'German, DMY'",
		"intervalstyle = sql_standard", "timezone = '+05:45'", "search_path = ''", "client_min_messages = error", "lock_timeout = 1",
		"idle_in_transaction_session_timeout = 1", "synchronous_commit = off", "default_transaction_isolation = serializable",
		"default_transaction_isolation = 'repeatable read'", "default_transaction_deferrable = on", "default_transaction_read_only = on", "row_security = off",
		"session_replication_role = replica", "exit_on_error = on", "check_function_bodies = off", "enable_indexscan = off", "enable_seqscan = off",
		"force_parallel_mode = on", "plan_cache_mode = force_generic_plan", "plpgsql.variable_conflict = use_variable", "plpgsql.variable_conflict = use_column",
		"plpgsql.extra_errors = 'all'", "work_mem = 64", "xmlbinary = hex", "bytea_output = hex",
	} {
		rows = append(rows, setting{what: s, set: []string{"alter database DATABASE set " + s}})
	}
	all := setting{what: "several at once"}
	for _, s := range []string{
		"client_encoding = LATIN1", "bytea_output = escape", "array_nulls = off", "default_transaction_isolation = serializable",
		"default_transaction_deferrable = on", "default_transaction_read_only = on", "timezone = '+05:45'", "datestyle = German", "client_min_messages = error",
	} {
		all.set = append(all.set, "alter database DATABASE set "+s)
	}
	rows = append(rows, all,
		setting{what: "idle_session_timeout = 300", set: []string{"alter database DATABASE set idle_session_timeout = 300"}, finds: []string{checkTimeouts}},
		setting{what: "statement_timeout = 1000", set: []string{"alter database DATABASE set statement_timeout = 1000"}, finds: []string{checkTimeouts}},
		setting{what: "encoding LATIN1", encoding: "LATIN1", owner: "caf? ? ?"},
		setting{what: "encoding WIN1252", encoding: "WIN1252", owner: "caf? ? ?"},
		setting{what: "encoding EUC_JP", encoding: "EUC_JP", owner: "caf? ? ?"},
		setting{what: "encoding SQL_ASCII", encoding: "SQL_ASCII"})
	for _, row := range rows {
		t.Run(row.what, func(t *testing.T) {
			t.Parallel()
			row.try(t, server, row.database(t, server))
		})
	}
	t.Run("several at once, behind PgBouncer", func(t *testing.T) {
		t.Parallel()
		pooler := sqltest.StartPgBouncer(t, server)
		url := pooler.Database(t)
		db := server.DB(t, strings.Replace(url, ":"+itoa(pooler.Port()), ":"+itoa(server.Port()), 1))
		for _, statement := range all.set {
			if _, err := db.ExecContext(t.Context(), strings.ReplaceAll(statement, "DATABASE", databaseOf(t, url))); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		all.try(t, pooler, url)
	})
}

// database makes the database of a row.
func (s *setting) database(t *testing.T, server *sqltest.Server) (url string) {
	t.Helper()
	url = server.Database(t)
	db := server.DB(t, url)
	set := s.set
	if s.encoding != "" {
		url = strings.Replace(url, "/db", "/other", 1)
		set = append([]string{"create database DATABASE encoding '" + s.encoding + "' lc_collate 'C' lc_ctype 'C' template template0"}, set...)
	}
	for _, statement := range set {
		if _, err := db.ExecContext(t.Context(), strings.ReplaceAll(statement, "DATABASE", databaseOf(t, url))); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return url
}

// try has gateways do all that they do: turns of one message and of two, rows of all kinds, snapshots, cutting the log, and a start.
func (s *setting) try(t *testing.T, server *sqltest.Server, url string) {
	t.Helper()
	o := Options{URL: url, Logger: testLog(t), snapshotAt: 1, aloneAfter: time.Nanosecond}
	for range 2 { // it may be repeated
		if err := untilAnswered(t, func() error { _, err := Init(t.Context(), url, Rights{}); return err }); err != nil {
			t.Fatal(err)
		}
	}
	a := openGateway(t, o)
	o.aloneAfter = -1
	b := openGateway(t, o)
	kept := request("kept", time.Minute)
	kept.Owner = given
	mustDo(t, a, kept)
	shared := request("shared", time.Minute)
	shared.Mode, shared.Limit, shared.Owner = fencing.ModeShared, 3, given
	for i, gateway := range []*Store{b, a, b, a, b, a, b, a} {
		mustDo(t, gateway, fencing.RenewRequest{Name: "kept", Lease: kept.Lease, Owner: fmt.Sprint(i)})
		if i%2 == 0 {
			mustDo(t, gateway, shared)
		} else {
			mustDo(t, gateway, fencing.ReleaseRequest{Name: "shared", Lease: shared.Lease})
			shared.Lease = fencing.NewLeaseID(time.Now())
		}
	}
	mustDo(t, b, fencing.RenewRequest{Name: "kept", Lease: kept.Lease, Owner: given})
	if _, err := b.Expire(t.Context(), 10); err != nil {
		t.Error(err)
	}
	snapshots := "snapshot"
	if Kind(url) == kindPostgres {
		snapshots = "fencepost.snapshot"
	}
	db := plain(t, server, url)
	await(t, "a snapshot is written", func() (is bool) {
		acquire(t, a, fencing.Name("again"+itoa(int(time.Now().UnixNano()))), time.Second)
		if err := db.QueryRowContext(t.Context(), "select count(*) > 0 from "+snapshots+" where no = 0 and seq > 1").Scan(&is); err != nil {
			t.Fatal(err)
		}
		return is
	})
	if err := untilAnswered(t, func() error { _, err := connect(t, url).cut(t.Context(), 1, 1, 10); return err }); err != nil {
		t.Error(err)
	}
	theSame(t, o, a, b, openGateway(t, o))
	if got, want := shown(t, db, url), cmp.Or(s.owner, given); got != want {
		t.Errorf("the view shows the owner %q, want %q", got, want)
	}
	var condition Condition
	if err := untilAnswered(t, func() (err error) {
		condition, err = Examine(context.Background(), o)
		return cmp.Or(err, condition.Unable)
	}); err != nil {
		t.Fatal(err)
	}
	for _, f := range condition.Findings {
		if f.OK == slices.Contains(s.finds, f.Check) {
			t.Errorf("doctor says %+v", f)
		}
	}
}

// shown returns the owner of the lock kept as the view of leases shows it, by octets, which no session changes.
func shown(t *testing.T, db *stdsql.DB, url string) string {
	t.Helper()
	query := "select convert_to(owner, 'UTF8') from fencepost.leases where name = 'kept'"
	if Kind(url) == kindMySQL {
		query = "select cast(owner as binary) from leases where name = 'kept'"
	}
	var owner []byte
	if err := db.QueryRowContext(t.Context(), query).Scan(&owner); err != nil {
		t.Fatal(err)
	}
	return string(owner)
}

// The settings of a MariaDB don't change what a gateway does. One server has them all for its sessions, one after the other: what a
// session has at its start is what is set for all then.
func TestMariaDBSettings(t *testing.T) {
	t.Parallel()
	server := sqltest.StartMariaDB(t, "--query-cache-type=1", "--query-cache-size=1M")
	admin, err := server.DB(t, server.Database(t)).Conn(t.Context()) // whose session remains as it is
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []setting{
		{what: "nothing"},
		{what: "sql_mode", set: []string{"sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,EMPTY_STRING_IS_NULL'"}},
		{what: "sql_mode ORACLE", set: []string{"sql_mode = 'ORACLE'"}},
		{what: "sql_mode of old applications", set: []string{"sql_mode = ''"}},
		{what: "completion_type CHAIN", set: []string{"completion_type = CHAIN"}},
		{what: "completion_type RELEASE", set: []string{"completion_type = 'RELEASE'"}},
		{what: "autocommit off", set: []string{"autocommit = 0"}},
		{what: "isolation SERIALIZABLE", set: []string{"tx_isolation = 'SERIALIZABLE'"}},
		{what: "isolation READ UNCOMMITTED", set: []string{"tx_isolation = 'READ-UNCOMMITTED'"}},
		{what: "transactions read-only", set: []string{"tx_read_only = 1"}},
		{what: "a time zone", set: []string{"time_zone = '+05:45'"}},
		{what: "latin1", set: []string{"character_set_server = latin1", "character_set_client = latin1", "character_set_connection = latin1", "character_set_results = latin1", "collation_connection = latin1_german2_ci"}},
		{what: "latin1 of the database", set: []string{"character_set_database = latin1"}},
		{what: "short bounds of locks", set: []string{"innodb_lock_wait_timeout = 1", "lock_wait_timeout = 1"}},
		{what: "short bounds of transactions", set: []string{"idle_transaction_timeout = 1", "idle_write_transaction_timeout = 1", "idle_readonly_transaction_timeout = 1"}},
		{what: "short bounds of sessions", set: []string{"wait_timeout = 1"}},
		{what: "sql_safe_updates", set: []string{"sql_safe_updates = 1"}},
		{what: "sql_select_limit", set: []string{"sql_select_limit = 1"}},
		{what: "sql_big_selects", set: []string{"max_join_size = 1"}},
		{what: "group_concat_max_len", set: []string{"group_concat_max_len = 4"}},
		{what: "no checks", set: []string{"unique_checks = 0", "foreign_key_checks = 0", "check_constraint_checks = 0"}},
		{what: "storage engine", set: []string{"default_storage_engine = MyISAM"}},
		{what: "old_mode", set: []string{"old_mode = 'NO_DUP_KEY_WARNINGS_WITH_IGNORE,ZERO_DATE_TIME_CAST'"}},
		{what: "sql_auto_is_null", set: []string{"sql_auto_is_null = 1"}},
		{what: "explicit_defaults_for_timestamp", set: []string{"explicit_defaults_for_timestamp = 0"}},
		{what: "max_statement_time", set: []string{"max_statement_time = 1"}},
		{what: "optimizer_switch", set: []string{"optimizer_switch = 'index_merge=off,mrr=on,join_cache_bka=off'"}},
		{what: "net timeouts", set: []string{"net_read_timeout = 1", "net_write_timeout = 1"}},
	} {
		t.Run(row.what, func(t *testing.T) { // one after the other
			url := server.Database(t)
			for _, s := range row.set {
				name, _, _ := strings.Cut(s, " ")
				var before string
				if err := admin.QueryRowContext(t.Context(), "select @@global."+name).Scan(&before); err != nil {
					t.Fatal(err)
				}
				if _, err := admin.ExecContext(t.Context(), "set global "+s); err != nil {
					t.Fatalf("%s: %v", s, err)
				}
				t.Cleanup(func() {
					var value any = before
					if n, err := strconv.ParseUint(before, 10, 64); err == nil {
						value = n
					} else if n, err := strconv.ParseFloat(before, 64); err == nil {
						value = n
					}
					if _, err := admin.ExecContext(context.Background(), "set global "+name+" = ?", value); err != nil {
						t.Fatal(err)
					}
				})
			}
			row.try(t, server, url)
			if err := untilAnswered(t, func() error {
				return connect(t, url).(*mysqlConn).ask(t.Context(), "select @@max_statement_time = 0", nil, func(is []driver.Value) error {
					if number(is[0]) != 1 {
						t.Error("statements are cut off after some time")
					}
					return nil
				})
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// plain returns connections of the test's own, which are not about settings: each is closed after its statement, before it is idle for too long.
func plain(t *testing.T, server *sqltest.Server, url string) *stdsql.DB {
	if Kind(url) == kindMySQL {
		url += "?autocommit=1&sql_big_selects=1&tx_read_only=0&max_statement_time=0&sql_select_limit=1000&sql_mode=''&tx_isolation='READ-COMMITTED'"
	} else {
		url += "&default_query_exec_mode=cache_describe" // behind a pooler a statement that was prepared may be in another session
	}
	db := server.DB(t, url)
	db.SetMaxIdleConns(0)
	return db
}
