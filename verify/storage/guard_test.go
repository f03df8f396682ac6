package storage_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"fencepost/fence"
	"fencepost/fence/fencetest"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
)

// guardedDatabases are those of fence.SQL, with the levels at which a transaction may be
// refused by the database and repeated.
var guardedDatabases = map[string]struct {
	s       *server
	dialect fence.Dialect
	levels  []sql.IsolationLevel
}{
	"PostgreSQL": {postgres, fence.PostgreSQL, []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}},
	"MySQL":      {mariadb, fence.MySQL, []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}},
	"SQLite":     {nil, fence.SQLite, []sql.IsolationLevel{sql.LevelDefault}},
}

// openGuarded makes a database with the guard's table and one that it protects.
func openGuarded(t *testing.T, s *server, dialect fence.Dialect) (*sql.DB, fence.SQL) {
	t.Helper()
	address := startGuard(s, dialect)(t, recipe{}, nil)
	driver := "sqlite"
	if s != nil {
		driver = s.driver
	}
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db, fence.SQL{Dialect: dialect}
}

// refusedByDatabase reports whether a transaction is to be repeated, as Admit says.
func refusedByDatabase(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code == "40001" || pg.Code == "40P01"
	}
	my, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && (my.Number == 1213 || my.Number == 1020)
}

// Writers with permits and without write at once, at every isolation level, each
// transaction repeated where the database refuses it: what is written in a slot, and for
// all, only grows.
func TestGuardIsolation(t *testing.T) {
	for name, of := range guardedDatabases {
		for _, level := range of.levels {
			t.Run(name+"/"+level.String(), func(t *testing.T) {
				t.Parallel()
				db, guard := openGuarded(t, of.s, of.dialect)
				const writers, writes = 6, 10
				if _, err := db.ExecContext(t.Context(), "CREATE TABLE log (n INTEGER PRIMARY KEY, token BIGINT NOT NULL, slot INTEGER NOT NULL)"); err != nil {
					t.Fatal(err)
				}
				var all sync.WaitGroup
				for i := range writers {
					all.Go(func() {
						for k := range writes {
							token, slot := int64(1+(k*writers+i)), i%3-1
							if err := appendToLog(t.Context(), db, guard.Admit, level, token, slot); err != nil {
								t.Errorf("token %d, slot %d: %v", token, slot, err)
							}
						}
					})
				}
				all.Wait()
				judgeLog(t, db, writers*writes)
			})
		}
	}
}

// admission is what fence.SQL's Admit does.
type admission func(ctx context.Context, tx *sql.Tx, resource string, token int64, slot int) error

// appendToLog admits a token and writes it at the end of the log, which no two
// transactions can do at once.
func appendToLog(ctx context.Context, db *sql.DB, admit admission, level sql.IsolationLevel, token int64, slot int) error {
	for {
		err := func() error {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if err := admit(ctx, tx, "log", token, slot); err != nil {
				return err
			}
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(n), 0) FROM log").Scan(&n); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO log (n, token, slot) VALUES (%d, %d, %d)", n+1, token, slot)); err != nil {
				return err
			}
			return tx.Commit()
		}()
		if _, stale := errors.AsType[*fence.StaleError](err); stale {
			return nil
		}
		if !refusedByDatabase(err) {
			return err
		}
	}
}

// judgeLog plays what was written through the rule.
func judgeLog(t *testing.T, db *sql.DB, most int) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT token, slot FROM log ORDER BY n")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var mark fence.Mark
	n := 0
	for ; rows.Next(); n++ {
		var token int64
		var slot int
		if err := rows.Scan(&token, &slot); err != nil {
			t.Fatal(err)
		}
		if err := mark.Admit(token, slot); err != nil {
			t.Errorf("entry %d: token %d, slot %d: %v", n, token, slot, err)
		}
	}
	if err := rows.Err(); err != nil || n == 0 || n > most {
		t.Errorf("%d entries, %v", n, err)
	}
}

// A transaction that has read before it asks the guard may see the past; the guard does not.
func TestGuardOldSnapshot(t *testing.T) {
	for name, of := range guardedDatabases {
		for _, level := range of.levels {
			t.Run(name+"/"+level.String(), func(t *testing.T) {
				t.Parallel()
				db, guard := openGuarded(t, of.s, of.dialect)
				admit := func(tx *sql.Tx, token int64) error { return guard.Admit(t.Context(), tx, "a", token, fence.NoSlot) }
				if err := guard.Do(t.Context(), db, "a", 4, fence.NoSlot, func(*sql.Tx) error { return nil }); err != nil {
					t.Fatal(err)
				}
				tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback() }()
				var n int
				if err := tx.QueryRowContext(t.Context(), "SELECT count(*) FROM orders").Scan(&n); err != nil {
					t.Fatal(err)
				}
				if err := guard.Do(t.Context(), db, "a", 6, fence.NoSlot, func(*sql.Tx) error { return nil }); err != nil {
					t.Fatal(err)
				}
				if err := admit(tx, 5); err == nil {
					t.Error("5 was admitted after 6")
				}
			})
		}
	}
}

