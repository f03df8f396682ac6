package storage_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"fencepost/fence"
	"fencepost/fence/fencetest"
)

// earlierTable is what fence.SQL and a recipe made and wrote before they had one table: fences and fence.
type earlierTable struct{ recipe, schema, fences, fence, write string }

var earlierTables = map[string]earlierTable{
	"PostgreSQL": {
		recipe: "postgresql/table",
		schema: "SELECT current_schema()",
		fences: "CREATE TABLE fences (resource text PRIMARY KEY, token bigint NOT NULL, slots text NOT NULL)",
		fence:  "CREATE TABLE fence (resource text PRIMARY KEY, token bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991))",
		write:  "INSERT INTO fence (resource, token) VALUES ('%s', %d) ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE fence.token <= EXCLUDED.token",
	},
	"SQLite": {
		recipe: "sqlite/table",
		schema: "SELECT 'main'",
		fences: "CREATE TABLE fences (resource TEXT PRIMARY KEY, token INTEGER NOT NULL, slots TEXT NOT NULL) WITHOUT ROWID",
		fence:  "CREATE TABLE fence (resource TEXT PRIMARY KEY, token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token BETWEEN 1 AND 9007199254740991))",
		write:  "INSERT INTO fence (resource, token) VALUES ('%s', %d) ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token",
	},
	"MySQL": {
		recipe: "mariadb/table",
		schema: "SELECT database()",
		fences: "CREATE TABLE fences (resource VARBINARY(255) PRIMARY KEY, token BIGINT NOT NULL, slots MEDIUMTEXT NOT NULL) ENGINE=InnoDB",
		fence:  "CREATE TABLE fence (resource VARBINARY(255) PRIMARY KEY, token BIGINT NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991)) ENGINE=InnoDB",
		write:  "INSERT INTO fence (resource, token) VALUES ('%s', %[2]d) ON DUPLICATE KEY UPDATE token = GREATEST(token, %[2]d)",
	},
}

// earlier is a database with tables of an earlier version, and both who write to it now.
type earlier struct {
	t     *testing.T
	db    *sql.DB
	guard fence.SQL
	page  fencetest.Storage
	text  map[string]string
}

// eachEarlier runs a test with each kind of database, empty.
func eachEarlier(t *testing.T, test func(t *testing.T, e *earlier, of earlierTable)) {
	for name, database := range guardedDatabases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, dsn := "sqlite", ""
			if database.s == nil {
				dsn = sqliteDSN(t)
			} else {
				driver, dsn = database.s.driver, database.s.database(t)
			}
			db, err := sql.Open(driver, dsn)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			r := recipeNamed(earlierTables[name].recipe)
			text := r.text(t, true)
			page, err := r.open(r, text, dsn)
			if err != nil {
				t.Fatal(err)
			}
			test(t, &earlier{t, db, fence.SQL{Dialect: database.dialect}, page, text}, earlierTables[name])
		})
	}
}

func (e *earlier) exec(statements ...string) {
	e.t.Helper()
	for _, s := range statements {
		if _, err := e.db.ExecContext(e.t.Context(), s); err != nil {
			e.t.Fatalf("%s: %v", s, err)
		}
	}
}

// is tries a token below a mark by Go and by the page, and then the mark itself.
func (e *earlier) is(resource string, highest int64) {
	e.t.Helper()
	for _, token := range []int64{highest - 1, highest} {
		byGo := e.guard.Do(e.t.Context(), e.db, resource, token, fence.NoSlot, func(*sql.Tx) error { return nil })
		byPage := e.page.Write(e.t.Context(), fencetest.Write{Resource: resource, Token: strconv.FormatInt(token, 10), Slot: -1, Value: "v"})
		_, stale := errors.AsType[*fence.StaleError](byGo)
		if wanted := token < highest; stale != wanted || !stale && byGo != nil {
			e.t.Errorf("%s is at %d, and %d by Go: %v", resource, highest, token, byGo)
		} else if errors.Is(byPage, fencetest.ErrRefused) != wanted || !wanted && byPage != nil {
			e.t.Errorf("%s is at %d, and %d by the page: %v", resource, highest, token, byPage)
		}
	}
}

// What an earlier fence.SQL has admitted, with slots too, holds for whoever writes now.
func TestTableOfEarlierGuard(t *testing.T) {
	eachEarlier(t, func(t *testing.T, e *earlier, of earlierTable) {
		e.exec(of.fences, "INSERT INTO fences (resource, token, slots) VALUES ('a', 5, ''), ('b', 5, '{\"3\":9}'), ('c', 0, '{\"0\":7,\"12\":8}'), ('d', 5, '{\"3\":9}')")
		slot := func(resource string, token int64, slot int) bool {
			err := e.guard.Do(t.Context(), e.db, resource, token, slot, func(*sql.Tx) error { return nil })
			if _, stale := errors.AsType[*fence.StaleError](err); stale || err == nil {
				return err == nil
			}
			t.Fatal(err)
			return false
		}
		if slot("d", 8, 3) || slot("d", 4, 0) || !slot("d", 6, 0) || !slot("d", 9, 3) { // as it is
			t.Error("the mark of an earlier version is not what it was")
		}
		for range 2 {
			if err := e.guard.CreateTable(t.Context(), e.db); err != nil {
				t.Fatal(err)
			}
		}
		if slot("b", 8, 3) || slot("b", 4, 0) || !slot("b", 5, 0) || slot("c", 7, 12) || !slot("c", 1, 1) {
			t.Error("the table has other marks than before")
		}
		e.exec(e.text["setup"])
		for resource, highest := range map[string]int64{"a": 5, "b": 9, "c": 8, "d": 9} {
			e.is(resource, highest)
		}
	})
}

