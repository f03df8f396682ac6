package sql

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/sql/sqltest"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// guardBase is a database with leases, as a gateway has it and as the program of a user sees it, who has
// no rights but those that docs/storage asks for.
type guardBase struct {
	t       *testing.T
	mysql   bool
	schema  string
	own     string // the database of the user in MariaDB
	gateway *stdsql.DB
	user    *stdsql.DB
}

// onBoth runs a test on PostgreSQL and on MariaDB.
func onBoth(t *testing.T, test func(t *testing.T, b *guardBase)) {
	t.Run("PostgreSQL", func(t *testing.T) { test(t, guardPostgres(t)) })
	t.Run("MariaDB", func(t *testing.T) { test(t, guardMariaDB(t)) })
}

func guardPostgres(t *testing.T) *guardBase {
	t.Helper()
	s := sqltest.Postgres(t)
	address := s.Database(t)
	b := &guardBase{t: t, schema: "fencepost", gateway: s.DB(t, address)}
	user := s.User(t, "secret")
	b.run("create schema fencepost", "create table fencepost.store (id int primary key)")
	b.make(postgresLeases, b.rights(user)...)
	b.run("create table public.written (text text)", "grant insert, select on public.written to "+user)
	b.user = s.DB(t, sqltest.As(address, user, "secret"))
	return b
}

func guardMariaDB(t *testing.T) *guardBase {
	t.Helper()
	s := sqltest.MariaDB(t)
	address, own := s.Database(t), s.Database(t)
	b := &guardBase{t: t, mysql: true, schema: databaseOf(t, address), own: databaseOf(t, own), gateway: s.DB(t, address)}
	user := s.User(t, "secret")
	account := user + "@'127.0.0.1'"
	b.run("create table store (id int primary key) engine = InnoDB")
	b.make(mysqlLeases, b.rights(account)...)
	b.run("grant all on " + b.own + ".* to " + account)
	b.user = s.DB(t, sqltest.As(own, user, "secret"))
	if _, err := b.user.ExecContext(t.Context(), "create table written (text varchar(100)) engine = InnoDB"); err != nil {
		t.Fatal(err)
	}
	return b
}

// rights returns the statements of the page that grant the rights to a user. MariaDB has no first line and no types, as the
// page says.
func (b *guardBase) rights(user string) (list []string) {
	b.t.Helper()
	text := guardSnippet(b.t, "rights")
	if b.mysql {
		_, text, _ = strings.Cut(strings.Replace(text, "(text, bigint)", "", 1), "\n")
	}
	for line := range strings.Lines(text) {
		line = strings.NewReplacer(" TO program;", " TO "+user, "fencepost.", b.schema+".").Replace(line)
		list = append(list, strings.TrimSpace(line))
	}
	return list
}

func databaseOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

// make makes what is tested and grants rights to it, and then makes it once more.
func (b *guardBase) make(statements string, grants ...string) {
	b.t.Helper()
	b.run("insert into " + b.schema + ".store values (1)")
	b.run(strings.Split(statements, "\n-- ;;\n")...)
	b.run(grants...)
	b.run(strings.Split(statements, "\n-- ;;\n")...)
}

func (b *guardBase) run(statements ...string) {
	b.t.Helper()
	for _, s := range statements {
		if _, err := b.gateway.ExecContext(b.t.Context(), s); err != nil {
			b.t.Fatalf("%v\n%s", err, s)
		}
	}
}

// text puts what is the database's in place: its schema for fencepost, its clock for NOW, its
// placeholders for $n, which stand in order.
func (b *guardBase) text(s string) string {
	if !b.mysql {
		return strings.ReplaceAll(s, "NOW", "clock_timestamp()")
	}
	for _, n := range []string{"$1", "$2", "$3", "$4"} {
		s = strings.ReplaceAll(s, n, "?")
	}
	return strings.ReplaceAll(strings.ReplaceAll(s, "fencepost.", b.schema+"."), "NOW", "utc_timestamp(6)")
}

