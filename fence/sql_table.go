package fence

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The columns of a row are token, the highest of all that were admitted, and slots: empty where that
// token had no slot, so that there is nothing else to know; else the mark as JSON. Who knows of no
// slots compares with token, and sets slots to empty when it raises it.

// columns returns a mark as a row has it.
func (m *Mark) columns() (token int64, slots string, err error) {
	if len(m.Slots) == 0 {
		return m.Token, "", nil
	}
	text, err := json.Marshal(m)
	return m.highest(NoSlot), string(text), err
}

// markOf returns the mark of a row. An earlier version of the package kept the highest without a
// slot in token, and in slots nothing but the others.
func markOf(token int64, slots string) (mark Mark, err error) {
	mark.Token = token
	if slots != "" && json.Unmarshal([]byte(slots), &mark.Slots) != nil {
		mark = Mark{}
		err = json.Unmarshal([]byte(slots), &mark)
		switch highest := mark.highest(NoSlot); {
		case err != nil:
		case token > highest: // raised by a statement that knows of no slots, and left them as they were
			mark = Mark{Token: token}
		case token < highest:
			err = fmt.Errorf("its token is %d, and that of a slot is %d", token, highest)
		}
	}
	if err != nil {
		return mark, fmt.Errorf("the mark is damaged: %w", err)
	}
	return mark, mark.check()
}

// CreateTable creates the table where it is not there. One that an earlier version of the package or
// of the recipes has made is taken over: programs with that version of the package can't admit
// permits there from then on.
//
// Where the table is to be "fences", and beside it are marks in a table "fence" of earlier recipes, or in "fences_before" after an
// upgrade of which a part was done, it creates none and returns an error that says what to do: they would be forgotten.
func (g SQL) CreateTable(ctx context.Context, db *sql.DB) error {
	s, err := g.statements()
	if err != nil {
		return err
	}
	forgotten, err := s.forgotten(ctx, db)
	if err != nil {
		return err
	}
	if forgotten == nil {
		if _, err := db.ExecContext(ctx, s.create); err != nil {
			return err
		}
	}
	if err := s.takeOver(ctx, db); err != nil {
		return err
	}
	return forgotten
}

// forgotten returns as its first value what is to be said of marks that recipes of an earlier version have made beside
// this table; nil if there are none.
func (s statements) forgotten(ctx context.Context, db *sql.DB) (forgotten, err error) {
	if s.table != "fences" && !strings.HasSuffix(s.table, ".fences") {
		return nil, nil
	}
	const text = `the table %s has the fencing tokens that recipes of an earlier version have admitted, and %s has not: `
	beside := strings.TrimSuffix(s.table, "s")
	found, err := s.columnsOf(ctx, db, beside)
	if err != nil {
		return nil, err
	}
	if hasMarks(found) {
		return fmt.Errorf(text+`move them by the part "table upgrade" of the .sql file in docs/storage`, beside, s.table), nil
	}
	beside = s.table + "_before"
	if found, err = s.columnsOf(ctx, db, beside); err != nil || !hasMarks(found) {
		return nil, err
	}
	if found, err = s.columnsOf(ctx, db, s.table); err != nil {
		return nil, err
	}
	missing := "SELECT count(*) FROM " + beside + " AS b"
	if hasMarks(found) {
		missing += " WHERE NOT EXISTS (SELECT 1 FROM " + s.table + " AS f WHERE f.resource = b.resource AND f.token >= b.token)"
	}
	n := 0
	if err := db.QueryRowContext(ctx, missing).Scan(&n); err != nil || n == 0 {
		return nil, err
	}
	return fmt.Errorf(text+`rename it to fence, and run the part "table upgrade" of the .sql file in docs/storage (or drop it, `+
		`if marks were lowered on purpose since)`, beside, s.table), nil
}

// takeOver changes what an earlier version has made of the table, if there is one.
func (s statements) takeOver(ctx context.Context, db *sql.DB) error {
	found, err := s.columnsOf(ctx, db, s.table)
	if err != nil || len(found) == 0 {
		return err
	}
	if !hasMarks(found) {
		return fmt.Errorf("the table %s is another one: it has no columns resource and token", s.table)
	}
	if !slices.Contains(found, "slots") {
		if _, err := db.ExecContext(ctx, s.addSlots); err != nil {
			if found, again := s.columnsOf(ctx, db, s.table); again != nil || !slices.Contains(found, "slots") {
				return err
			} // else another process was quicker
		}
	}
	return s.convert(ctx, db)
}

// hasMarks reports whether a table with these columns may be one of a guard or a recipe, of any version.
func hasMarks(columns []string) bool {
	return slices.Contains(columns, "resource") && slices.Contains(columns, "token")
}

