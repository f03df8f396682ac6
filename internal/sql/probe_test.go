package sql

import (
	"database/sql/driver"
	"testing"

	"fencepost/internal/sql/sqltest"
)

// The probe of one gateway keeps no other gateway's waiting, not even if it never ends.
func TestProbesOfSeveral(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		e := probe(1, row{})
		var err error
		switch c := connect(t, p.url).(type) {
		case *postgresConn:
			if _, err = c.Exec(t.Context(), beginWriting); err == nil {
				_, err = c.Exec(t.Context(), appendStatement, append([]any{int64(e.seq)}, c.arguments(e)...)...)
			}
		case *mysqlConn:
			s := changes(e)
			err = c.ask(t.Context(), "set session idle_transaction_timeout = 0; start transaction;"+s.String()+"select 1", s.args, func([]driver.Value) error { return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := connect(t, p.url).tries(t.Context(), 1, row{}); err != nil {
			t.Error(err)
		}
		wantLeases(t, p)
	})
}

// While turns are held off no probe is written on PostgreSQL either: a restore could wait for one table of a probe, and the probe for another one of
// the restore.
func TestProbeWhileHeld(t *testing.T) {
	t.Parallel()
	p := newPlace(t, sqltest.Postgres(t))
	c := connect(t, p.url)
	newHold(t, p.url)
	wantHeld(t, "what a turn writes is tried", c.tries(t.Context(), 1, row{}))
}
