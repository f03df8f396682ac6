package sql

import (
	stdsql "database/sql"
	"strings"
	"testing"
	"time"
)

const notHeld = "ZF410"

func TestGuardAnswers(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		b.granted(5, "orders/42", 3600)
		b.granted(7, "orders/43", -3600)
		tx := b.begin(nil)
		ends, err := b.guard(tx, "orders/42", 5)
		if left := time.Until(ends); err != nil || left < 59*time.Minute || left > time.Hour {
			t.Errorf("it ends in %v: %v", left, err)
		}
		b.commit(tx)
		for _, of := range []struct {
			name, token any
			words       []string
		}{
			{"orders/42", 6, []string{"orders/42", "6", "is not held"}},
			{"orders/42", 7, []string{"orders/42", "7", "is not one of"}},
			{"Orders/42", 5, []string{"Orders/42", "5", "is not one of"}},
			{"orders/42 ", 5, []string{"'orders/42 '", "is not one of"}},
			{"orders/43", 7, []string{"7", "was over at 20", "Z"}},
			{strings.Repeat("x", 300), 5, []string{"is not one of"}},
			{"ö", int64(1) << 62, []string{"ö", "4611686018427387904", "is not held"}},
			{nil, 5, []string{"is not one of"}},
			{nil, nil, []string{"is not held"}},
			{"orders/42", nil, []string{"is not held"}},
		} {
			tx := b.begin(nil)
			_, err := b.guard(tx, of.name, of.token)
			b.refuses(err, notHeld, of.words...)
			_ = tx.Rollback()
		}
	})
}

func TestLeasesView(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		b.granted(5, "orders/42", 3600)
		b.granted(7, "orders/43", -1)
		var name, lease, mode, owner string
		var token int64
		var slot stdsql.NullInt32
		var acquired, expires time.Time
		rows, err := b.user.QueryContext(t.Context(), b.text("select name, fencing_token, lease, slot, mode, owner, acquired_at, expires_at from fencepost.leases"))
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		n := 0
		for ; rows.Next(); n++ {
			if err := rows.Scan(&name, &token, &lease, &slot, &mode, &owner, &acquired, &expires); err != nil {
				t.Fatal(err)
			}
		}
		if rows.Err() != nil || n != 1 || name != "orders/42" || token != 5 || lease != "L" || slot.Valid || mode != "exclusive" || owner != "worker-ü" || !expires.After(acquired) {
			t.Errorf("%d rows, the last %s %d %s %v %s %s %v %v: %v", n, name, token, lease, slot, mode, owner, acquired, expires, rows.Err())
		}
	})
}

// While a transaction guards a lease it can't be ended. Everything else goes on.
func TestGuardHoldsUpTheEndAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		for i, level := range []stdsql.IsolationLevel{stdsql.LevelReadCommitted, stdsql.LevelRepeatableRead} {
			base := int64(100 * i)
			b.granted(base+5, "orders/42", 3600)
			b.granted(base+7, "orders/43", 3600)
			first, second := b.begin(&stdsql.TxOptions{Isolation: level}), b.begin(&stdsql.TxOptions{Isolation: level})
			b.guarded(first, "orders/42", base+5)
			b.guarded(second, "orders/42", base+5)
			b.exec(first, "insert into written values ('a')")

			b.ends([]int64{base + 5, base + 7}, base+7)
			for n, name := range []string{"orders/41", "orders/42", "orders/43", "a", "z"} { // in the gaps beside it
				for _, token := range []int64{base + 4, base + 6, base + 10 + int64(n)} {
					b.granted(token, name, 3600)
					b.ends([]int64{token}, token)
				}
			}
			if err := b.renew(base+5, 7200); err != nil {
				t.Errorf("a renewal does not go on: %v", err)
			}
			third := b.begin(nil)
			if ends, err := b.guard(third, "orders/42", base+5); err != nil || time.Until(ends) < 90*time.Minute {
				t.Errorf("it ends at %v: %v", ends, err)
			}
			_ = third.Rollback()

			b.commit(first)
			b.ends([]int64{base + 5})
			_ = second.Rollback()
			b.ends([]int64{base + 5}, base+5)
		}
	})
}

