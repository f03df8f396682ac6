package sql

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/sql/sqltest"
)

// While a transaction guards a lease, a renewal that leaves others some of what the lease has waits as a release does, and nobody gets it.
// Renewals that let nobody in go on. When the transaction is over the renewal is carried out, and others get in.
func TestGuardedLeaseKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	shared := func(r fencing.AcquireRequest, limit, permits int) fencing.AcquireRequest {
		r.Mode, r.Limit, r.Permits = fencing.ModeShared, limit, permits
		return r
	}
	exclusive := func(r fencing.AcquireRequest) fencing.AcquireRequest { return r }
	narrowings := map[string]struct {
		has, wants func(fencing.AcquireRequest) fencing.AcquireRequest
		gives      fencing.RenewRequest
	}{
		"downgrade": {
			exclusive,
			func(r fencing.AcquireRequest) fencing.AcquireRequest { return shared(r, 0, 0) },
			fencing.RenewRequest{Mode: fencing.ModeShared},
		},
		"permits": {
			func(r fencing.AcquireRequest) fencing.AcquireRequest { return shared(r, 3, 3) },
			func(r fencing.AcquireRequest) fencing.AcquireRequest { return shared(r, 3, 2) },
			fencing.RenewRequest{Permits: 1},
		},
		"limit": {
			func(r fencing.AcquireRequest) fencing.AcquireRequest { return shared(r, 1, 0) },
			func(r fencing.AcquireRequest) fencing.AcquireRequest { return shared(r, 5, 0) },
			fencing.RenewRequest{Limit: 5},
		},
	}
	for kind, server := range map[string]func(testing.TB) *sqltest.Server{"PostgreSQL": sqltest.Postgres, "MariaDB": sqltest.MariaDB} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, server(t))
			a := openGateway(t, Options{URL: p.url, Logger: testLog(t), aloneAfter: time.Millisecond})
			b := openGateway(t, Options{URL: p.url, Logger: testLog(t), aloneAfter: -1})
			levels := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
			if !p.postgres() {
				levels = levels[:2]
			}
			for what, of := range narrowings {
				for _, level := range levels {
					t.Run(what+" "+level.String(), func(t *testing.T) {
						name := fencing.Name(fmt.Sprintf("kept/%s/%d", what, level))
						mine := of.has(request(name, time.Minute))
						mine.Owner = "writer"
						token := mustDo(t, a, mine).Holder.Token
						defer func() { mustDo(t, a, fencing.ReleaseRequest{Name: name, Lease: mine.Lease}) }()
						tx, err := p.db.BeginTx(context.WithoutCancel(t.Context()), &sql.TxOptions{Isolation: level})
						if err != nil {
							t.Fatal(err)
						}
						defer func() { _ = tx.Rollback() }()
						if _, err := tx.Exec(p.guardStatement(), string(name), int64(token)); err != nil {
							t.Fatal(err)
						}

						gives := of.gives
						gives.Name, gives.Lease = name, mine.Lease
						err = nil
						for patient := 5 * guardedEvery; err != error(guardedError) && patient < time.Minute; patient *= 3 { // a turn may take long
							impatient, cancel := context.WithTimeout(t.Context(), patient)
							_, err = a.Do(impatient, gives)
							cancel()
						}
						if err != error(guardedError) {
							t.Errorf("it does not wait for the transaction: %v", err)
						}
						newcomer := of.wants(request(name, time.Minute))
						if _, err := b.Do(t.Context(), newcomer); code(err) != fencing.CodeLocked {
							t.Errorf("while the transaction is open, somebody who wants in is told %v", err)
						}
						usual := fencing.RenewRequest{Name: name, Lease: mine.Lease, TTL: time.Hour, Owner: "still the writer", Limit: mine.Limit, Permits: mine.Permits}
						if usual.Limit > 0 {
							usual.Mode = fencing.ModeShared
						}
						mustDo(t, a, fencing.RenewRequest{Name: name, Lease: mine.Lease})
						mustDo(t, b, usual)

						waits := answered(t, a, gives)
						waiter := of.wants(request(name, time.Minute))
						waiter.Wait = time.Minute
						if out := mustDo(t, b, waiter); !out.Waits() {
							t.Errorf("while the transaction is open, a waiter gets %+v", out.Holder)
						}
						select {
						case err := <-waits:
							t.Fatalf("it is carried out while the transaction is open: %v", err)
						default:
						}
						if err := tx.Commit(); err != nil {
							t.Error(err)
						}
						if err := <-waits; err != nil {
							t.Error(err)
						}
						if out := mustDo(t, b, waiter); out.Waits() {
							t.Error("nobody gets in after the transaction")
						}
						mustDo(t, b, fencing.ReleaseRequest{Name: name, Lease: waiter.Lease})
					})
				}
			}
		})
	}
}

