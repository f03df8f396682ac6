package sql

import (
	stdsql "database/sql"
	"errors"
	"testing"

	"fencepost/fence"
)

// The package fence calls the function and knows its refusals by the errors of the drivers.
func TestFenceTransaction(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		g := fence.Transaction{Dialect: fence.PostgreSQL}
		if b.mysql {
			g = fence.Transaction{Dialect: fence.MySQL, Schema: b.schema}
		}
		b.granted(5, "orders/42", 3600)
		b.granted(7, "orders/43", -3600)
		write := func(tx *stdsql.Tx) error {
			_, err := tx.ExecContext(t.Context(), "insert into written values ('a')")
			if ended, endErr := b.end(5); endErr != nil || len(ended) > 0 {
				t.Errorf("%v ended while it was guarded: %v", ended, endErr)
			}
			return err
		}
		if err := g.Do(t.Context(), b.user, "orders/42", 5, write); err != nil {
			t.Error(err)
		}
		broken := errors.New("broken")
		if err := g.Do(t.Context(), b.user, "orders/42", 5, func(tx *stdsql.Tx) error { return errors.Join(write(tx), broken) }); !errors.Is(err, broken) {
			t.Error(err)
		}
		for _, of := range []struct {
			name  string
			token int64
		}{{"orders/42", 6}, {"orders/42", 7}, {"orders/43", 7}} {
			err := g.Do(t.Context(), b.user, of.name, of.token, write)
			if refused, ok := errors.AsType[*fence.NotHeldError](err); !ok || refused.Name != of.name || refused.Token != of.token || refused.Reason == "" {
				t.Errorf("%v: %v", of, err)
			} else if state, message := guardState(err); state != notHeld || message != refused.Reason {
				t.Errorf("%v: %q, %q", of, message, refused.Reason)
			}
		}

		tx := b.begin(nil)
		b.exec(tx, "insert into written values ('too soon')")
		if _, ok := errors.AsType[*fence.NotHeldError](g.Guard(t.Context(), tx, "orders/42", 4)); !ok {
			t.Error("it was not refused")
		}
		if err := tx.Commit(); !errors.Is(err, stdsql.ErrTxDone) { // MariaDB alone would commit
			t.Error(err)
		}
		var n int
		if err := b.user.QueryRowContext(t.Context(), "select count(*) from written").Scan(&n); err != nil || n != 1 {
			t.Errorf("%d rows were written, and not 1: %v", n, err)
		}
		b.ends([]int64{5}, 5)
	})
}

// Where the database can't guard that is no loss of the lock.
func TestFenceTransactionMisused(t *testing.T) {
	b := guardMariaDB(t)
	b.granted(5, "orders/42", 3600)
	conn, err := b.user.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "set session transaction isolation level serializable"); err != nil {
		t.Fatal(err)
	}
	tx, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = fence.Transaction{Dialect: fence.MySQL, Schema: b.schema}.Guard(t.Context(), tx, "orders/42", 5)
	if _, ok := errors.AsType[*fence.NotHeldError](err); ok || !errors.Is(err, fence.ErrInvalid) {
		t.Error(err)
	}
}