// What earlier recipes have admitted is not forgotten: the guard refuses to begin a table beside theirs, says
// what to do, and that does it, whether there was a table of the guard's or not.
func TestTableOfEarlierRecipe(t *testing.T) {
	for _, both := range []bool{false, true} {
		t.Run(fmt.Sprint("both ", both), func(t *testing.T) {
			eachEarlier(t, func(t *testing.T, e *earlier, of earlierTable) {
				e.exec(of.fence, fmt.Sprintf(of.write, "a", 10), fmt.Sprintf(of.write, "b", 7), fmt.Sprintf(of.write, "c", 7))
				if both {
					e.exec(of.fences, "INSERT INTO fences (resource, token, slots) VALUES ('a', 6, ''), ('b', 5, '{\"3\":9}'), ('c', 6, '{\"3\":7}'), ('d', 4, '')")
				}
				var schema string
				if err := e.db.QueryRowContext(t.Context(), of.schema).Scan(&schema); err != nil {
					t.Fatal(err)
				}
				for _, table := range []string{"", "fences", schema + ".fences"} {
					err := fence.SQL{Dialect: e.guard.Dialect, Table: table}.CreateTable(t.Context(), e.db)
					if err == nil || !strings.Contains(err.Error(), `"table upgrade"`) {
						t.Errorf("table %q beside that of earlier recipes: %v", table, err)
					}
				}
				if err := e.guard.Do(t.Context(), e.db, "new", 1, fence.NoSlot, func(*sql.Tx) error { return nil }); (err == nil) != both {
					t.Errorf("a table was begun: %v", err)
				}
				e.exec(e.text["setup"], e.text["upgrade"])
				if err := e.guard.CreateTable(t.Context(), e.db); err != nil {
					t.Fatal(err)
				}
				marks := map[string]int64{"a": 10, "b": 7, "c": 7}
				if both {
					marks["b"], marks["d"] = 9, 4
				}
				for resource, highest := range marks {
					e.is(resource, highest)
				}
				if _, err := e.db.ExecContext(t.Context(), fmt.Sprintf(of.write, "a", 11)); err == nil {
					t.Error("a recipe that writes as before does not notice")
				}
				if _, err := e.db.ExecContext(t.Context(), "INSERT INTO fences (resource, token, slots) VALUES ('other', 0, '')"); (err == nil) != both {
					t.Errorf("a guard that writes as before, to the table of this version: %v", err)
				}
			})
		})
	}
}

// The guard can be given the table of earlier recipes as it is, and heeds what their statements write to it beside it.
func TestTableOfEarlierRecipeByName(t *testing.T) {
	eachEarlier(t, func(t *testing.T, e *earlier, of earlierTable) {
		e.exec(of.fence, fmt.Sprintf(of.write, "a", 10))
		guard := fence.SQL{Dialect: e.guard.Dialect, Table: "fence"}
		for range 2 {
			if err := guard.CreateTable(t.Context(), e.db); err != nil {
				t.Fatal(err)
			}
		}
		do := func(token int64, slot int) error {
			return guard.Do(t.Context(), e.db, "a", token, slot, func(*sql.Tx) error { return nil })
		}
		for i, of := range []struct {
			token   int64
			slot    int
			highest int64
		}{{9, -1, 10}, {9, 3, 10}, {10, 3, 0}, {12, 3, 0}, {11, -1, 12}, {11, 2, 0}} {
			err := do(of.token, of.slot)
			if stale, refused := errors.AsType[*fence.StaleError](err); refused != (of.highest > 0) || refused && stale.Highest != of.highest || !refused && err != nil {
				t.Errorf("step %d: %v", i, err)
			}
		}
		e.exec(fmt.Sprintf(of.write, "a", 14)) // without a slot
		var stale *fence.StaleError
		if err := do(13, 2); !errors.As(err, &stale) || stale.Highest != 14 {
			t.Errorf("an earlier statement has admitted 14, and 13 is %v", err)
		}
	})
}

// A table that only has the name is left as it is.
func TestTableOfOthers(t *testing.T) {
	eachEarlier(t, func(t *testing.T, e *earlier, _ earlierTable) {
		const columns = " (id INTEGER PRIMARY KEY, metres INTEGER NOT NULL)"
		e.exec("CREATE TABLE fence" + columns)
		if err := e.guard.CreateTable(t.Context(), e.db); err != nil {
			t.Errorf("beside a table fence of others: %v", err)
		}
		e.exec("DROP TABLE fences", "CREATE TABLE fences"+columns)
		if err := e.guard.CreateTable(t.Context(), e.db); err == nil {
			t.Error("a table fences of others was taken for the guard's")
		}
		e.exec("INSERT INTO fences VALUES (1, 2)")
	})
}
