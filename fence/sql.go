package fence

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
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
// Rows are never removed: a mark that is forgotten would admit what is stale.
type SQL struct {
	Dialect Dialect
	Table   string // a plain name, with a schema before it or none; empty is "fences"
}

// CreateTable creates the table where it is not there.
func (g SQL) CreateTable(ctx context.Context, db *sql.DB) error {
	s, err := g.statements()
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, s.create)
	return err
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
	// That there is a row to be locked. In SQLite and MySQL this locks already: what
	// begins by reading there can't always go on to write.
	if _, err := tx.ExecContext(ctx, s.ensure, resource); err != nil {
		return err
	}
	var mark Mark
	var slots string
	if err := tx.QueryRowContext(ctx, s.lock, resource).Scan(&mark.Token, &slots); err != nil {
		return err
	}
	if slots != "" {
		err = json.Unmarshal([]byte(slots), &mark.Slots)
	}
	if err := errors.Join(err, mark.check()); err != nil {
		return fmt.Errorf("fence of %q: %w", resource, err)
	}
	raised, err := mark.admit(token, slot)
	if err != nil || !raised {
		return err
	}
	slots = ""
	if len(mark.Slots) > 0 {
		text, err := json.Marshal(mark.Slots)
		if err != nil {
			return err
		}
		slots = string(text)
	}
	_, err = tx.ExecContext(ctx, s.raise, mark.Token, slots, resource)
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

// statements are those of a dialect.
type statements struct{ create, ensure, lock, raise string }

var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$`)

func (g SQL) statements() (s statements, err error) {
	table := g.Table
	if table == "" {
		table = "fences"
	}
	if !tableName.MatchString(table) {
		return s, fmt.Errorf("%w table %q: it must be a plain name, with a schema before it or none", ErrInvalid, clip(table))
	}
	switch g.Dialect {
	case PostgreSQL:
		s = statements{
			create: `CREATE TABLE IF NOT EXISTS %s (resource text PRIMARY KEY, token bigint NOT NULL, slots text NOT NULL)`,
			ensure: `INSERT INTO %s (resource, token, slots) VALUES ($1, 0, '') ON CONFLICT (resource) DO NOTHING`,
			lock:   `SELECT token, slots FROM %s WHERE resource = $1 FOR UPDATE`,
			raise:  `UPDATE %s SET token = $1, slots = $2 WHERE resource = $3`,
		}
	case SQLite:
		s = statements{
			create: `CREATE TABLE IF NOT EXISTS %s (resource TEXT PRIMARY KEY, token INTEGER NOT NULL, slots TEXT NOT NULL) WITHOUT ROWID`,
			ensure: `INSERT INTO %s (resource, token, slots) VALUES (?, 0, '') ON CONFLICT (resource) DO NOTHING`,
			lock:   `SELECT token, slots FROM %s WHERE resource = ?`,
			raise:  `UPDATE %s SET token = ?, slots = ? WHERE resource = ?`,
		}
	case MySQL:
		s = statements{ // bytes, since text is compared without regard to case; InnoDB, for it has transactions
			create: `CREATE TABLE IF NOT EXISTS %s (resource VARBINARY(255) PRIMARY KEY, token BIGINT NOT NULL, slots MEDIUMTEXT NOT NULL) ENGINE=InnoDB`,
			ensure: `INSERT INTO %s (resource, token, slots) VALUES (?, 0, '') ON DUPLICATE KEY UPDATE token = token`,
			lock:   `SELECT token, slots FROM %s WHERE resource = ? FOR UPDATE`,
			raise:  `UPDATE %s SET token = ?, slots = ? WHERE resource = ?`,
		}
	default:
		return s, fmt.Errorf("%w dialect %d: it must be PostgreSQL, SQLite or MySQL", ErrInvalid, g.Dialect)
	}
	for _, text := range []*string{&s.create, &s.ensure, &s.lock, &s.raise} {
		*text = fmt.Sprintf(*text, table)
	}
	return s, nil
}