// What is rolled back was not admitted, and names are told apart byte by byte.
func TestGuardTransaction(t *testing.T) {
	for name, of := range guardedDatabases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, guard := openGuarded(t, of.s, of.dialect)
			broken := errors.New("broken")
			do := func(resource string, token int64, slot int, err error) error {
				return guard.Do(t.Context(), db, resource, token, slot, func(*sql.Tx) error { return err })
			}
			if err := do("a", 9, fence.NoSlot, broken); !errors.Is(err, broken) {
				t.Error(err)
			}
			for i, of := range []struct {
				resource string
				token    int64
				slot     int
				stale    int64
			}{
				{"a", 5, fence.NoSlot, 0}, {"a", 4, fence.NoSlot, 5}, {"A", 4, fence.NoSlot, 0}, {"a ", 3, fence.NoSlot, 0}, {"ä", 3, fence.NoSlot, 0},
				{"a", 8, 9999, 0}, {"a", 7, 0, 0}, {"a", 7, fence.NoSlot, 8}, {"a", 8, fence.NoSlot, 0}, {"a", 7, 0, 8}, {"a", 8, 0, 0},
				{strings.Repeat("a", 255), 1, fence.NoSlot, 0},
			} {
				err := do(of.resource, of.token, of.slot, nil)
				stale, refused := errors.AsType[*fence.StaleError](err)
				if refused != (of.stale > 0) || refused && stale.Highest != of.stale || !refused && err != nil {
					t.Errorf("step %d: %v", i, err)
				}
			}
			for _, err := range []error{
				do("", 1, fence.NoSlot, nil), do(strings.Repeat("a", 256), 1, fence.NoSlot, nil), do("a", 0, fence.NoSlot, nil), do("a", 9, 10000, nil),
				fence.SQL{Dialect: guard.Dialect, Table: "fences; DROP TABLE orders"}.CreateTable(t.Context(), db), fence.SQL{}.CreateTable(t.Context(), db),
			} {
				if !errors.Is(err, fence.ErrInvalid) {
					t.Error(err)
				}
			}
			other := fence.SQL{Dialect: guard.Dialect, Table: "fences_2"} // which has admitted nothing
			if err := other.CreateTable(t.Context(), db); err != nil {
				t.Error(err)
			}
			if err := other.Do(t.Context(), db, "a", 1, fence.NoSlot, func(*sql.Tx) error { return nil }); err != nil {
				t.Error(err)
			}
			for _, slots := range []string{"x", `{"0":-1}`, `{"10000":1}`} { // a mark that can't be read admits nothing
				if _, err := db.ExecContext(t.Context(), "UPDATE fences SET slots = '"+slots+"' WHERE resource = 'a'"); err != nil {
					t.Fatal(err)
				}
				if err := do("a", 100, fence.NoSlot, nil); err == nil {
					t.Errorf("with slots %q it was admitted", slots)
				}
			}
		})
	}
}

// The example of the page is this one, which is compiled and run.
func TestExample(t *testing.T) {
	own, err := os.ReadFile("guard_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(own), "// begin of the example\n")
	text, _, _ = strings.Cut(text, "\t// end of the example")
	shown := readPages(t).take(t, "example")
	if plain := strings.TrimPrefix(strings.ReplaceAll(text, "\n\t", "\n"), "\t"); plain != shown {
		t.Errorf("the page shows\n%s\nand this is run:\n%s", shown, plain)
	}
	db, guard := openGuarded(t, postgres, fence.PostgreSQL)
	if _, err := db.ExecContext(t.Context(), "INSERT INTO orders (id, status) VALUES ('42', 'new')"); err != nil {
		t.Fatal(err)
	}
	if err := ship(t.Context(), db, 5); err != nil {
		t.Error(err)
	}
	if err := guard.Do(t.Context(), db, "orders/42", 6, fence.NoSlot, func(*sql.Tx) error { return nil }); err != nil {
		t.Error(err)
	}
	var stale *fence.StaleError
	if err := ship(t.Context(), db, 5); !errors.As(err, &stale) {
		t.Error(err)
	}
	var status string
	if err := db.QueryRowContext(t.Context(), "SELECT status FROM orders").Scan(&status); err != nil || status != "shipped" {
		t.Error(status, err)
	}
}

func ship(ctx context.Context, db *sql.DB, token int64) error {
	// begin of the example
	guard := fence.SQL{Dialect: fence.PostgreSQL} // or SQLite, MySQL (also for MariaDB)
	err := guard.Do(ctx, db, "orders/42", token, fence.NoSlot, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'shipped' WHERE id = '42'")
		return err
	})
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		return fmt.Errorf("somebody else has the lock: %w", stale) // stop working
	}
	return err
	// end of the example
}