// Who does not leave out what is guarded waits: a delete is made when the transaction is over, and not before.
func TestGuardMakesADeleteWait(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		b.granted(5, "orders/42", 3600)
		tx := b.begin(nil)
		b.guarded(tx, "orders/42", 5)
		deleted := make(chan error, 1)
		go func() {
			_, err := b.gateway.ExecContext(t.Context(), b.text("delete from fencepost.lease where token = 5"))
			deleted <- err
		}()
		b.waits()
		select {
		case err := <-deleted:
			t.Fatalf("it was deleted: %v", err)
		default:
		}
		b.commit(tx)
		if err := <-deleted; err != nil {
			t.Error(err)
		}
	})
}

// A guard that comes while a turn ends the lease waits for it, and is refused. Nobody else is held up by that: on MariaDB once it is rolled back.
func TestGuardWaitsForTheEnd(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		for i, level := range []stdsql.IsolationLevel{stdsql.LevelReadCommitted, stdsql.LevelRepeatableRead} {
			token := int64(5 + 10*i)
			b.granted(token, "orders/42", 3600)
			tx := b.begin(&stdsql.TxOptions{Isolation: level})
			refused := make(chan error, 1)
			if err := b.turn(t.Context(), func(exec func(string, ...any) error, _ *stdsql.Tx) error {
				err := b.remove(exec, token)
				go func() {
					_, err := b.guard(tx, "orders/42", token)
					refused <- err
				}()
				b.waits()
				return err
			}); err != nil {
				t.Fatal(err)
			}
			err := <-refused
			if state, _ := guardState(err); b.mysql || level == stdsql.LevelReadCommitted || state != "40001" {
				b.refuses(err, notHeld)
			}
			if b.mysql { // its lock on the row that is gone becomes one on the gap when the row is purged
				_ = tx.Rollback()
			}
			b.granted(token+1, "orders/42", 3600) // on PostgreSQL the refused transaction is still open
			b.ends([]int64{token + 1}, token+1)
			_ = tx.Rollback()
		}
	})
}

// A token that there is none of locks nothing, whatever the isolation is, and one of another lock's lease no more than
// that lease.
func TestGuardRefusedLocksNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		next := int64(1000) // a row that was deleted bounds a gap as well, so tokens are not used twice
		for _, level := range []stdsql.IsolationLevel{stdsql.LevelReadCommitted, stdsql.LevelRepeatableRead} {
			for _, unknown := range []int64{-3, 3, 7} { // before the live ones, between and after them
				base := next
				next += 1000
				b.granted(base, "orders/42", 3600)
				b.granted(base+5, "orders/50", 3600)
				tx := b.begin(&stdsql.TxOptions{Isolation: level})
				_, err := b.guard(tx, "orders/42", base+unknown)
				b.refuses(err, notHeld)
				for _, token := range []int64{base + unknown + 1, base + unknown - 1, base + unknown, base + 9} {
					b.granted(token, "orders/43", 3600)
				}
				b.ends([]int64{base, base + 5, base + 9}, base, base+5, base+9)
				_ = tx.Rollback()
			}
			base := next
			next += 1000
			b.granted(base, "orders/42", 3600)
			b.granted(base+5, "orders/50", 3600)
			tx := b.begin(&stdsql.TxOptions{Isolation: level})
			_, err := b.guard(tx, "orders/42", base+5)
			b.refuses(err, notHeld)
			b.granted(base+6, "orders/43", 3600)
			b.granted(base+4, "orders/43", 3600)
			b.ends([]int64{base, base + 4, base + 6}, base, base+4, base+6)
			_ = tx.Rollback()
		}
	})
}

// A transaction that has read before sees the lease as it was then. It is refused, which is the safe
// side, and never passes for a lease that was handed on.
func TestGuardOldSnapshot(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		levels := []stdsql.IsolationLevel{stdsql.LevelRepeatableRead, stdsql.LevelSerializable}
		if b.mysql {
			levels = levels[:1]
		}
		for i, level := range levels {
			base := int64(100 * i)
			b.granted(base+5, "ended", 3600)
			b.granted(base+6, "renewed", -1)
			b.granted(base+7, "live", 3600)
			for _, of := range []struct {
				name    string
				token   int64
				refused bool
			}{{"ended", base + 5, true}, {"renewed", base + 6, true}, {"live", base + 7, false}} {
				tx := b.begin(&stdsql.TxOptions{Isolation: level})
				var n int
				if err := tx.QueryRowContext(t.Context(), b.text("select count(*) from fencepost.leases")).Scan(&n); err != nil {
					t.Fatal(err)
				}
				switch of.name {
				case "ended":
					b.ends([]int64{of.token}, of.token)
				default:
					if err := b.renew(of.token, 3600); err != nil {
						t.Fatal(err)
					}
				}
				_, err := b.guard(tx, of.name, of.token)
				if state, _ := guardState(err); of.refused && (b.mysql || state != "40001") {
					b.refuses(err, notHeld)
				} else if !of.refused && err != nil {
					t.Error(err)
				}
				b.granted(base+50, "other", 3600)
				b.ends([]int64{base + 50}, base+50)
				_ = tx.Rollback()
			}
		}
	})
}

