package sql

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// guarding begins a transaction of a user that guards a lease.
func guarding(t *testing.T, db *sql.DB, name fencing.Name, token fencing.Token) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := tx.ExecContext(t.Context(), "select fencepost.guard($1, $2)", string(name), int64(token)); err != nil {
		t.Fatal(err)
	}
	return tx
}

// guardingBeyond has a transaction guard what is acquired, and only then gives it a short TTL: it returns when that is over. The time has to pass yet.
func guardingBeyond(t *testing.T, db *sql.DB, s *Store, r fencing.AcquireRequest) (over time.Time) {
	t.Helper()
	guarding(t, db, r.Name, mustDo(t, s, r).Holder.Token)
	const ttl = 500 * time.Millisecond
	mustDo(t, s, fencing.RenewRequest{Name: r.Name, Lease: r.Lease, TTL: ttl})
	return time.Now().Add(2 * ttl)
}

// answered returns a channel that has the outcome of an operation when there is one.
func answered(t *testing.T, s *Store, op fencing.Op) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		for {
			_, err := s.Do(ctx, op)
			if code(err) == fencing.CodeUnavailable && ctx.Err() == nil {
				continue // as clients do
			}
			done <- err
			return
		}
	}()
	return done
}

// While a transaction guards a lease, that does not end and the name is not handed on, by any gateway, though its time runs out, it is
// released, or broken. Renewals go on, and so do all other names.
func TestGuardedLease(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	db := server.DB(t, url)
	o := Options{URL: url, Logger: testLog(t), aloneAfter: time.Millisecond}
	a, b := openGateway(t, o), openGateway(t, o)
	end := func(what string, ends func(g grant) <-chan error) {
		t.Run(what, func(t *testing.T) {
			name := fencing.Name("guarded/" + what)
			g := acquire(t, a, name, time.Minute)
			if _, err := b.Do(t.Context(), fencing.RenewRequest{Name: name, Lease: g.lease, TTL: time.Minute}); err != nil {
				t.Fatal(err)
			}
			tx := guarding(t, db, name, g.token)
			if _, err := b.Do(t.Context(), fencing.RenewRequest{Name: name, Lease: g.lease, TTL: time.Second}); err != nil {
				t.Errorf("a guarded lease can't be renewed: %v", err)
			}
			ended := ends(g)
			r := request(name, time.Minute)
			r.Wait = time.Minute
			h := &hearer{heard: make(chan fencing.Grant, 1)}
			b.Listen(h)
			waiting := make(chan fencing.Outcome, 1)
			go func() {
				for {
					out, err := b.Do(context.WithoutCancel(t.Context()), r)
					if err == nil {
						waiting <- out
						return
					}
				}
			}()
			for began := time.Now(); time.Since(began) < 1500*time.Millisecond; { // the lease is over then
				acquireAndRelease(t, a, "other/1")
				acquireAndRelease(t, b, "other/2")
				if _, err := a.Expire(t.Context(), 100); err != nil {
					t.Error(err)
				}
				select {
				case err := <-ended:
					if code(err) != fencing.CodeLeaseLost || time.Since(began) < 500*time.Millisecond { // its time may be over before it is released
						t.Errorf("it has ended: %v", err)
					}
					ended = nil
				case g := <-h.heard:
					t.Errorf("it is handed on: %+v", g)
				default:
				}
			}
			if _, err := a.Do(t.Context(), request(name, time.Minute)); code(err) != fencing.CodeLocked {
				t.Errorf("who does not wait is told %v", err)
			}
			if _, err := b.Do(t.Context(), fencing.RenewRequest{Name: name, Lease: g.lease}); code(err) != fencing.CodeLeaseLost {
				t.Errorf("a renewal of what is over: %v", err)
			}
			if _, err := tx.ExecContext(t.Context(), "select fencepost.guard($1, $2)", string(name), int64(g.token)); err == nil && what == "expiry" {
				t.Error("a lease that is over passes")
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
			if ended != nil {
				<-ended
			}
			var granted fencing.Token
			await(t, "the waiter has the name", func() bool {
				if _, err := a.Expire(t.Context(), 100); err != nil { // as the watchdog does
					t.Error(err)
				}
				select {
				case out := <-waiting:
					granted = out.Holder.Token // 0: it has joined the queue
				case g := <-h.heard:
					granted = g.Holder.Token
				default:
				}
				return granted != 0
			})
			if granted <= g.token {
				t.Errorf("granted with token %d after %d", granted, g.token)
			}
		})
	}
	end("release", func(g grant) <-chan error {
		return answered(t, a, fencing.ReleaseRequest{Name: "guarded/release", Lease: g.lease})
	})
	end("break", func(g grant) <-chan error {
		return answered(t, b, fencing.BreakRequest{Name: "guarded/break", Token: g.token})
	})
	end("expiry", func(grant) <-chan error { return nil })
}

func acquireAndRelease(t *testing.T, s *Store, name fencing.Name) {
	t.Helper()
	g := acquire(t, s, name, time.Minute)
	if _, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: name, Lease: g.lease}); err != nil {
		t.Error(err)
	}
}

// A transaction on MariaDB that asks for SERIALIZABLE once, which the guard does not see, locks when its lease ends. Renewals go on all the
// same, and so does everything else; the view shows the new end when that transaction is over.
func TestSerializableOnceHoldsUpNoGateway(t *testing.T) {
	t.Parallel()
	server := sqltest.MariaDB(t)
	url := initialised(t, server.Database(t))
	db := server.DB(t, url)
	a := openGateway(t, Options{URL: url, Logger: testLog(t)})
	g := acquire(t, a, "guarded", time.Minute)
	acquire(t, a, "newer", time.Minute)
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("select guard(?, ?)", "guarded", int64(g.token)); err != nil {
		t.Fatal(err)
	}
	renew := func() {
		t.Helper()
		if _, err := a.Do(t.Context(), fencing.RenewRequest{Name: "guarded", Lease: g.lease, TTL: time.Hour}); err != nil { // held up, it would give up
			t.Error(err)
		}
		acquireAndRelease(t, a, "other")
	}
	left := func() (seconds int) {
		t.Helper()
		if err := db.QueryRow("select timestampdiff(second, utc_timestamp(6), expires_at) from renewal where token = ?", int64(g.token)).Scan(&seconds); err != nil {
			t.Fatal(err)
		}
		return seconds
	}
	renew()
	if left := left(); left > 60 {
		t.Errorf("a row that is locked has changed: %d s are left", left)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	renew()
	if left := left(); left < 3000 {
		t.Errorf("%d s are left", left)
	}
}
