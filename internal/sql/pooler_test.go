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
