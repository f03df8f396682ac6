package redis

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// promote makes a replica a master of its own.
func promote(t *testing.T, replica *redistest.Server) {
	t.Helper()
	client := replica.Client()
	defer client.Close()
	if err := client.ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
}

// The gateway that knows of the longest TTL is not the first that arrives at the
// next master, which has not heard of it: the quarantine is as long all the same.
func TestLongestTTLComesLater(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	proxy := redistest.StartProxy(t, master.Addr())
	a := open(t, Options{URL: proxy.URL()})
	mustAcquire(t, a, acquireRequest("b"))
	follows(t, master)
	promote(t, replica) // from here on the replica hears of nothing
	long := acquireRequest("a")
	long.TTL = 2 * time.Minute
	mustAcquire(t, a, long)
	if err := master.Kill(); err != nil {
		t.Fatal(err)
	}
	b := open(t, Options{URL: replica.URL()})
	first := refused(t, b, "a")
	t.Logf("the first gateway waits %s", first)
	proxy.Redirect(replica.Addr())
	until(t, func() bool { return a.Check(t.Context()) == nil })
	if left := refused(t, a, "a"); left < 115*time.Second {
		t.Errorf("a lease of 2 min was lost, and nothing new is granted for %s", left)
	}
	if left := refused(t, b, "a"); left < 115*time.Second {
		t.Errorf("the other gateway waits %s", left)
	}
	until(t, func() bool { return refused(t, b, "another") > 115*time.Second })
	_, err := a.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: long.Lease})
	wantLost(t, "renewal of what was lost", err, fencing.ReasonUnknown)
}

// The same of a lease that was handed on to a waiter, whose gateway learns of it from the
// answer to the release.
func TestLongestTTLWasHandedOn(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	proxy := redistest.StartProxy(t, master.Addr())
	a := open(t, Options{URL: proxy.URL()})
	e := listen(t, a)
	held, long := acquireRequest("a"), waitRequest("a")
	long.TTL = 2 * time.Minute
	mustAcquire(t, a, held)
	mustWait(t, a, long)
	follows(t, master)
	promote(t, replica)
	mustRelease(t, a, held)
	if err := master.Kill(); err != nil { // before the next check of the guard
		t.Fatal(err)
	}
	if got := e.granted(long.Lease); len(got) != 1 || got[0].Holder.Provisional {
		t.Fatalf("granted: %+v", got)
	}
	proxy.Redirect(replica.Addr())
	until(t, func() bool { return a.Check(t.Context()) == nil })
	if left := refused(t, a, "b"); left < 115*time.Second {
		t.Errorf("a lease of 2 min was lost, and nothing new is granted for %s", left)
	}
}

// A master whose replica was promoted while it was well goes on for those gateways
// that have not heard of it. What they renew there in that time is good for its TTL.
func TestRenewedAtOldMaster(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	near, far := redistest.StartProxy(t, master.Addr()), redistest.StartProxy(t, master.Addr())
	var c clocks
	pass := func(d time.Duration) { c.redis.Add(int64(d)); c.gateway.Add(int64(d)) }
	a, b := open(t, c.options(near.URL())), open(t, c.options(far.URL()))
	mustAcquire(t, a, acquireRequest("b"))
	held := acquireRequest("a")
	mustAcquire(t, b, held)
	follows(t, master)
	promote(t, replica)
	near.Redirect(replica.Addr())
	until(t, func() bool { return a.Check(t.Context()) == nil })
	refused(t, a, "c")
	pass(sentinelEvery - 100*time.Millisecond)
	out, err := b.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: held.Lease})
	wantCode(t, "renewal at the old master", err, fencing.CodeOK)
	left := out.Holder.ExpiresAt.Sub(out.Now)
	far.Redirect(replica.Addr())
	until(t, func() bool { return b.Check(t.Context()) == nil })
	pass(left - 400*time.Millisecond)
	if _, err := a.Do(t.Context(), acquireRequest("a")); code(err) != fencing.CodeLocked && code(err) != fencing.CodeQuarantined {
		t.Errorf("a lease that its holder believes in for another 400 ms was granted to somebody else: %v", err)
	}
}
