package storage_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"fencepost/fence"
	"fencepost/fence/fencetest"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
)

// recipe is one way to write with a token.
type recipe struct {
	name string

	// start starts what it needs and returns its address, made ready by the setup.
	start func(t testing.TB, r recipe, text map[string]string) (address string)

	// open returns the storage at an address, in any process.
	open func(r recipe, text map[string]string, address string) (fencetest.Storage, error)

	// marks are the snippets of it, by role; unguard takes its guard from one of them:
	// the role, and what is replaced by what.
	marks   map[string]string
	unguard [3]string

	permits bool
	rounds  int // of concurrent writes; 0: the default
}

// text returns the snippets of a recipe, without its guard if that is asked for.
func (r recipe) text(t testing.TB, guarded bool) map[string]string {
	t.Helper()
	pages, text := readPages(t), map[string]string{}
	for role, mark := range r.marks {
		text[role] = pages.take(t, mark)
	}
	if !guarded && r.unguard[0] == "" {
		text["unguarded"] = "yes" // a guard of the package fence, which is not asked then
	} else if !guarded {
		role, old := r.unguard[0], r.unguard[1]
		if strings.Count(text[role], old) != 1 {
			t.Fatalf("%s: the page does not have %q once", r.name, old)
		}
		text[role] = strings.Replace(text[role], old, r.unguard[2], 1)
	}
	return text
}

var recipes = []recipe{
	{
		name: "postgresql/update", start: startSQL(postgres), open: openSQL("pgx", seedRow),
		marks:   map[string]string{"setup": "postgresql/update setup", "write": "postgresql/update write"},
		unguard: [3]string{"write", " AND fence <= :token", ""},
	},
	{
		name: "postgresql/upsert", start: startSQL(postgres), open: openSQL("pgx", ""),
		marks:   map[string]string{"setup": "postgresql/update setup", "write": "postgresql/upsert write"},
		unguard: [3]string{"write", "\n    WHERE orders.fence <= EXCLUDED.fence", ""},
	},
	{
		name: "postgresql/table", start: startSQL(postgres), open: openSQL("pgx", ""),
		marks:   map[string]string{"setup": "postgresql/table setup", "upgrade": "postgresql/table upgrade", "write": "postgresql/table write"},
		unguard: [3]string{"write", "\n    WHERE fences.token <= EXCLUDED.token", ""},
	},
	{
		name: "postgresql/trigger", start: startSQL(postgres), open: openSQL("pgx", ""),
		marks:   map[string]string{"setup": "postgresql/trigger setup", "write": "postgresql/trigger write", "rights": "postgresql/trigger rights"},
		unguard: [3]string{"setup", "\n        WHERE fences.token <= EXCLUDED.token", ""},
	},
	{
		name: "sqlite/update", start: startSQLite, open: openSQL("sqlite", seedRow),
		marks:   map[string]string{"setup": "sqlite/update setup", "write": "sqlite/update write"},
		unguard: [3]string{"write", " AND fence <= :token", ""},
	},
	{
		name: "sqlite/upsert", start: startSQLite, open: openSQL("sqlite", ""),
		marks:   map[string]string{"setup": "sqlite/update setup", "write": "sqlite/upsert write"},
		unguard: [3]string{"write", "\n    WHERE orders.fence <= excluded.fence", ""},
	},
	{
		name: "sqlite/table", start: startSQLite, open: openSQL("sqlite", ""),
		marks:   map[string]string{"setup": "sqlite/table setup", "upgrade": "sqlite/table upgrade", "write": "sqlite/table write"},
		unguard: [3]string{"write", "\n    WHERE fences.token <= excluded.token", ""},
	},
	{
		name: "mariadb/update", start: startSQL(mariadb), open: openSQL("mysql", "INSERT IGNORE INTO orders (id, status) VALUES (:resource, '')"),
		marks:   map[string]string{"setup": "mariadb/update setup", "write": "mariadb/update write"},
		unguard: [3]string{"write", " AND fence <= :token", ""},
	},
	{
		name: "mariadb/table", start: startSQL(mariadb), open: openSQL("mysql", ""),
		marks:   map[string]string{"setup": "mariadb/table setup", "upgrade": "mariadb/table upgrade", "write": "mariadb/table write"},
		unguard: [3]string{"write", " AND token = :token", ""},
	},
	{
		name: "redis/eval", start: startRedis, open: openRedis,
		marks:   map[string]string{"write": "redis/eval write"},
		unguard: [3]string{"write", "tonumber(token) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')", "false"},
	},
	{
		name: "redis/function", start: startRedis, open: openRedis,
		marks:   map[string]string{"setup": "redis/function setup", "command": "redis/function command"},
		unguard: [3]string{"setup", "tonumber(token) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')", "false"},
	},
	{
		name: "s3/put", start: startS3, open: openS3, rounds: 2,
		marks:   map[string]string{"write": "s3/put write"},
		unguard: [3]string{"write", `[ "$token" -ge "$highest" ] || exit 1`, "true"},
	},
	{
		name: "files/write", start: startFiles, open: openFiles, rounds: 2,
		marks:   map[string]string{"write": "files/write write"},
		unguard: [3]string{"write", `[ "$token" -ge "$highest" ] || exit 1`, "true"},
	},
	{name: "fence.SQL/PostgreSQL", start: startGuard(postgres, fence.PostgreSQL), open: openGuard("pgx", fence.PostgreSQL), permits: true},
	{name: "fence.SQL/MySQL", start: startGuard(mariadb, fence.MySQL), open: openGuard("mysql", fence.MySQL), permits: true},
	{name: "fence.SQL/SQLite", start: startGuard(nil, fence.SQLite), open: openGuard("sqlite", fence.SQLite), permits: true},
	{name: "fence.Dir", start: startFiles, open: openDir, permits: true, rounds: 2},
	{name: "fence.Handler", start: startHandler, open: openHandler, permits: true},
}

