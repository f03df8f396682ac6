package sql

import (
	stdsql "database/sql"
	"testing"
)

// A transaction that does nothing is ended: after the user's own bound if that is the shorter one, else after 60 s.
func TestGuardIdleBound(t *testing.T) {
	b := guardPostgres(t)
	b.granted(5, "orders/42", 3600)
	conn, err := b.user.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const setting = "idle_in_transaction_session_timeout"
	show := func(want string) {
		t.Helper()
		var got string
		if err := conn.QueryRowContext(t.Context(), "show "+setting).Scan(&got); err != nil || got != want {
			t.Errorf("the bound is %s, and not %s: %v", got, want, err)
		}
	}
	for _, of := range [][2]string{{"0", "1min"}, {"2d", "1min"}, {"1min", "1min"}, {"59s", "59s"}, {"1500ms", "1500ms"}} {
		if _, err := conn.ExecContext(t.Context(), "set "+setting+" = '"+of[0]+"'"); err != nil {
			t.Fatal(err)
		}
		tx, err := conn.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		b.guarded(tx, "orders/42", 5)
		show(of[1])
		b.commit(tx)
		show(of[0]) // it ends with the transaction
	}

	if _, err := conn.ExecContext(t.Context(), "set "+setting+" = '500ms'"); err != nil {
		t.Fatal(err)
	}
	tx, err := conn.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b.guarded(tx, "orders/42", 5)
	b.exec(tx, "insert into written values ('idle')")
	b.ends([]int64{5})
	await(t, "the lease can be ended", func() bool {
		ended, err := b.end(5)
		if err != nil {
			t.Fatal(err)
		}
		return len(ended) > 0
	})
	if err := tx.Commit(); err == nil {
		t.Error("it was committed after that")
	}
	var n int
	if err := b.user.QueryRowContext(t.Context(), "select count(*) from written").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows were written: %v", n, err)
	}
}

// Where plain reads lock, and where nothing would be guarded, it is refused.
func TestGuardMisused(t *testing.T) {
	b := guardMariaDB(t)
	b.granted(5, "orders/42", 3600)
	_, err := b.guard(b.user, "orders/42", 5)
	b.refuses(err, "ZF428", "transaction")

	conn, err := b.user.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec("set session transaction isolation level serializable")
	for _, token := range []int64{5, 99} {
		exec("start transaction")
		_, err = b.guard(conn, "orders/42", token)
		b.refuses(err, "ZF428", "SERIALIZABLE")
		b.granted(100, "orders/44", 3600)
		b.ends([]int64{100}, 100)
		exec("rollback")
	}

	exec("set session transaction isolation level read committed") // and no START TRANSACTION
	exec("set autocommit = 0")
	if _, err := b.guard(conn, "orders/42", 5); err != nil {
		t.Error(err)
	}
	b.ends([]int64{5})
	exec("rollback")
	b.ends([]int64{5}, 5)
}

// SERIALIZABLE that was set for one transaction can't be seen by the function. A guarded lease holds up its own
// renewals there and no other name, and a token above all others that there is none of holds up grants, until the
// rollback. The documents warn of both.
func TestGuardSerializableOnce(t *testing.T) {
	b := guardMariaDB(t)
	b.granted(5, "orders/42", 3600)
	b.granted(50, "orders/50", 3600)
	tx := b.begin(&stdsql.TxOptions{Isolation: stdsql.LevelSerializable})
	b.guarded(tx, "orders/42", 5)
	for _, token := range []int64{1, 6, 51} {
		b.granted(token, "orders/42", 3600)
		b.ends([]int64{token, 5}, token)
	}
	if state, _ := guardState(b.renew(5, 3600)); state != "HY000" {
		t.Errorf("a renewal was not held up: the documents say that it is (%s)", state)
	}
	_ = tx.Rollback()

	tx = b.begin(&stdsql.TxOptions{Isolation: stdsql.LevelSerializable})
	_, err := b.guard(tx, "orders/42", 90)
	b.refuses(err, notHeld)
	b.granted(6, "orders/43", 3600)
	if state, _ := guardState(b.grant(51, "orders/51", 3600)); state != "HY000" {
		t.Errorf("a grant was not held up: the documents say that it is (%s)", state)
	}
	_ = tx.Rollback()
	b.granted(51, "orders/51", 3600)
}
