package sql

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

func newHold(t testing.TB, url string) *Hold {
	t.Helper()
	h, err := NewHold(t.Context(), url, "fencepost store hold: a test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Release() })
	return h
}

// wantHeld fails the test unless an error says that turns are held off.
func wantHeld(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "gateway store hold keeps all gateways from the database") {
		t.Errorf("%s while turns are held off: %v", what, err)
	}
}

// While turns are held off nothing is granted, shown or written, and that is why. Afterwards gateways go on by themselves.
func TestHold(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, place *place) {
		o := Options{URL: place.url, Logger: testLog(t)}
		s := openGateway(t, o)
		kept := acquire(t, s, "kept", time.Hour)
		h := newHold(t, place.url)
		_, err := s.Do(t.Context(), request("other", time.Minute))
		if code(err) != fencing.CodeUnavailable {
			t.Errorf("an acquire is answered %v", err)
		}
		wantHeld(t, "an acquire is answered", err)
		_, err = s.List(t.Context(), fencing.ListRequest{Limit: 1})
		wantHeld(t, "a list", err)
		wantHeld(t, "a check", s.Check(t.Context()))
		_, err = s.Examine(t.Context())
		wantHeld(t, "an examination by a gateway", err)
		_, err = Examine(t.Context(), o)
		wantHeld(t, "an examination", err)
		_, err = Open(t.Context(), o)
		wantHeld(t, "a start", err)
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
		await(t, "gateways go on", func() bool {
			_, err := s.Do(t.Context(), fencing.RenewRequest{Name: "kept", Lease: kept.lease})
			return err == nil
		})
		if s.Losses() != 0 {
			t.Error("something counts as lost")
		}
	})
}

// A hold begins when the turns under way are over. Meanwhile no other begins.
func TestHoldWaitsForTurns(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, place *place) {
		under := connect(t, place.url)
		if _, err := under.begin(t.Context(), 0, nil); err != nil {
			t.Fatal(err)
		}
		type result struct {
			h   *Hold
			err error
		}
		held := make(chan result, 1)
		go func() {
			h, err := NewHold(context.Background(), place.url, "fencepost store hold: a test")
			held <- result{h, err}
		}()
		await(t, "no turn begins any more", func() bool { return connectWhileHeld(t, place.url) == nil })
		select {
		case r := <-held:
			t.Fatalf("turns are held off while there is one: %v", r.err)
		default:
		}
		if err := under.commit(t.Context(), &entry{logged: logged{seq: 1, id: newID([]byte("entry")), data: []byte("entry")}}); err != nil {
			t.Fatal(err)
		}
		r := <-held
		if r.err != nil {
			t.Fatal(r.err)
		}
		if err := r.h.Release(); err != nil {
			t.Error(err)
		}
		connect(t, place.url)
	})
}

// connectWhileHeld returns nil while turns are held off.
func connectWhileHeld(t *testing.T, url string) connection {
	t.Helper()
	db, err := newDatabase(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := db.connect(t.Context())
	if errors.As(err, &heldError{}) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// A hold whose session is ended says so, and gateways go on: as they do when its process is killed.
func TestHoldIsLost(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, place *place) {
		h := newHold(t, place.url)
		question, end := "select pid from pg_stat_activity where application_name = 'fencepost store hold: a test' and datname = current_database()", "select pg_terminate_backend($1)"
		if !place.postgres() {
			question, end = "select "+heldBy, "kill ?"
		}
		var session int64
		if err := place.db.QueryRowContext(t.Context(), question).Scan(&session); err != nil {
			t.Fatal(err)
		}
		if _, err := place.db.ExecContext(t.Context(), end, session); err != nil {
			t.Fatal(err)
		}
		if err := <-h.Lost(); err == nil {
			t.Error("nothing is said of it")
		}
		if err := h.Release(); err == nil {
			t.Error("what was lost counts as held to the end")
		}
		await(t, "gateways go on", func() bool { return connectWhileHeld(t, place.url) != nil })
	})
}

// There is one hold at a time, also where the tables are not there yet.
func TestHoldWithoutTables(t *testing.T) {
	t.Parallel()
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := server(t).Database(t)
			h := newHold(t, url)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if second, err := NewHold(ctx, url, "fencepost store hold: another"); err == nil {
				_ = second.Release()
				t.Error("there are two holds at once")
			}
			if err := h.Release(); err != nil {
				t.Error(err)
			}
			if err := newHold(t, url).Release(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A snapshot under way writes nothing while turns are held off, and removes nothing of a log that was put back meanwhile.
func TestHoldKeepsSnapshotsFromBeingWritten(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, place *place) {
		c := connect(t, place.url)
		for seq := range uint64(10) {
			commitTurn(t, c, seq+1, nil, nil)
		}
		b, err := c.read(t.Context(), 9)
		if err != nil {
			t.Fatal(err)
		}
		if claimed, err := c.claim(t.Context(), "a"); err != nil || !claimed {
			t.Fatalf("%v, %v", claimed, err)
		}
		of := mark{9, b.entries[0].id}
		if err := c.put(t.Context(), of.seq, 1, []byte("chunk")); err != nil {
			t.Fatal(err)
		}
		h := newHold(t, place.url)
		attempts := map[string]func(c connection) error{
			"finish": func(c connection) error { return c.finish(t.Context(), "a", of, 1) },
			"cut": func(c connection) error {
				_, err := c.cut(t.Context(), 8, 9, 100)
				return err
			},
		}
		if !place.postgres() { // there the restore is one transaction
			attempts["put"] = func(c connection) error { return c.put(t.Context(), 9, 2, []byte("chunk")) }
		}
		for what, attempt := range attempts {
			if err := attempt(c); err == nil && what != "cut" {
				t.Errorf("%s while turns are held off", what)
			} else if errors.As(err, &heldError{}) {
				c.close() // and needs another one
			}
			if err := h.Release(); err != nil {
				t.Fatal(err)
			}
			c, h = connect(t, place.url), newHold(t, place.url)
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
		if more, err := c.cut(t.Context(), 8, 9, 100); more || err != nil {
			t.Errorf("a log is cut behind a snapshot that is not there: %v, %v", more, err)
		}
		all, err := c.read(t.Context(), 1)
		if err != nil || len(all.entries) != 10 {
			t.Errorf("of the log %d entries are there, %v", len(all.entries), err)
		}
	})
}

// Behind a pooler in transaction mode turns are held off as well.
func TestHoldThroughPooler(t *testing.T) {
	t.Parallel()
	pooler := sqltest.StartPgBouncer(t, sqltest.Postgres(t))
	url := initialised(t, pooler.Database(t))
	h := newHold(t, url)
	if connectWhileHeld(t, url) != nil {
		t.Error("a turn can be made")
	}
	if err := h.Release(); err != nil {
		t.Error(err)
	}
	if connectWhileHeld(t, url) == nil {
		t.Error("no turn can be made afterwards")
	}
}

// What keeps a hold waiting in vain is told as that: another hold, and on MariaDB a person who has the store's row.
func TestSystemHoldInVain(t *testing.T) {
	t.Parallel()
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			place := newPlace(t, server(t))
			if place.postgres() {
				first := newHold(t, place.url)
				defer first.Release()
			} else {
				tx, err := place.db.Begin()
				if err == nil {
					_, err = tx.Exec("select id from store for update")
				}
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback()
			}
			if h, err := NewHold(t.Context(), place.url, "a test"); !errors.Is(err, errHoldWait) {
				t.Errorf("%v, %v", h, err)
			}
		})
	}
}
