package fence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"testing"
)

// The errors of drivers, as they are: pgx and pq have a method, that of MySQL a field.
type (
	postgresError struct{ Code, Message string }
	mysqlError    struct {
		Number   uint16
		SQLState [5]byte
		Message  string
	}
)

func (e *postgresError) Error() string    { return "ERROR: " + e.Message }
func (e *postgresError) SQLState() string { return e.Code }
func (e *mysqlError) Error() string       { return fmt.Sprintf("Error %d: %s", e.Number, e.Message) }

// one is a database of which each query has one answer: an error, or a row. It counts what ends transactions.
type one struct {
	err                 error
	queries             []string
	commits, rolledBack int
}

func (d *one) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (d *one) Driver() driver.Driver                        { return nil }
func (d *one) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("unprepared") }
func (d *one) Close() error                                 { return nil }
func (d *one) Begin() (driver.Tx, error)                    { return d, nil }
func (d *one) Commit() error                                { d.commits++; return nil }
func (d *one) Rollback() error                              { d.rolledBack++; return nil }

func (d *one) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return d, nil }

func (d *one) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	d.queries = append(d.queries, query)
	if d.err != nil {
		return nil, d.err
	}
	return &oneRow{}, nil
}

type oneRow struct{ read bool }

func (*oneRow) Columns() []string { return []string{"guard"} }
func (*oneRow) Close() error      { return nil }
func (r *oneRow) Next(values []driver.Value) error {
	if r.read {
		return io.EOF
	}
	values[0], r.read = "2026-11-28 10:00:00", true
	return nil
}

func TestTransactionErrors(t *testing.T) {
	other := errors.New("lost")
	for _, of := range []struct {
		err     error
		notHeld string
		invalid bool
	}{
		{nil, "", false},
		{other, "", false},
		{&postgresError{"ZF410", "it is over"}, "it is over", false},
		{fmt.Errorf("wrapped: %w", &postgresError{"ZF410", "it is over"}), "it is over", false},
		{&postgresError{"40001", "ZF410"}, "", false},
		{&mysqlError{1644, [5]byte([]byte("ZF410")), "it is over"}, "it is over", false},
		{&mysqlError{1644, [5]byte([]byte("ZF428")), "SERIALIZABLE"}, "", true},
		{&mysqlError{1213, [5]byte([]byte("40001")), "ZF410"}, "", false},
		{&mysqlError{Number: 1644, Message: "ZF410"}, "", false},
	} {
		d := &one{err: of.err}
		db := sql.OpenDB(d)
		wrote := 0
		err := Transaction{Dialect: PostgreSQL}.Do(t.Context(), db, "orders/42", 7, func(*sql.Tx) error { wrote++; return nil })
		if !errors.Is(err, of.err) || errors.Is(err, ErrInvalid) != of.invalid {
			t.Errorf("%v: %v", of.err, err)
		}
		refused, ok := errors.AsType[*NotHeldError](err)
		if ok != (of.notHeld != "") || ok && (refused.Reason != of.notHeld || refused.Name != "orders/42" || refused.Token != 7) {
			t.Errorf("%v: %+v", of.err, refused)
		}
		if ok := of.err == nil; (wrote == 1) != ok || (d.commits == 1) != ok || (d.rolledBack == 0) != ok {
			t.Errorf("%v: %d writes, %d commits, %d rollbacks", of.err, wrote, d.commits, d.rolledBack)
		}
		db.Close()
	}
}

// After a refusal nothing can be committed, whatever the program does then.
func TestTransactionRollsBack(t *testing.T) {
	d := &one{err: &mysqlError{1644, [5]byte([]byte("ZF410")), "it is over"}}
	db := sql.OpenDB(d)
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := (Transaction{Dialect: MySQL}).Guard(t.Context(), tx, "a", 1); err == nil {
		t.Fatal("it was not refused")
	}
	if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) || d.commits != 0 || d.rolledBack != 1 {
		t.Errorf("%v, %d commits, %d rollbacks", err, d.commits, d.rolledBack)
	}
}

func TestTransactionArguments(t *testing.T) {
	for _, of := range []struct {
		g     Transaction
		name  string
		token int64
		query string
	}{
		{Transaction{Dialect: PostgreSQL}, "a", 1, "SELECT fencepost.guard($1, $2)"},
		{Transaction{Dialect: MySQL, Schema: "locks"}, "a", MaxToken, "SELECT locks.guard(?, ?)"},
		{Transaction{}, "a", 1, ""},
		{Transaction{Dialect: SQLite}, "a", 1, ""},
		{Transaction{Dialect: MySQL, Schema: "a.b"}, "a", 1, ""},
		{Transaction{Dialect: MySQL, Schema: "a; drop table b"}, "a", 1, ""},
		{Transaction{Dialect: MySQL}, "", 1, ""},
		{Transaction{Dialect: MySQL}, "a", 0, ""},
		{Transaction{Dialect: MySQL}, "a", MaxToken + 1, ""},
	} {
		d := &one{}
		db := sql.OpenDB(d)
		err := of.g.Do(t.Context(), db, of.name, of.token, func(*sql.Tx) error { return nil })
		if of.query == "" && (!errors.Is(err, ErrInvalid) || len(d.queries) > 0 || d.commits > 0) {
			t.Errorf("%+v: %v, %v", of, err, d.queries)
		}
		if of.query != "" && (err != nil || len(d.queries) != 1 || d.queries[0] != of.query) {
			t.Errorf("%+v: %v, %v", of, err, d.queries)
		}
		db.Close()
	}
}