// recipeFor opens a recipe as its page has it.
func recipeFor(t *testing.T, name string) (storage fencetest.Storage, text map[string]string, address string) {
	t.Helper()
	r := recipeNamed(name)
	text = r.text(t, true)
	address = r.start(t, r, text)
	storage, err := r.open(r, text, address)
	if err != nil {
		t.Fatal(err)
	}
	return storage, text, address
}

func write(t *testing.T, s fencetest.Storage, token, value string) error {
	t.Helper()
	return s.Write(t.Context(), fencetest.Write{Resource: "a", Token: token, Slot: -1, Value: value})
}

// A mark that is there and can't be read is not that of a file that was never written.
func TestFilesUnreadableMark(t *testing.T) {
	t.Parallel()
	s, _, dir := recipeFor(t, "files/write")
	if err := write(t, s, "9", "new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, ".a.fence")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, ".a.fence"), 0o700); err != nil { // what root can't read either
		t.Fatal(err)
	}
	if err := write(t, s, "5", "stale"); err == nil || errors.Is(err, fencetest.ErrRefused) {
		t.Errorf("a write whose mark can't be read: %v", err)
	}
	if value, err := s.Read(t.Context(), "a"); value != "new" {
		t.Error(value, err)
	}
}

// With the rows that were found, a write of what is there already is none of a stale
// holder's; with those that were changed it would look like one, as the page warns.
func TestMariaDBFoundRows(t *testing.T) {
	t.Parallel()
	s, text, address := recipeFor(t, "mariadb/update")
	for range 2 {
		if err := write(t, s, "5", "same"); err != nil {
			t.Error(err)
		}
	}
	changed, err := recipeNamed("mariadb/update").open(recipe{}, text, strings.Replace(address, "clientFoundRows=true", "clientFoundRows=false", 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := write(t, changed, "5", "same"); !errors.Is(err, fencetest.ErrRefused) {
		t.Errorf("the warning of the page is not needed: %v", err)
	}
}

// An ACL can't forbid what a script does and allow the script, as the page says: else it
// would have to recommend that.
func TestRedisACL(t *testing.T) {
	t.Parallel()
	s, _, address := recipeFor(t, "redis/function")
	if err := s.(*keys).client.Do(t.Context(), "ACL", "SETUSER", "caller", "on", "nopass", "~*", "+@all", "-@write", "+fcall").Err(); err != nil {
		t.Fatal(err)
	}
	caller := &keys{client: redis.NewClient(&redis.Options{Addr: address, Username: "caller", Password: "x"}), command: s.(*keys).command}
	defer caller.client.Close()
	if err := caller.client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := write(t, caller, "5", "five"); err == nil {
		t.Error("a user may call what may write, and may not write")
	}
	if value, err := s.Read(t.Context(), "a"); value != "" {
		t.Error(value, err)
	}
}

// Pages are short, and each says what it does not protect from.
func TestPages(t *testing.T) {
	paths, err := filepath.Glob("../../docs/storage/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(path) != "README.md" && !regexp.MustCompile(`does\s+not\s+protect|does\s+not\s+guarantee|Neither helps`).Match(text) {
			t.Errorf("%s does not say what it does not protect from", path)
		}
	}
}

// A transaction that has read before it writes may see the past; what it writes with a lower token is not committed, at any level
// of isolation, as the page of PostgreSQL says.
func TestRecipesOldSnapshot(t *testing.T) {
	for _, name := range []string{"postgresql/update", "postgresql/upsert", "postgresql/table", "postgresql/trigger"} {
		for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
			t.Run(name+"/"+level, func(t *testing.T) {
				t.Parallel()
				s, text, _ := recipeFor(t, name)
				d := s.(*database)
				if err := write(t, s, "4", "old"); err != nil {
					t.Fatal(err)
				}
				conn, err := d.db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				for _, first := range []string{"BEGIN ISOLATION LEVEL " + level, "SELECT * FROM orders"} {
					if _, err := conn.ExecContext(t.Context(), first); err != nil {
						t.Fatal(err)
					}
				}
				if err := write(t, s, "6", "new"); err != nil {
					t.Fatal(err)
				}
				defer func() { _, _ = conn.ExecContext(context.WithoutCancel(t.Context()), "ROLLBACK") }()
				refused := false
				for _, one := range statements(text["write"]) {
					if one.text == "BEGIN" || one.text == "COMMIT" {
						continue
					}
					rows, err := d.one(t.Context(), conn, one, map[string]any{"resource": "a", "token": int64(5), "value": "stale"})
					if refused = err != nil || one.noRow && rows == 0; refused {
						if code := pgCode(err); code != "" && code != "ZF412" && code != "40001" {
							t.Error(err)
						}
						break
					}
				}
				if !refused {
					t.Error("5 was admitted after 6")
				}
			})
		}
	}
}
