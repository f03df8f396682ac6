package redis

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// What docs/stores/redis.md says of two masters side by side: each tells the gateways that ask it
// what it knows, so that a lease which one of them has never heard of, or not for as long, is lost
// there and not at the other. What only the old one knows nobody is granted at the new one, for as
// long as its holder was told; and it is lost when all ask the new one.
func TestTwoMasters(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	near, far := redistest.StartProxy(t, master.Addr()), redistest.StartProxy(t, master.Addr())
	var c clocks
	pass := func(d time.Duration) { c.redis.Add(int64(d)); c.gateway.Add(int64(d)) }
	a, b := open(t, c.options(near.URL())), open(t, c.options(far.URL()))
	renew := func(s *Store, r fencing.AcquireRequest) (fencing.Outcome, error) {
		return s.Do(t.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
	}
	both := acquireRequest("both")
	both.TTL = 10 * time.Second
	mustAcquire(t, a, acquireRequest("the longest TTL"))
	mustAcquire(t, b, both)
	follows(t, master)
	promote(t, replica)
	old := acquireRequest("old")
	mustAcquire(t, b, old) // the replica hears of nothing any more
	near.Redirect(replica.Addr())
	until(t, func() bool { return a.Check(t.Context()) == nil })

	_, err := a.Do(t.Context(), fencing.ReleaseRequest{Name: "old", Lease: old.Lease})
	wantLost(t, "release at the new master", err, fencing.ReasonUnknown)
	_, err = renew(a, both)
	wantCode(t, "renewal at the new master", err, fencing.CodeOK)
	pass(7 * time.Second)
	_, err = renew(a, both)
	wantCode(t, "another one", err, fencing.CodeOK)
	pass(7 * time.Second)
	_, err = renew(b, both)
	wantLost(t, "renewal at the old master", err, fencing.ReasonExpired)
	mustAcquire(t, b, acquireRequest("both")) // the exception to P1
	_, err = renew(a, both)
	wantCode(t, "a third one at the new one", err, fencing.CodeOK)
	out, err := renew(b, old)
	wantCode(t, "renewal where the lease was granted", err, fencing.CodeOK)

	far.Redirect(replica.Addr())
	until(t, func() bool { return b.Check(t.Context()) == nil })
	_, err = renew(b, old)
	wantLost(t, "renewal when all ask the new master", err, fencing.ReasonUnknown)
	_, err = renew(b, both)
	wantCode(t, "renewal of what it knows", err, fencing.CodeOK)
	pass(out.Holder.ExpiresAt.Sub(out.Now) - 5*time.Second)
	refused(t, a, "old")
}
