package storage_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// before makes anew what an earlier version left: a table fence with marks, which are returned. Those who were quick have
// the table fences of today already.
func (e *earlier) before(of earlierTable, quick bool) map[string]int64 {
	e.t.Helper()
	e.exec("DROP TABLE IF EXISTS fence", "DROP TABLE IF EXISTS fences", "DROP TABLE IF EXISTS fences_before", "DROP TABLE IF EXISTS orders")
	e.exec(e.text["setup"])
	if !quick {
		e.exec("DROP TABLE fences")
	}
	e.exec(of.fence, fmt.Sprintf(of.write, "a", 10), fmt.Sprintf(of.write, "b", 7))
	return map[string]int64{"a": 10, "b": 7}
}

// upgrade runs statements in a connection of their own, which is lost after them. A shell that goes on does so after an error.
func (e *earlier) upgrade(list []statement, goesOn bool, between func()) (failed error) {
	e.t.Helper()
	conn, err := e.db.Conn(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) }()
	for _, s := range list {
		if _, err := conn.ExecContext(e.t.Context(), s.text); err != nil {
			if failed = err; !goesOn {
				return failed
			}
		}
		between()
	}
	return failed
}

// holds reports whether each mark is kept in the table of today.
func (e *earlier) holds(marks map[string]int64) bool {
	for resource, highest := range marks {
		var token int64
		if e.db.QueryRowContext(e.t.Context(), fmt.Sprintf("SELECT token FROM fences WHERE resource = '%s'", resource)).Scan(&token) != nil || token < highest {
			return false
		}
	}
	return true
}

// repeat does what is to be done after an upgrade that came to nothing: it is repeated, and CreateTable says what else. CreateTable
// refuses as long as a mark is missing.
func (e *earlier) repeat(list []statement, goesOn bool, marks map[string]int64) {
	e.t.Helper()
	refused := e.guard.CreateTable(e.t.Context(), e.db)
	if refused == nil && !e.holds(marks) {
		e.t.Fatal("CreateTable says nothing of the marks that are missing")
	}
	failed := e.upgrade(list, goesOn, func() {})
	if err := e.guard.CreateTable(e.t.Context(), e.db); err != nil && strings.Contains(err.Error(), "rename it to fence") {
		e.exec("ALTER TABLE fences_before RENAME TO fence")
		failed = e.upgrade(list, goesOn, func() {})
	}
	if failed != nil && !goesOn && refused != nil {
		e.t.Fatalf("the upgrade can't be repeated: %v", failed)
	}
	if err := e.guard.CreateTable(e.t.Context(), e.db); err != nil {
		e.t.Fatal(err)
	}
	for resource, highest := range marks {
		e.is(resource, highest)
	}
}

// No mark is lost by an upgrade that ends after any of its statements, or of which a shell that goes on after an error did all but one.
func TestUpgradeBrokenOff(t *testing.T) {
	eachEarlier(t, func(t *testing.T, e *earlier, of earlierTable) {
		list := statements(e.text["upgrade"])
		for i := range list {
			for _, quick := range []bool{false, true} {
				marks := e.before(of, quick)
				if err := e.upgrade(list[:i+1], false, func() {}); err != nil {
					t.Fatal(err)
				}
				e.repeat(list, false, marks)

				marks = e.before(of, quick)
				_ = e.upgrade(slices.Delete(slices.Clone(list), i, i+1), true, func() {})
				e.repeat(list, true, marks)
			}
		}
	})
}

// What a program with an earlier recipe admits while the upgrade runs is not forgotten.
func TestUpgradeBesideWriters(t *testing.T) {
	dontWait := map[string]string{"SELECT current_schema()": "SET lock_timeout = 100", "SELECT database()": "SET lock_wait_timeout = 0", "SELECT 'main'": "PRAGMA busy_timeout = 0"}
	eachEarlier(t, func(t *testing.T, e *earlier, of earlierTable) {
		marks := e.before(of, false)
		writer, err := e.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer writer.Close()
		if _, err := writer.ExecContext(t.Context(), dontWait[of.schema]); err != nil {
			t.Fatal(err)
		}
		write := func() error {
			_, err := writer.ExecContext(t.Context(), fmt.Sprintf(of.write, "a", marks["a"]+1))
			if err == nil {
				marks["a"]++
			}
			return err
		}
		if err := write(); err != nil {
			t.Fatal(err)
		}
		if err := e.upgrade(statements(e.text["upgrade"]), false, func() { _ = write() }); err != nil {
			t.Fatal(err)
		}
		if write() == nil {
			t.Error("a program with an earlier recipe does not notice")
		}
		e.repeat(nil, false, marks)
	})
}

// A name that is no text is refused, and all is as it was, in a shell that goes on as well.
func TestUpgradeOfBadNames(t *testing.T) {
	eachEarlier(t, func(t *testing.T, e *earlier, of earlierTable) {
		if of.recipe != "sqlite/table" {
			return // no other database has such names
		}
		for _, name := range []string{"x'63'", "NULL"} {
			marks := e.before(of, true)
			e.exec("INSERT INTO fence (resource, token) VALUES (" + name + ", 5)")
			list := statements(e.text["upgrade"])
			for _, goesOn := range []bool{false, true} {
				if e.upgrade(list, goesOn, func() {}) == nil {
					t.Fatalf("the name %s was not refused", name)
				}
				var rows int
				if err := e.db.QueryRowContext(context.Background(), "SELECT count(*) FROM fence").Scan(&rows); err != nil || rows != 3 {
					t.Fatalf("%d marks are left, %v", rows, err)
				}
				if e.guard.CreateTable(t.Context(), e.db) == nil {
					t.Error("CreateTable says nothing of the marks that are missing")
				}
			}
			e.exec("UPDATE fence SET resource = coalesce(CAST(resource AS TEXT), 'c') WHERE token = 5")
			marks["c"] = 5
			e.repeat(list, false, marks)
		}
	})
}