// columnsOf returns the names of a table's columns; none where there is no such table.
func (s statements) columnsOf(ctx context.Context, db *sql.DB, table string) (names []string, err error) {
	schema, name, ok := strings.Cut(table, ".")
	if !ok {
		schema, name = "", schema
	}
	args := []any{name, schema}
	if s.dialect == PostgreSQL {
		args = []any{table}
	}
	rows, err := db.QueryContext(ctx, s.look, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, strings.ToLower(name))
	}
	return names, rows.Err()
}

// earlierRow is a row as an earlier version of the package has written it.
type earlierRow struct {
	resource, slots string
	token           int64
}

// convert gives the rows of an earlier version the form of today. Each is changed only as it was read; one
// that somebody else has changed meanwhile is read again.
func (s statements) convert(ctx context.Context, db *sql.DB) error {
	for {
		rows, err := s.earlierRows(ctx, db)
		if err != nil || len(rows) == 0 {
			return err
		}
		for _, r := range rows {
			mark, err := markOf(r.token, r.slots)
			if err != nil {
				return fmt.Errorf("fence of %q: %w", r.resource, err)
			}
			token, slots, err := mark.columns()
			if err != nil {
				return err
			}
			if _, err := db.ExecContext(ctx, s.raise+s.asRead, token, slots, r.resource, r.token, r.slots); err != nil {
				return err
			}
		}
	}
}

func (s statements) earlierRows(ctx context.Context, db *sql.DB) (found []earlierRow, err error) {
	rows, err := db.QueryContext(ctx, s.earlier)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r earlierRow
		if err := rows.Scan(&r.resource, &r.token, &r.slots); err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, rows.Err()
}

// statements are those of a dialect, for a table.
type statements struct {
	dialect             Dialect
	table               string
	create, addSlots    string
	ensure, lock, raise string
	asRead              string // after raise: if the row is as it was read
	earlier             string // rows with the form of an earlier version
	look                string // the columns of any table
}

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
			create: `CREATE TABLE IF NOT EXISTS %s (
    resource text PRIMARY KEY,
    token    bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    slots    text NOT NULL
)`,
			addSlots: `ALTER TABLE %s ADD COLUMN slots text NOT NULL DEFAULT ''`,
			ensure:   `INSERT INTO %s (resource, token, slots) VALUES ($1, $2, $3) ON CONFLICT (resource) DO NOTHING`,
			lock:     `SELECT token, slots FROM %s WHERE resource = $1 FOR UPDATE`,
			raise:    `UPDATE %s SET token = $1, slots = $2 WHERE resource = $3`,
			asRead:   ` AND token = $4 AND slots = $5`,
			look:     `SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`,
		}
	case SQLite:
		s = statements{
			create: `CREATE TABLE IF NOT EXISTS %s (
    resource TEXT PRIMARY KEY CHECK (typeof(resource) = 'text'),
    token    INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token BETWEEN 1 AND 9007199254740991),
    slots    TEXT NOT NULL
)`,
			addSlots: `ALTER TABLE %s ADD COLUMN slots TEXT NOT NULL DEFAULT ''`,
			ensure:   `INSERT INTO %s (resource, token, slots) VALUES (?, ?, ?) ON CONFLICT (resource) DO NOTHING`,
			lock:     `SELECT token, slots FROM %s WHERE resource = ?`,
			raise:    `UPDATE %s SET token = ?, slots = ? WHERE resource = ?`,
			asRead:   ` AND token = ? AND slots = ?`,
			look:     `SELECT name FROM pragma_table_info(?, nullif(?, ''))`,
		}
	case MySQL:
		s = statements{ // bytes, since text is compared without regard to case; InnoDB, for it has transactions
			create: `CREATE TABLE IF NOT EXISTS %s (
    resource VARBINARY(255) PRIMARY KEY,
    token    BIGINT NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    slots    MEDIUMTEXT NOT NULL
) ENGINE=InnoDB`,
			addSlots: `ALTER TABLE %s ADD COLUMN slots MEDIUMTEXT NOT NULL DEFAULT ('')`,
			ensure:   `INSERT INTO %s (resource, token, slots) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE token = token`,
			lock:     `SELECT token, slots FROM %s WHERE resource = ? FOR UPDATE`,
			raise:    `UPDATE %s SET token = ?, slots = ? WHERE resource = ?`,
			asRead:   ` AND token = ? AND slots = ?`,
			look:     `SELECT column_name FROM information_schema.columns WHERE table_name = ? AND table_schema = coalesce(nullif(?, ''), database())`,
		}
	default:
		return s, fmt.Errorf("%w dialect %d: it must be PostgreSQL, SQLite or MySQL", ErrInvalid, g.Dialect)
	}
	s.dialect, s.table = g.Dialect, table
	s.earlier = `SELECT resource, token, slots FROM %s WHERE slots LIKE '{"%%' AND slots NOT LIKE '{"token":%%'`
	for _, text := range []*string{&s.create, &s.addSlots, &s.ensure, &s.lock, &s.raise, &s.earlier} {
		*text = fmt.Sprintf(*text, table)
	}
	return s, nil
}
