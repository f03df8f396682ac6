package fence

import (
	"context"
	"database/sql"
	"fmt"
)

// Dialect is the kind of a database.
type Dialect int

// The databases that [SQL] knows. MySQL is MariaDB as well.
const (
	PostgreSQL Dialect = iota + 1
	SQLite
	MySQL
)

// SQL guards data in a database, by a table beside it that has a row a resource. The
// token is admitted in the transaction that writes the data: both are committed, or none.
// From [SQL.Admit] to its end other transactions that write the same resource wait for this
// one; those that write others don't, but for SQLite, where one transaction writes at a time.
//
// The guard tables and the trigger of docs/storage are this table: programs in any language
// that admit their tokens there, and this guard, keep one mark.
//
// Rows are never removed: a mark that is forgotten would admit what is stale.
type SQL struct {
	Dialect Dialect
	Table   string // a plain name, with a schema before it or none; empty is "fences"
}

// Admit admits a token for a resource within the transaction of the write, and lets
// nobody else until it ends. It is to be called first in the transaction: what was read
// before may be older than what the guard has waited for. It returns a *StaleError where
// the token is stale, an error that wraps ErrInvalid where token, slot or resource
// are none, or that of the database; then the transaction must be rolled back.
//
// A transaction at REPEATABLE READ or SERIALIZABLE may be refused by the database because
// another was quicker; like any such transaction it can be repeated from its begin.
//
// A commit of which the answer is lost may have been made or not. The holder may
// repeat it: its token is admitted again. Whether its write bears being made twice is for
// the write to say.
func (g SQL) Admit(ctx context.Context, tx *sql.Tx, resource string, token int64, slot int) error {
	s, err := g.statements()
	if err != nil {
		return err
	}
	if err := checkResource(resource); err != nil {
		return err
	}
	var mark Mark
	if _, err := mark.admit(token, slot); err != nil {
		return err
	}
	highest, slots, err := mark.columns()
	if err != nil {
		return err
	}
	// That there is a row to be locked. In SQLite and MySQL this locks already: what
	// begins by reading there can't always go on to write.
	if _, err := tx.ExecContext(ctx, s.ensure, resource, highest, slots); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, s.lock, resource).Scan(&highest, &slots); err != nil {
		return err
	}
	if mark, err = markOf(highest, slots); err != nil {
		return fmt.Errorf("fence of %q: %w", resource, err)
	}
	raised, err := mark.admit(token, slot)
	if err != nil || !raised {
		return err
	}
	if highest, slots, err = mark.columns(); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, s.raise, highest, slots, resource)
	return err
}

// Do runs write in a transaction in which the token was admitted first, and commits it;
// where anything fails it is rolled back, and the token is not admitted either. Errors are
// those of Admit, of write and of the database.
func (g SQL) Do(ctx context.Context, db *sql.DB, resource string, token int64, slot int, write func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing once it is committed
	if err := g.Admit(ctx, tx, resource, token, slot); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	return tx.Commit()
}