// seedRow is what somebody did before there was anything to write to.
const seedRow = "INSERT INTO orders (id, status) VALUES (:resource, '') ON CONFLICT DO NOTHING"

// startSQL returns a start that makes a database and runs the setup in it.
func startSQL(s *server) func(testing.TB, recipe, map[string]string) string {
	return func(t testing.TB, r recipe, text map[string]string) string {
		dsn := s.database(t)
		execAll(t, s.driver, dsn, text["setup"])
		return dsn
	}
}

func startSQLite(t testing.TB, r recipe, text map[string]string) string {
	dsn := sqliteDSN(t)
	execAll(t, "sqlite", dsn, text["setup"])
	return dsn
}

func sqliteDSN(t testing.TB) string {
	return "file:" + t.TempDir() + "/orders.db?_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
}

// execAll runs statements as they are, all at once.
func execAll(t testing.TB, driver, dsn, text string) {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(context.Background(), text); err != nil {
		t.Fatal(err)
	}
}

// database is storage that is written by the statements of a page.
type database struct {
	db    *sql.DB
	pg    bool
	seed  []statement // before a resource is written
	write []statement
}

func openSQL(driver, seed string) func(recipe, map[string]string, string) (fencetest.Storage, error) {
	return func(r recipe, text map[string]string, address string) (fencetest.Storage, error) {
		db, err := sql.Open(driver, address)
		if err != nil {
			return nil, err
		}
		d := &database{db: db, pg: driver == "pgx", write: statements(text["write"])}
		if len(d.write) == 0 {
			return nil, errors.New("there is nothing to write with")
		}
		if seed != "" {
			d.seed = statements(seed + ";")
		}
		return d, nil
	}
}

// Write binds the token as an integer, as any program with types does.
func (d *database) Write(ctx context.Context, w fencetest.Write) error {
	token, err := strconv.ParseInt(w.Token, 10, 64)
	if err != nil {
		return fencetest.ErrRefused
	}
	values := map[string]any{"resource": w.Resource, "token": token, "value": w.Value}
	for {
		err := d.play(ctx, append(d.seed[:len(d.seed):len(d.seed)], d.write...), values)
		if deadlock, ok := errors.AsType[*mysql.MySQLError](err); ok && deadlock.Number == 1213 {
			continue // as the page says
		}
		return err
	}
}