// turn does something as a gateway does it in a turn: with the store's row locked, and at READ COMMITTED. A
// lock that it waits for longer than 5 s is an error.
func (b *guardBase) turn(ctx context.Context, do func(exec func(statement string, args ...any) error, tx *stdsql.Tx) error) error {
	tx, err := b.gateway.BeginTx(ctx, &stdsql.TxOptions{Isolation: stdsql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	exec := func(statement string, args ...any) error {
		_, err := tx.ExecContext(ctx, b.text(statement), args...)
		return err
	}
	timeout := "set local lock_timeout = '5s'"
	if b.mysql {
		timeout = "set session innodb_lock_wait_timeout = 5"
	}
	if err := exec(timeout); err != nil {
		return err
	}
	if err := exec("select id from fencepost.store where id = 1 for update"); err != nil {
		return err
	}
	if err := do(exec, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// grant inserts the row of a lease that ends in so many seconds, or has ended if they are below 0.
func (b *guardBase) grant(token int64, name string, seconds int) error {
	return b.turn(b.t.Context(), func(exec func(string, ...any) error, _ *stdsql.Tx) error {
		ends := fmt.Sprintf("NOW + interval '%d' second", seconds)
		if !b.mysql {
			return exec("insert into fencepost.lease (token, name, lease, mode, owner, acquired_at, expires_at) values ($1, $2, 'L', 'exclusive', 'worker-ü', NOW, "+ends+")", token, name)
		}
		return errors.Join(exec("insert into fencepost.lease (token, name, lease, mode, owner, acquired_at) values ($1, $2, 'L', 'exclusive', 'worker-ü', NOW)", token, name),
			exec("insert into fencepost.renewal (token, expires_at) values ($1, "+ends+")", token))
	})
}

// renew lets a lease end in so many seconds from now.
func (b *guardBase) renew(token int64, seconds int) error {
	return b.turn(b.t.Context(), func(exec func(string, ...any) error, _ *stdsql.Tx) error {
		table := "fencepost.lease"
		if b.mysql {
			table = "fencepost.renewal"
		}
		return exec(fmt.Sprintf("update %s set expires_at = NOW + interval '%d' second where token = $1", table, seconds), token)
	})
}

// end tries the rows of leases, and ends those that nobody guards. It returns them.
func (b *guardBase) end(tokens ...int64) (ended []int64, err error) {
	err = b.turn(b.t.Context(), func(exec func(string, ...any) error, tx *stdsql.Tx) error {
		for _, token := range tokens {
			var tried int64
			err := tx.QueryRowContext(b.t.Context(), b.text("select token from fencepost.lease where token = $1 for update skip locked"), token).Scan(&tried)
			if errors.Is(err, stdsql.ErrNoRows) {
				continue
			}
			if err := errors.Join(err, b.remove(exec, token)); err != nil {
				return err
			}
			ended = append(ended, token)
		}
		return nil
	})
	return ended, err
}

func (b *guardBase) remove(exec func(string, ...any) error, token int64) error {
	err := exec("delete from fencepost.lease where token = $1", token)
	if b.mysql {
		err = errors.Join(err, exec("delete from fencepost.renewal where token = $1", token))
	}
	return err
}

func (b *guardBase) granted(token int64, name string, seconds int) {
	b.t.Helper()
	if err := b.grant(token, name, seconds); err != nil {
		b.t.Fatal(err)
	}
}

// ends asserts which of some leases can be ended now, and ends them.
func (b *guardBase) ends(tokens []int64, want ...int64) {
	b.t.Helper()
	ended, err := b.end(tokens...)
	if err != nil || !slices.Equal(ended, want) {
		b.t.Fatalf("of %v, %v ended, and not %v: %v", tokens, ended, want, err)
	}
}

func (b *guardBase) begin(o *stdsql.TxOptions) *stdsql.Tx {
	b.t.Helper()
	tx, err := b.user.BeginTx(b.t.Context(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// guard calls the function as a user.
func (b *guardBase) guard(q interface {
	QueryRowContext(context.Context, string, ...any) *stdsql.Row
}, name any, token any) (ends time.Time, err error) {
	err = q.QueryRowContext(b.t.Context(), b.text("select fencepost.guard($1, $2)"), name, token).Scan(&ends)
	return ends, err
}

func (b *guardBase) guarded(tx *stdsql.Tx, name string, token int64) {
	b.t.Helper()
	if _, err := b.guard(tx, name, token); err != nil {
		b.t.Fatal(err)
	}
}

// refuses asserts that a call is refused with an SQLSTATE and a sentence that has all of some words.
func (b *guardBase) refuses(err error, state string, words ...string) {
	b.t.Helper()
	got, message := guardState(err)
	if got != state {
		b.t.Errorf("it is refused with %q, and not with %q: %v", got, state, err)
	}
	for _, word := range words {
		if !strings.Contains(message, word) {
			b.t.Errorf("%q does not have %q", message, word)
		}
	}
}

func guardState(err error) (state, message string) {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code, e.Message
	}
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return string(e.SQLState[:]), e.Message
	}
	return "", ""
}

func (b *guardBase) exec(tx *stdsql.Tx, statement string) {
	b.t.Helper()
	if _, err := tx.ExecContext(b.t.Context(), statement); err != nil {
		b.t.Fatal(err)
	}
}

func (b *guardBase) commit(tx *stdsql.Tx) {
	b.t.Helper()
	if err := tx.Commit(); err != nil {
		b.t.Fatal(err)
	}
}

// waits waits until somebody waits for a lock in this test's databases.
func (b *guardBase) waits() {
	b.t.Helper()
	await(b.t, "somebody waits for a lock", func() bool {
		waits, err := waitsForLock(b.gateway, !b.mysql, b.schema, b.own)
		if err != nil {
			b.t.Fatal(err)
		}
		return waits
	})
}
