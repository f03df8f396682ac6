package sql

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"fencepost/fence"
)

const guardPage = "../../docs/storage/transaction.md"

// guardSnippet returns what the page shows under a mark.
func guardSnippet(t *testing.T, mark string) string {
	t.Helper()
	page, err := os.ReadFile(guardPage)
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "<!-- guard: "+mark+" -->\n```")
	if !ok {
		t.Fatalf("the page has no %q", mark)
	}
	_, text, _ = strings.Cut(text, "\n")
	text, _, _ = strings.Cut(text, "```")
	return text
}

// The transaction of the page is committed, and refused as it says.
func TestGuardPage(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		b.makeOrders()
		b.granted(5, "orders/42", 3600)
		conn, err := b.user.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		play := func(token string) error {
			text := strings.NewReplacer(":name", "'orders/42'", ":token", token, "fencepost.", b.schema+".").Replace(guardSnippet(t, "write"))
			for _, statement := range strings.SplitAfter(text, ";\n") {
				if statement == "" {
					continue
				}
				if _, err := conn.ExecContext(t.Context(), statement); err != nil {
					_, rollbackErr := conn.ExecContext(t.Context(), "ROLLBACK")
					return errors.Join(err, rollbackErr)
				}
			}
			return nil
		}
		b.refuses(play("4"), notHeld)
		if n := b.orders(); n != 0 {
			t.Errorf("%d rows were written", n)
		}
		if err := play("5"); err != nil {
			t.Error(err)
		}
		if n := b.orders(); n != 1 {
			t.Errorf("%d rows were written", n)
		}
	})
}

// The example of the page is this one, which is compiled and run.
func TestGuardExample(t *testing.T) {
	own, err := os.ReadFile("guard_page_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(own), "// begin of the example\n")
	text, _, _ = strings.Cut(text, "\t// end of the example")
	text = strings.ReplaceAll(strings.ReplaceAll("\n"+text, "\n\t", "\n"), "stdsql.", "sql.")[1:]
	if shown := guardSnippet(t, "go"); text != shown {
		t.Errorf("the page shows\n%s\nand this is run:\n%s", shown, text)
	}
	b := guardPostgres(t)
	b.makeOrders()
	b.granted(5, "orders/42", 3600)
	if _, ok := errors.AsType[*fence.NotHeldError](shipGuarded(t.Context(), b.user, 4)); !ok || b.orders() != 0 {
		t.Error("it was not refused")
	}
	if err := shipGuarded(t.Context(), b.user, 5); err != nil || b.orders() != 1 {
		t.Error(err)
	}
}

func shipGuarded(ctx context.Context, db *stdsql.DB, token int64) error {
	// begin of the example
	guard := fence.Transaction{Dialect: fence.PostgreSQL} // or MySQL
	err := guard.Do(ctx, db, "orders/42", token, func(tx *stdsql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO orders (id, status) VALUES (42, 'shipped')")
		return err
	})
	if refused, ok := errors.AsType[*fence.NotHeldError](err); ok {
		return fmt.Errorf("somebody else may have the lock: %w", refused) // stop working
	}
	// end of the example
	return err
}

func (b *guardBase) makeOrders() {
	b.t.Helper()
	if b.mysql {
		if _, err := b.user.ExecContext(b.t.Context(), "create table orders (id int primary key, status varchar(20)) engine = InnoDB"); err != nil {
			b.t.Fatal(err)
		}
		return
	}
	b.run("create table public.orders (id int primary key, status text)", "grant all on public.orders to public")
}

func (b *guardBase) orders() (n int) {
	b.t.Helper()
	if err := b.user.QueryRowContext(b.t.Context(), "select count(*) from orders").Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}
