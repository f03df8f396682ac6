package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"regexp"
)

// Transaction checks leases in the transactions of a database that is the gateway's store too.
// What such a transaction writes is written while the lock is held: from [Transaction.Guard] to
// its end the name is handed on to nobody, whatever becomes of the lease. No table of
// highest tokens is needed, and a token that was never issued is refused.
//
// The database must be the one that the gateway keeps its locks in. For any other there is [SQL].
type Transaction struct {
	Dialect Dialect // PostgreSQL or MySQL
	Schema  string  // a plain name: the gateway's schema, on MySQL its database; empty is "fencepost"
}

// NotHeldError refuses a token whose lease is not live, or not one of that name. The caller
// does not hold the lock, whatever it believes, and must stop.
type NotHeldError struct {
	Name   string
	Token  int64
	Reason string // a sentence of the database
	err    error
}

func (e *NotHeldError) Error() string { return "not held: " + e.Reason }

// Unwrap returns the error of the database's driver.
func (e *NotHeldError) Unwrap() error { return e.err }

// The SQLSTATE of the function guard.
const (
	stateNotHeld = "ZF410"
	stateMisused = "ZF428"
)

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Guard returns nil if the lease of the lock name with this fencing token is live, and keeps the
// name from being handed on until tx ends. It is to be called first in the transaction: at
// REPEATABLE READ and above, who has read before sees the lease as it was then, and may be refused
// though it was renewed since; and a rollback to a savepoint that was set before may end the guard.
//
// It returns a *NotHeldError if the lease is not live, and an error that wraps ErrInvalid
// where name or token are none, or the database can't guard in such a transaction (MySQL at
// SERIALIZABLE). Other errors are those of the database. After any error tx is rolled back, so
// that it neither writes nor holds anybody up.
//
// MySQL does not see SERIALIZABLE that was asked for by [sql.TxOptions]: there it holds up the
// store, and must not be used.
//
// PostgreSQL ends the connection if the transaction does nothing for 60 s, or for the user's
// own idle_in_transaction_session_timeout if that is shorter. MySQL has no such bound.
func (g Transaction) Guard(ctx context.Context, tx *sql.Tx, name string, token int64) (err error) {
	defer func() {
		if err != nil {
			_ = tx.Rollback() // MySQL would go on after an error, and commit
		}
	}()
	query, err := g.query()
	if err != nil {
		return err
	}
	if err := errors.Join(checkResource(name), checkToken(token, NoSlot)); err != nil {
		return err
	}
	var ends any
	err = tx.QueryRowContext(ctx, query, name, token).Scan(&ends)
	switch state, reason := databaseError(err); state {
	case stateNotHeld:
		return &NotHeldError{Name: name, Token: token, Reason: reason, err: err}
	case stateMisused:
		return fmt.Errorf("%w transaction: %w", ErrInvalid, err)
	}
	return err
}

// Do runs write in a transaction that was guarded first, and commits it; where anything fails it is
// rolled back. Errors are those of Guard, of write and of the database.
func (g Transaction) Do(ctx context.Context, db *sql.DB, name string, token int64, write func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing once it is committed
	if err := g.Guard(ctx, tx, name, token); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (g Transaction) query() (string, error) {
	schema := g.Schema
	if schema == "" {
		schema = "fencepost"
	}
	if !schemaName.MatchString(schema) {
		return "", fmt.Errorf("%w schema %q: it must be a plain name", ErrInvalid, clip(schema))
	}
	switch g.Dialect {
	case PostgreSQL:
		return "SELECT " + schema + ".guard($1, $2)", nil
	case MySQL:
		return "SELECT " + schema + ".guard(?, ?)", nil
	}
	return "", fmt.Errorf("%w dialect %d: it must be PostgreSQL or MySQL", ErrInvalid, g.Dialect)
}

// databaseError returns the SQLSTATE and the message of what a driver returned, or "" where it has none. The
// drivers of PostgreSQL (pgx, pq) have a method for the state. That of MySQL has a field, of
// five bytes. All have a field Message.
func databaseError(err error) (state, message string) {
	for ; err != nil; err = errors.Unwrap(err) {
		message = err.Error()
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() == reflect.Struct {
			if field := v.FieldByName("Message"); field.Kind() == reflect.String {
				message = field.String()
			}
			if field := v.FieldByName("SQLState"); field.Kind() == reflect.Array && field.Type() == reflect.TypeFor[[5]byte]() {
				code := field.Interface().([5]byte)
				return string(code[:]), message
			}
		}
		if e, ok := err.(interface{ SQLState() string }); ok {
			return e.SQLState(), message
		}
	}
	return "", ""
}
