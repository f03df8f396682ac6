package redis

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// indexed has one lease that lasts for a minute, one of 2 s behind which a request waits, and
// the indexes whole.
func indexed(t *testing.T, b *backend) (held, waits fencing.AcquireRequest) {
	t.Helper()
	s := b.stores[0]
	listed, short := acquireRequest("listed"), acquireRequest("short")
	listed.TTL, short.TTL = time.Minute, 2*time.Second
	waits = waitRequest("short")
	mustAcquire(t, s, listed)
	mustAcquire(t, s, short)
	mustWait(t, s, waits)
	reaped(t, b, func() bool { return isWhole(t, s, s.keys[0].names, 0) && isWhole(t, s, s.keys[0].expiry, markScore) })
	return listed, waits
}

// isWhole reports whether an index says that it has all that it is to have.
func isWhole(t *testing.T, s *Store, index string, score float64) bool {
	t.Helper()
	got, err := s.redis().ZScore(t.Context(), index, wholeMark).Result()
	return err == nil && got == score
}

// reaped has the second gateway reap until a condition is true.
func reaped(t *testing.T, b *backend, condition func() bool) {
	t.Helper()
	until(t, func() bool {
		_, err := b.stores[1].Expire(t.Context(), 100)
		return err == nil && condition()
	})
}

// wantIndexed checks that what is held is listed and counted, and that the waiter is served
// when the lease before it is over.
func wantIndexed(t *testing.T, b *backend, held, waits fencing.AcquireRequest) {
	t.Helper()
	s := b.stores[0]
	reaped(t, b, func() bool {
		page, err := s.List(t.Context(), fencing.ListRequest{Limit: 10})
		return err == nil && len(page.Locks) == 2 && page.Locks[0].Name == held.Name
	})
	if stats, err := s.Stats(t.Context()); err != nil || stats.Held != 2 {
		t.Errorf("%d are held, %v, want 2", stats.Held, err)
	}
	if page, err := s.List(t.Context(), fencing.ListRequest{Limit: 10, Count: true}); err != nil || page.Total != 2 {
		t.Errorf("%d are listed in all, %v, want 2", page.Total, err)
	}
	b.SetTime(epoch.Add(2 * time.Second))
	reaped(t, b, func() bool {
		out, err := s.Do(t.Context(), fencing.InspectRequest{Name: waits.Name, Holders: 1})
		return err == nil && len(out.Lock.Holders) == 1 && out.Lock.Holders[0].Lease == waits.Lease.Public()
	})
}

// An index that is gone, or is something else, is made anew: what is held is listed, and who
// waits is served, though nobody asks for anything on these names.
func TestIndexGone(t *testing.T) {
	server := redistest.Start(t)
	for _, index := range []string{"names", "expiry"} {
		for what, harm := range harms {
			t.Run(index+" "+what, func(t *testing.T) {
				b := openBackend(t, server)
				held, waits := indexed(t, b)
				harm(t.Context(), b.stores[0], b.stores[0].keys[0].prefix+index)
				wantIndexed(t, b, held, waits)
			})
		}
	}
}

// One index of another type doesn't keep the other from being made anew.
func TestIndexOfAnotherType(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	held, waits := indexed(t, b)
	s := b.stores[0]
	harms["of another type"](t.Context(), s, s.keys[0].names)
	harms["gone"](t.Context(), s, s.keys[0].expiry)
	wantIndexed(t, b, held, waits)
}

// An index that is lost again while it is being made anew, or that nobody went on with, does
// not count as whole.
func TestIndexLostMeanwhile(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	held, waits := indexed(t, b)
	s, ctx := b.stores[0], t.Context()
	n, names, expiry := s.topology.nodes()[0], s.keys[0].names, s.keys[0].expiry
	begun := s.beginIndexes(ctx, n, []int{0})
	if len(begun) != 1 || isWhole(t, s, names, 0) || isWhole(t, s, expiry, markScore) {
		t.Fatal("indexes that are being made anew count as whole")
	}
	s.redis().Del(ctx, names, expiry)
	if err := s.endIndexes(ctx, n, begun); err != nil {
		t.Fatal(err)
	}
	if isWhole(t, s, names, 0) || isWhole(t, s, expiry, markScore) {
		t.Error("an index counts as whole that was lost while it was made anew")
	}
	s.beginIndexes(ctx, n, begun) // by a gateway that ends here
	wantIndexed(t, b, held, waits)
}