func (d *database) play(ctx context.Context, list []statement, values map[string]any) error {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, s := range list {
		rows, err := d.one(ctx, conn, s, values)
		if err != nil || s.noRow && rows == 0 {
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") // does nothing outside of a transaction
		}
		if raised, ok := errors.AsType[*pgconn.PgError](err); ok && raised.Code == "ZF412" || err == nil && s.noRow && rows == 0 {
			return fencetest.ErrRefused
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// querier is a connection or a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// one runs a statement and returns how many rows it has found or changed.
func (d *database) one(ctx context.Context, conn querier, s statement, values map[string]any) (n int64, err error) {
	text, args := s.bind(d.pg, values)
	if !s.isSelect {
		result, err := conn.ExecContext(ctx, text, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	}
	rows, err := conn.QueryContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		n++
	}
	return n, rows.Err()
}

func (d *database) Read(ctx context.Context, resource string) (status string, err error) {
	text, args := statement{text: "SELECT status FROM orders WHERE id = :resource"}.bind(d.pg, map[string]any{"resource": resource})
	err = d.db.QueryRowContext(ctx, text, args...).Scan(&status)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return status, err
}

// guarded is a database behind fence.SQL.
type guarded struct {
	database
	guard fence.SQL
	off   bool   // the guard is not asked
	first string // a statement with the token, before the write in its transaction; or none
}

func startGuard(s *server, dialect fence.Dialect) func(testing.TB, recipe, map[string]string) string {
	return func(t testing.TB, r recipe, _ map[string]string) string {
		driver, dsn := "sqlite", ""
		if s == nil {
			dsn = sqliteDSN(t)
		} else {
			driver, dsn = s.driver, s.database(t)
		}
		execAll(t, driver, dsn, "CREATE TABLE orders (id VARCHAR(255) PRIMARY KEY, status VARCHAR(255) NOT NULL)")
		db, err := sql.Open(driver, dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for range 2 { // once more does nothing
			if err := (fence.SQL{Dialect: dialect}).CreateTable(t.Context(), db); err != nil {
				t.Fatal(err)
			}
		}
		return dsn
	}
}

func openGuard(driver string, dialect fence.Dialect) func(recipe, map[string]string, string) (fencetest.Storage, error) {
	return func(r recipe, text map[string]string, address string) (fencetest.Storage, error) {
		db, err := sql.Open(driver, address)
		return &guarded{database: database{db: db, pg: driver == "pgx"}, guard: fence.SQL{Dialect: dialect}, off: text["unguarded"] != ""}, err
	}
}

func (g *guarded) Write(ctx context.Context, w fencetest.Write) error {
	token, err := fence.ParseToken(w.Token)
	if err == nil {
		upsert := "INSERT INTO orders (id, status) VALUES (:resource, :value) ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status"
		if g.guard.Dialect == fence.MySQL {
			upsert = "INSERT INTO orders (id, status) VALUES (:resource, :value) ON DUPLICATE KEY UPDATE status = :value"
		}
		text, args := statement{text: upsert}.bind(g.pg, map[string]any{"resource": w.Resource, "value": w.Value})
		if g.off {
			_, err = g.db.ExecContext(ctx, text, args...)
		} else {
			err = g.guard.Do(ctx, g.db, w.Resource, token, w.Slot, func(tx *sql.Tx) error {
				if g.first != "" {
					if _, err := tx.ExecContext(ctx, fmt.Sprintf(g.first, token)); err != nil {
						return err
					}
				}
				_, err := tx.ExecContext(ctx, text, args...)
				return err
			})
		}
	}
	return answer(err)
}

func answer(err error) error {
	if _, stale := errors.AsType[*fence.StaleError](err); stale || errors.Is(err, fence.ErrInvalid) {
		return fmt.Errorf("%w: %w", fencetest.ErrRefused, err)
	}
	return err
}

// keys are what the scripts for Redis write.
type keys struct {
	client  *redis.Client
	script  string // empty: a Function is called
	command []string
}

func openRedis(r recipe, text map[string]string, address string) (fencetest.Storage, error) {
	return &keys{client: redis.NewClient(&redis.Options{Addr: address}), script: text["write"], command: strings.Fields(text["command"])}, nil
}

func (k *keys) Write(ctx context.Context, w fencetest.Write) error {
	args := []any{"EVAL", k.script, 1, w.Resource, w.Token, w.Value}
	if k.script == "" { // the page shows which words are whose
		args = []any{k.command[0], k.command[1], k.command[2], w.Resource, w.Token, w.Value}
	}
	switch n, err := k.client.Do(ctx, args...).Int(); {
	case err != nil:
		return err
	case n == 0:
		return fencetest.ErrRefused
	}
	return nil
}

func (k *keys) Read(ctx context.Context, resource string) (string, error) {
	value, err := k.client.HGet(ctx, resource, "value").Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return value, err
}
