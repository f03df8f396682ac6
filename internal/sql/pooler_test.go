package sql

import (
	"context"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// Gateways work through a pooler in transaction mode, where each transaction may have another connection. That prepared statements do
// not is said in words.
func TestPooler(t *testing.T) {
	t.Parallel()
	pooler := sqltest.StartPgBouncer(t, sqltest.Postgres(t))
	url := pooler.Database(t)
	if _, err := Init(t.Context(), url, Rights{}); err != nil {
		t.Fatal(err)
	}
	open := func(url string) *Store {
		t.Helper()
		s, err := Open(context.Background(), Options{URL: url, snapshotAt: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	stores := []*Store{open(url), open(url), open(url)}
	for i := range 60 {
		lease := fencing.NewLeaseID(time.Now())
		mustDo(t, stores[i%3], fencing.AcquireRequest{Name: "a", Lease: lease, TTL: time.Minute, Hold: 1, Stamp: "a"})
		mustDo(t, stores[(i+1)%3], fencing.ReleaseRequest{Name: "a", Lease: lease})
	}
	if _, err := stores[0].Examine(t.Context()); err != nil {
		t.Error(err)
	}
	h := &hearer{heard: make(chan fencing.Grant, 1)}
	stores[1].Listen(h)
	for range 5 { // nobody listens on a connection that the pooler gives to others, and would be told there
		first := acquire(t, stores[0], "a", time.Minute)
		r := waiting("a")
		mustDo(t, stores[1], r)
		mustDo(t, stores[0], fencing.ReleaseRequest{Name: "a", Lease: first.lease})
		<-h.heard
		mustDo(t, stores[1], fencing.ConfirmRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp})
		mustDo(t, stores[1], fencing.ReleaseRequest{Name: "a", Lease: r.Lease})
	}
	if log := pooler.Log(); strings.Contains(log, "when not linked") {
		t.Errorf("the pooler is told what nobody waits for:\n%s", log)
	}
	var err error
	for range 20 { // the first ones may find connections that prepared nothing
		s, openErr := Open(context.Background(), Options{URL: url + "&prepared=true"})
		if err = openErr; err != nil {
			break
		}
		t.Cleanup(func() { s.Close() })
	}
	if err == nil || !strings.Contains(err.Error(), "leave prepared=true out of the URL") {
		t.Errorf("with prepared statements: %v", err)
	}
}