// A lease whose time runs out while it is guarded is over, but it is not ended before the transaction is.
func TestGuardedLeaseRunsOut(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		b.granted(5, "orders/42", 3600)
		tx := b.begin(nil)
		b.guarded(tx, "orders/42", 5)
		if err := b.renew(5, -1); err != nil { // as if an hour had gone by
			t.Fatal(err)
		}
		late := b.begin(nil)
		_, err := b.guard(late, "orders/42", 5)
		b.refuses(err, notHeld, "was over")
		_ = late.Rollback()
		b.ends([]int64{5})
		b.exec(tx, "insert into written values ('late')")
		b.commit(tx)
		b.ends([]int64{5}, 5)
	})
}

// A rollback to a savepoint from before the call may give the lock back: in PostgreSQL it does, in MariaDB
// where nothing was read or written before the savepoint. To one from after the call it does not.
func TestGuardSavepoint(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		for i, before := range []string{"", "insert into written values ('a')"} {
			token := int64(5 + i)
			b.granted(token, "orders/42", 3600)
			tx := b.begin(nil)
			if before != "" {
				b.exec(tx, before)
			}
			b.exec(tx, "savepoint a")
			b.guarded(tx, "orders/42", token)
			b.exec(tx, "rollback to savepoint a")
			if b.mysql && before != "" {
				b.ends([]int64{token})
			} else {
				b.ends([]int64{token}, token)
			}
			_ = tx.Rollback()
		}

		b.granted(7, "orders/42", 3600)
		tx := b.begin(nil)
		b.guarded(tx, "orders/42", 7)
		b.exec(tx, "savepoint a")
		b.exec(tx, "insert into written values ('b')")
		b.exec(tx, "rollback to savepoint a")
		b.ends([]int64{7})
		b.commit(tx)
	})
}

func TestGuardReadOnly(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		b.granted(5, "orders/42", 3600)
		tx := b.begin(&stdsql.TxOptions{ReadOnly: true})
		_, err := b.guard(tx, "orders/42", 5)
		if !b.mysql {
			b.refuses(err, "25006")
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		b.ends([]int64{5})
	})
}

// The user can call the function and read the view; it can neither read the tables nor lock rows by itself.
func TestGuardRights(t *testing.T) {
	onBoth(t, func(t *testing.T, b *guardBase) {
		b.granted(5, "orders/42", 3600)
		b.granted(7, "orders/43", -3600)
		denied := map[bool]string{false: "42501", true: "42000"}[b.mysql]
		tables := []string{"fencepost.lease"}
		if b.mysql {
			tables = append(tables, "fencepost.renewal")
		}
		for _, table := range tables {
			for _, statement := range []string{"select * from " + table, "select * from " + table + " for update", "delete from " + table, "update " + table + " set token = 1"} {
				_, err := b.user.ExecContext(t.Context(), b.text(statement))
				b.refuses(err, denied)
			}
		}
		_, err := b.user.ExecContext(t.Context(), b.text("delete from fencepost.leases"))
		if err == nil {
			t.Error("it can delete by the view")
		}
		for _, lock := range []string{"for update", "for share"} {
			if b.mysql && lock == "for share" {
				lock = "lock in share mode"
			}
			tx := b.begin(nil)
			_, err := tx.ExecContext(t.Context(), b.text("select * from fencepost.leases "+lock))
			if !b.mysql {
				b.refuses(err, denied)
			} else if err != nil { // it does not lock
				t.Error(err)
			}
			b.granted(9, "orders/44", 3600)
			if err := b.renew(5, 3600); err != nil {
				t.Error(err)
			}
			b.ends([]int64{9}, 9)
			_ = tx.Rollback()
		}
		b.ends([]int64{5, 7}, 5, 7)
	})
}
