package sql

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// counted counts the turns of one message.
type counted struct {
	*postgresConn
	alones *atomic.Int64
}

func (c counted) alone(ctx context.Context, e *entry, behind mark, now fencing.Instant, late time.Duration, tried []fencing.Token) (fencing.Instant, bool, error) {
	at, done, err := c.postgresConn.alone(ctx, e, behind, now, late, tried)
	if done {
		c.alones.Add(1)
	}
	return at, done, err
}

// What a caller asks for is one message where no other gateway writes: the function does what the two messages do. A lease is not told to
// last longer than it does, though the database's clock is not known before.
func TestAloneIsOneMessage(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	var alones atomic.Int64
	o := Options{URL: initialised(t, server.Database(t)), Logger: testLog(t), aloneAfter: time.Nanosecond}
	o.wrap = through(func(c connection) connection { return counted{c.(*postgresConn), &alones} })
	a := openGateway(t, o)
	i := 0
	isOne := func(what string, do func(fencing.AcquireRequest) fencing.Outcome) {
		t.Helper()
		await(t, what+" is one message", func() bool { // a machine that stands still for 50 ms has it be two
			i++
			r := request(fencing.Name(fmt.Sprint("a/", i)), time.Minute)
			if what != "an acquire" {
				mustDo(t, a, r)
			}
			before, began := alones.Load(), time.Now()
			out := do(r)
			countsFrom(t, what, out.Now, out.Asked, began.Add(-mostLate))
			return alones.Load() > before
		})
	}
	isOne("an acquire", func(r fencing.AcquireRequest) fencing.Outcome { return mustDo(t, a, r) })
	isOne("a renewal", func(r fencing.AcquireRequest) fencing.Outcome {
		return mustDo(t, a, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
	})
	isOne("a release", func(r fencing.AcquireRequest) fencing.Outcome {
		return mustDo(t, a, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
	})
}

// Statements are prepared on a connection to the server itself, and on none to a pooler that gives each transaction another one.
func TestPreparedWhereDirect(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	for _, of := range []struct {
		server *sqltest.Server
		direct bool
	}{{server, true}, {sqltest.StartPgBouncer(t, server), false}} {
		db, err := newDatabase(initialised(t, of.server.Database(t)))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := db.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.close()
		if _, err := conn.read(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		prepared := 0
		c := conn.(*postgresConn)
		if err := c.QueryRow(t.Context(), "select count(*) from pg_prepared_statements").Scan(&prepared); err != nil {
			t.Fatal(err)
		}
		if c.direct != of.direct || prepared > 0 != of.direct {
			t.Errorf("direct is %v, and %d statements are prepared; want %v", c.direct, prepared, of.direct)
		}
	}
}

// A right that is taken from a gateway which makes such turns is no request's own fault, and the right to call the function itself is missed by none.
func TestAloneWithoutARight(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := server.Database(t)
	user, as := gatewayUser(t, server, url)
	db := server.DB(t, url)
	a := openGateway(t, Options{URL: as, Logger: testLog(t), aloneAfter: time.Nanosecond})
	acquire(t, a, "before", time.Minute)
	do := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	do("revoke execute on function fencepost.turn_alone from " + user)
	acquire(t, a, "without the function", time.Minute)
	do("grant execute on function fencepost.turn_alone to " + user)
	do("revoke update (id) on fencepost.store from " + user)
	if _, err := a.Do(t.Context(), request("without the lock", time.Minute)); detailOf(err) != noRights.detail || a.out.Load() == nil {
		t.Errorf("without the right to lock the store: %v", err)
	}
	do("grant update (id) on fencepost.store to " + user)
	await(t, "all goes on", func() bool {
		_, err := a.Do(t.Context(), request("behind", time.Minute))
		return err == nil
	})
}

// A gateway that may not call the function of such a turn, or does not find it, makes turns of two messages.
func TestAloneWithoutItsFunction(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := server.Database(t)
	user, as := gatewayUser(t, server, url)
	db := server.DB(t, url)
	for _, statement := range []string{
		"revoke execute on function fencepost.turn_alone from public; revoke execute on function fencepost.turn_alone from " + user, "drop function fencepost.turn_alone",
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
		a := openGateway(t, Options{URL: as, Logger: testLog(t), aloneAfter: time.Nanosecond})
		for i := range 3 {
			acquire(t, a, fencing.Name(fmt.Sprint(len(statement), "/", i)), time.Minute)
		}
		a.Close()
	}
}
