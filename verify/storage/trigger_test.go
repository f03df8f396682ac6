package storage_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// The trigger stops who has forgotten the token, whatever the statement is, and remembers
// rows that are gone.
func TestTrigger(t *testing.T) {
	t.Parallel()
	s, _, _ := recipeFor(t, "postgresql/trigger")
	if err := write(t, s, "5", "v5"); err != nil {
		t.Fatal(err)
	}
	db := s.(*database).db
	for _, forgetful := range []string{
		"UPDATE orders SET status = 'x'", "DELETE FROM orders", "TRUNCATE orders", "INSERT INTO orders (id, status) VALUES ('b', 'x')",
		"INSERT INTO orders (id, status) VALUES ('a', 'x') ON CONFLICT (id) DO UPDATE SET status = 'x'",
	} {
		if code := pgCode(inTransaction(t, db, forgetful)); code != "ZF428" {
			t.Errorf("%s: %s", forgetful, code)
		}
	}
	for _, of := range []struct{ token, statement, code string }{
		{"4", "UPDATE orders SET status = 'x' WHERE id = 'a'", "ZF412"},
		{"4", "DELETE FROM orders WHERE id = 'a'", "ZF412"},
		{"9", "UPDATE orders SET id = 'b' WHERE id = 'a'", "ZF428"},
		{"9", "TRUNCATE orders", "ZF428"},
		{"0", "UPDATE orders SET status = 'x' WHERE id = 'a'", "23514"},
		{"9007199254740992", "UPDATE orders SET status = 'x' WHERE id = 'a'", "23514"},
		{"six", "UPDATE orders SET status = 'x' WHERE id = 'a'", "22P02"},
		{"6", "DELETE FROM orders WHERE id = 'a'", ""},
		{"5", "INSERT INTO orders (id, status) VALUES ('a', 'x')", "ZF412"}, // the row is gone, its mark is not
		{"6", "INSERT INTO orders (id, status) VALUES ('a', 'v6')", ""},
	} {
		err := inTransaction(t, db, "SELECT set_config('fence.token', '"+of.token+"', true)", of.statement)
		if code := pgCode(err); code != of.code {
			t.Errorf("token %s, %s: %q", of.token, of.statement, code)
		} else if verb, _, _ := strings.Cut(of.statement, " "); code == "ZF428" && !strings.Contains(err.Error(), verb+" ") {
			t.Errorf("%s: %v", of.statement, err)
		}
	}
	if value, err := s.Read(t.Context(), "a"); value != "v6" {
		t.Error(value, err)
	}
}

// A role with the rights that the page gives it can write, and can neither lower a mark nor
// get around it.
func TestTriggerRights(t *testing.T) {
	t.Parallel()
	s, text, address := recipeFor(t, "postgresql/trigger")
	admin := s.(*database).db
	execAll(t, "pgx", address, text["rights"])
	t.Cleanup(func() { // a role is one of the whole server
		if _, err := admin.ExecContext(context.WithoutCancel(t.Context()), "DROP OWNED BY program; DROP ROLE program"); err != nil {
			t.Error(err)
		}
	})
	program, err := recipeNamed("postgresql/trigger").open(recipe{}, text, strings.Replace(address, "postgres@", "program@", 1))
	if err != nil {
		t.Fatal(err)
	}
	db := program.(*database).db
	t.Cleanup(func() { db.Close() })
	if err := write(t, program, "9", "new"); err != nil {
		t.Fatal(err)
	}
	const shadow = "CREATE TEMP TABLE fences (resource text PRIMARY KEY, token bigint NOT NULL, slots text NOT NULL)"
	stale := []string{"SELECT set_config('fence.token', '5', true)", "UPDATE orders SET status = 'stale' WHERE id = 'a'"}
	for _, of := range []struct {
		first []string
		code  string
	}{
		{nil, "ZF412"},
		{[]string{shadow}, "ZF412"},
		{[]string{shadow, "SET LOCAL search_path = pg_temp, public"}, "ZF412"},
		{[]string{"UPDATE fences SET token = 1"}, "42501"},
		{[]string{"DELETE FROM fences"}, "42501"},
		{[]string{"TRUNCATE fences"}, "42501"},
		{[]string{"DROP TABLE fences"}, "42501"},
		{[]string{"ALTER TABLE orders DISABLE TRIGGER ALL"}, "42501"},
		{[]string{"SET LOCAL session_replication_role = replica"}, "42501"},
	} {
		if code := pgCode(inTransaction(t, db, append(of.first, stale...)...)); code != of.code {
			t.Errorf("%q, then a stale write: %q", of.first, code)
		}
	}
	if value, err := s.Read(t.Context(), "a"); value != "new" {
		t.Error(value, err)
	}
}

// inTransaction runs statements in a transaction.
func inTransaction(t *testing.T, db *sql.DB, statements ...string) error {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for _, s := range statements {
		if _, err := tx.ExecContext(t.Context(), s); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func pgCode(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
