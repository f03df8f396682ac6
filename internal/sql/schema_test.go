package sql

import (
	_ "embed"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// postgresTables1 are the tables and functions of version 1.
//
//go:embed testdata/postgres_1.sql
var postgresTables1 string

// Tables of version 1, with leases and a log in them, are of no use before store init has brought them up to date, and then the gateways go on.
func TestTablesOfVersion1(t *testing.T) {
	t.Parallel()
	onBothPlaces(t, func(t *testing.T, p *place) {
		o := Options{URL: p.url, Logger: testLog(t)}
		before, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		held := acquire(t, before, "held", time.Minute)
		shared := request("shared", time.Minute)
		shared.Mode, shared.Limit = fencing.ModeShared, 2
		mustDo(t, before, shared)
		if err := before.Close(); err != nil {
			t.Fatal(err)
		}
		old := []string{"update store set version = 1"}
		if p.postgres() {
			old = append(statements(postgresTables1), "update fencepost.store set version = 1")
		}
		for _, statement := range old {
			if _, err := p.db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		if s, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "then run gateway store init of this version") {
			if err == nil {
				s.Close()
			}
			t.Fatalf("they are used: %v", err)
		}
		if is, err := Init(t.Context(), p.url, Rights{}); err != nil || !is.Raised {
			t.Fatalf("%+v, %v", is, err)
		}
		a := openGateway(t, o)
		mustDo(t, a, fencing.RenewRequest{Name: "held", Lease: held.lease, Owner: "café"})
		mustDo(t, a, fencing.RenewRequest{Name: "shared", Lease: shared.Lease})
		acquire(t, a, "more", time.Minute)
		p.compareFresh(t, o)
		theSame(t, o, a, openGateway(t, o))
	})
}