// guardStatement calls guard, with a name and a token.
func (p *place) guardStatement() string {
	if p.postgres() {
		return "select fencepost.guard($1, $2)"
	}
	return "select guard(?, ?)"
}

// lockRow begins a transaction that has the row of a lease locked as guard does, whatever the time is.
func (p *place) lockRow(t *testing.T, token fencing.Token) *sql.Tx {
	t.Helper()
	statement := "select token from lease where token = %d lock in share mode"
	if p.postgres() {
		statement = "select token from fencepost.lease where token = %d for key share"
	}
	tx, err := p.db.BeginTx(context.WithoutCancel(t.Context()), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if err := tx.QueryRow(fmt.Sprintf(statement, token)).Scan(&token); err != nil {
		t.Fatal(err)
	}
	return tx
}

// A guarded lease can be renewed as often as its holder likes while the clocks differ, and when they agree again. What its holder gives up
// meanwhile waits all the same.
func TestGuardedLeaseIsRenewedWhileClocksDiffer(t *testing.T) {
	t.Parallel()
	p := newPlace(t, sqltest.Postgres(t))
	b := p.open(t, Options{Logger: testLog(t)})
	s := b.stores[0]
	r := request("x", time.Hour)
	tx := p.lockRow(t, mustDo(t, s, r).Holder.Token)
	renew, gives := fencing.RenewRequest{Name: r.Name, Lease: r.Lease}, fencing.RenewRequest{Name: r.Name, Lease: r.Lease, Mode: fencing.ModeShared}
	b.SetSkew(0, -5*fencingtest.MaxSkew)
	mustDo(t, s, renew)
	mustDo(t, s, renew)
	impatient, cancel := context.WithTimeout(t.Context(), 5*guardedEvery)
	defer cancel()
	if _, err := s.Do(impatient, gives); err != error(guardedError) {
		t.Errorf("while the clocks differ, a downgrade is answered %v", err)
	}
	b.SetSkew(0, 0)
	renewed := answered(t, s, renew)
	if _, err := s.Expire(t.Context(), 100); err != nil { // as the watchdog does
		t.Error(err)
	}
	if err := <-renewed; err != nil {
		t.Error(err)
	}
	given := answered(t, s, gives)
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	if err := <-given; err != nil {
		t.Error(err)
	}
}

// A name is not forgotten, and granted anew, while a transaction guards a lease that ended a day ago.
func TestGuardedForADay(t *testing.T) {
	t.Parallel()
	p := newPlace(t, sqltest.Postgres(t))
	b := p.open(t, Options{Logger: testLog(t)})
	s := b.stores[0]
	tx := p.lockRow(t, mustDo(t, s, request("x", time.Minute)).Holder.Token)
	b.SetTime(fencingtest.Epoch.Add(fencing.ForgetAfter + time.Hour))
	if _, err := s.Expire(t.Context(), 100); err != nil {
		t.Error(err)
	}
	impatient, cancel := context.WithTimeout(t.Context(), 5*guardedEvery)
	defer cancel()
	if _, err := s.Do(impatient, request("x", time.Minute)); err != error(guardedError) {
		t.Errorf("a newcomer is answered %v", err)
	}
	mustDo(t, s, request("y", time.Minute))
	granted := answered(t, s, request("x", time.Minute))
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
}
