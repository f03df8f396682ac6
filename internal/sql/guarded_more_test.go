package sql

import (
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// Of a name with more leases that are over than an entry ends, one that is guarded is left as well by what goes on with it.
func TestGoesOnBesideAGuard(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	db := server.DB(t, url)
	a := openGateway(t, Options{URL: url, Logger: testLog(t)})
	shared := func(ttl time.Duration) fencing.AcquireRequest {
		r := request("many", ttl)
		r.Mode = fencing.ModeShared
		return r
	}
	const ttl = 8 * time.Second
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for range 38 {
				r := shared(ttl)
				if err := untilAnswered(t, func() error { _, err := a.Do(t.Context(), r); return err }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	last := mustDo(t, a, shared(ttl))
	end := time.Now().Add(ttl)
	guarding(t, db, "many", last.Holder.Token)
	over(t, end.Add(100*time.Millisecond))
	if _, err := a.Expire(t.Context(), 256); err != nil {
		t.Error(err)
	}
	if _, err := a.Do(t.Context(), request("other", time.Minute)); err != nil { // it would wait for a turn that waits for the guard, and give up
		t.Errorf("another name: %v", err)
	}
}

// Of leases that are over and guarded, more than are ended at once, nothing is written as long as they are.
func TestManyGuardedAreNotWritten(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	db := server.DB(t, url)
	a := openGateway(t, Options{URL: url, Logger: testLog(t)})
	var ends time.Time
	for i := range 12 {
		ends = guardingBeyond(t, db, a, request(fencing.Name("guarded"+itoa(i)), time.Minute))
	}
	over(t, ends)
	before := a.memory.Applied()
	for range 3 {
		if _, err := a.Expire(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
	}
	if n := a.memory.Applied() - before; n > 0 {
		t.Errorf("%d entries", n)
	}
}

// A retry of who holds a shared lock is not told that it does not, and a break with notice goes on, whatever is guarded.
func TestRetriesBesideAGuard(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	db := server.DB(t, url)
	a := openGateway(t, Options{URL: url, Logger: testLog(t)})
	one, two := request("shared", time.Minute), request("shared", time.Minute)
	one.Mode, two.Mode = fencing.ModeShared, fencing.ModeShared
	mustDo(t, a, two)
	g := acquire(t, a, "noticed", time.Minute)
	guarding(t, db, "noticed", g.token)
	over(t, guardingBeyond(t, db, a, one))
	if _, err := a.Do(t.Context(), two); err != nil {
		t.Errorf("a retry of a holder: %v", err)
	}
	if _, err := a.Do(t.Context(), fencing.BreakRequest{Name: "noticed", Token: g.token, Notice: 10 * time.Second}); err != nil {
		t.Errorf("a notice: %v", err)
	}
}
