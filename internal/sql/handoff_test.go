package sql

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// hearer is a gateway's listener that keeps what it is told of.
type hearer struct {
	heard chan fencing.Grant
}

func (h *hearer) Granted(g fencing.Grant, _ fencing.Instant, _ time.Time) { h.heard <- g }
func (h *hearer) Replaced(fencing.Name, fencing.Stamp)                    {}
func (h *hearer) Ask(fencing.Name, fencing.Stamp)                         {}
func (h *hearer) Has([]fencing.Name, time.Time, []fencing.Entry)          {}
func (h *hearer) Gap()                                                    {}

// A lock that is released at one gateway goes to the waiter at another, who is told by a hint, and without one soon after.
func TestHandOff(t *testing.T) {
	t.Parallel()
	for _, through := range []string{"hints", "asking", "hints of MariaDB"} {
		t.Run(through, func(t *testing.T) {
			server := sqltest.Postgres(t)
			if through == "hints of MariaDB" {
				server = sqltest.MariaDB(t)
			}
			url := initialised(t, server.Database(t))
			o := Options{URL: url, Logger: testLog(t), hinted: time.Hour}
			if through == "asking" {
				o.wrap = func(d database) database { return struct{ database }{d} } // which passes no hints on
			}
			a, b := openGateway(t, o), openGateway(t, o)
			h := &hearer{heard: make(chan fencing.Grant, 1)}
			b.Listen(h)
			if through != "asking" {
				await(t, "hints are heard", b.hinted.Load)
			}
			for range 20 {
				first := acquire(t, a, "a", time.Minute)
				r := request("a", time.Minute)
				r.Wait = time.Minute
				out, err := b.Do(t.Context(), r)
				if err != nil || !out.Waits() {
					t.Fatalf("%+v, %v", out, err)
				}
				if _, err := a.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: first.lease}); err != nil {
					t.Fatal(err)
				}
				g := <-h.heard
				if g.Holder.Lease != r.Lease.Public() || !g.Holder.Provisional || g.Holder.Token <= first.token {
					t.Errorf("told of %+v", g)
				}
				if _, err := b.Do(t.Context(), fencing.ConfirmRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp}); err != nil {
					t.Fatal(err)
				}
				if _, err := b.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
