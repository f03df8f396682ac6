package redis

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// clocks are those of a Redis and of a gateway, which stand still until a test moves them: however slow a machine is.
type clocks struct{ redis, gateway atomic.Int64 } // how far they are ahead, ns

// standing is what clocks say that were not moved.
var standing = time.Now()

func (c *clocks) options(url string) Options {
	return Options{
		URL:   url,
		Now:   func() fencing.Instant { return fencing.InstantOf(standing.Add(time.Duration(c.redis.Load()))) },
		Clock: func() time.Time { return standing.Add(time.Duration(c.gateway.Load())) },
	}
}

// A clock that is off by less than is allowed makes no token go back and no lease
// end early. One that is off by more gets nothing granted, and leaves nothing behind
// that counts when it is right again: what is renewed meanwhile lives for as long as its holder
// was told.
func TestClocks(t *testing.T) {
	server := redistest.Start(t)
	for _, off := range []time.Duration{400 * time.Millisecond, 2 * time.Second, time.Hour} {
		for _, side := range []time.Duration{1, -1} {
			for _, whose := range []string{"redis", "gateway"} {
				t.Run(fmt.Sprintf("%s %s", whose, off*side), func(t *testing.T) { testClocks(t, server, whose, off*side) })
			}
		}
	}
}

func testClocks(t *testing.T, server *redistest.Server, whose string, off time.Duration) {
	ctx := t.Context()
	flush(t, server)
	var c clocks
	moved := &c.redis
	if whose == "gateway" {
		moved = &c.gateway
	}
	s, other := open(t, c.options(server.URL())), open(t, c.options(server.URL()))
	held := acquireRequest("held")
	mustAcquire(t, s, held)
	r := acquireRequest("a")
	last := mustAcquire(t, s, r).Holder.Token
	mustRelease(t, s, r)

	moved.Store(int64(off))
	within := off.Abs() < time.Second
	for range 3 {
		for _, gateway := range []*Store{s, other} {
			r := acquireRequest("a")
			out, err := gateway.Do(ctx, r)
			if !within {
				wantCode(t, "acquire while the clock is off", err, fencing.CodeClockSkew)
				continue
			}
			wantCode(t, "acquire", err, fencing.CodeOK)
			if out.Holder.Token <= last {
				t.Errorf("token %d after %d", out.Holder.Token, last)
			}
			last = out.Holder.Token
			mustRelease(t, gateway, r)
		}
	}
	_, err := other.Do(ctx, acquireRequest("held"))
	if within {
		wantCode(t, "acquire of a held name", err, fencing.CodeLocked)
	} else {
		wantCode(t, "acquire of a held name", err, fencing.CodeClockSkew)
	}
	if _, err := other.Expire(ctx, 100); err != nil { // whatever it may judge, it ends nothing that is live
		wantCode(t, "expire", err, fencing.CodeClockSkew)
	}
	renewal := fencing.RenewRequest{Name: "held", Lease: held.Lease}
	sent := standing
	out, err := s.Do(ctx, renewal)
	if within || code(err) != fencing.CodeClockSkew {
		wantCode(t, "renew", err, fencing.CodeOK)
	}
	believed := sent
	if err == nil {
		believed = sent.Add(out.Holder.ExpiresAt.Sub(out.Now)) // by P9
	}

	moved.Store(0)
	if stats, err := s.Stats(ctx); err != nil || stats.Quarantine != 0 {
		t.Errorf("nothing is granted for %s: %v", stats.Quarantine, err)
	}
	again := acquireRequest("a")
	got := mustAcquire(t, other, again).Holder
	if got.Token <= last {
		t.Errorf("token %d after %d", got.Token, last)
	}
	if ahead := fencing.Instant(got.Token).Sub(fencing.InstantOf(standing)); ahead > time.Second {
		t.Errorf("the counter was left %s ahead", ahead)
	}
	if left := got.ExpiresAt.Sub(fencing.InstantOf(standing)); left < again.TTL-time.Second || left > again.TTL+time.Second {
		t.Errorf("a lease of %s ends in %s", again.TTL, left)
	}
	_, err = other.Do(ctx, acquireRequest("held"))
	wantCode(t, "acquire of a held name by a clock that is right again", err, fencing.CodeLocked)
	view, err := other.Do(ctx, fencing.InspectRequest{Name: "held"})
	if err != nil || len(view.Lock.Holders) != 1 {
		t.Fatalf("the lease is gone: %+v, %v", view.Lock, err)
	}
	if ends := view.Lock.Holders[0].ExpiresAt.Time(); believed.Sub(ends) > time.Second {
		t.Errorf("the holder may rely on its lease for %s more than it lasts", believed.Sub(ends))
	}
	wantCode(t, "renewal when the clock is right again", func() error { _, err := s.Do(ctx, renewal); return err }(), fencing.CodeOK)
}

// A renewal through a gateway whose clock is a day ahead, or behind, makes no lease
// live for longer than its TTL, P4, nor for less than its holder is told, P9.
func TestRenewalThroughAWrongClock(t *testing.T) {
	server := redistest.Start(t)
	for _, off := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		for _, mode := range []fencing.Mode{fencing.ModeExclusive, fencing.ModeShared} {
			t.Run(fmt.Sprintf("%s %s", mode, off), func(t *testing.T) {
				flush(t, server)
				var right, wrong clocks
				s, mad := open(t, right.options(server.URL())), open(t, wrong.options(server.URL()))
				r := acquireRequest("a")
				r.Mode = mode
				mustAcquire(t, s, r)
				wrong.gateway.Store(int64(off))

				out, err := mad.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease, TTL: 2 * time.Minute})
				wantCode(t, "renewal", err, fencing.CodeOK)
				if told := out.Holder.ExpiresAt.Sub(out.Now); told != 2*time.Minute {
					t.Errorf("the holder is told %s", told)
				}
				view, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"})
				if err != nil || len(view.Lock.Holders) != 1 || view.Lock.Holders[0].ExpiresAt != out.Holder.ExpiresAt {
					t.Errorf("the holder is told %v, and by the record it is %+v, %v", out.Holder.ExpiresAt, view.Lock, err)
				}
				right.redis.Store(int64(2*time.Minute - 5*time.Second))
				right.gateway.Store(right.redis.Load())
				next := acquireRequest("a")
				_, err = s.Do(t.Context(), next)
				wantCode(t, "acquire before the TTL is over", err, fencing.CodeLocked)
				right.redis.Store(int64(2*time.Minute + time.Second))
				right.gateway.Store(right.redis.Load())
				mustAcquire(t, s, next)
			})
		}
	}
}

// Of many holders only those are read whose leases were renewed while the clocks differed, and put
// right: one gateway with a wrong clock does not make every operation of the others take as long as
// a name has holders.
func TestOneOfManyRenewedWhileClocksDiffer(t *testing.T) {
	server := redistest.Start(t)
	var c clocks
	s := open(t, c.options(server.URL()))
	began := fencing.InstantOf(standing)
	var last fencing.LeaseID
	for range 100 {
		r := acquireRequest("a")
		r.Mode, last = fencing.ModeShared, r.Lease
		mustAcquire(t, s, r)
	}
	c.redis.Store(-int64(time.Hour))
	_, err := s.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: last, TTL: time.Minute})
	wantCode(t, "renewal while Redis's clock is behind", err, fencing.CodeOK)
	c.redis.Store(0)
	client := server.Client()
	defer client.Close()
	if err := client.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	view, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a", Holders: 100})
	wantCode(t, "inspect", err, fencing.CodeOK)
	if len(view.Lock.Holders) != 100 {
		t.Fatalf("%d holders are left", len(view.Lock.Holders))
	}
	for _, h := range view.Lock.Holders {
		want := 30 * time.Second
		if h.Lease == last.Public() {
			want = time.Minute
		}
		if h.ExpiresAt < began.Add(want) || h.ExpiresAt > view.Lock.Now.Add(want) {
			t.Errorf("the lease %s has %s left of %s", h.Lease, h.ExpiresAt.Sub(view.Lock.Now), want)
		}
	}
	stats, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil || !strings.Contains(stats, "cmdstat_fcall") || strings.Contains(stats, "cmdstat_hvals") || strings.Contains(stats, "cmdstat_hgetall") {
		t.Errorf("all holders are read: %s, %v", stats, err)
	}
	nothingInDoubt(t, server)
}

// What is let go while the clocks differ leaves no note behind that its end was in doubt.
func TestReleasedWhileClocksDiffer(t *testing.T) {
	server := redistest.Start(t)
	var c clocks
	s := open(t, c.options(server.URL()))
	leases := make([]fencing.LeaseID, 3)
	for i := range leases {
		r := acquireRequest("a")
		r.Mode, leases[i] = fencing.ModeShared, r.Lease
		mustAcquire(t, s, r)
	}
	c.redis.Store(-int64(time.Hour))
	for _, lease := range leases {
		_, err := s.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: lease})
		wantCode(t, "renewal", err, fencing.CodeOK)
	}
	for _, lease := range leases {
		_, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: lease})
		wantCode(t, "release", err, fencing.CodeOK)
	}
	nothingInDoubt(t, server)
}

func nothingInDoubt(t *testing.T, server *redistest.Server) {
	t.Helper()
	if left, err := server.Keys("fencepost:*:doubt:*"); err != nil || len(left) > 0 {
		t.Errorf("%v is left behind, %v", left, err)
	}
}

// What was lost while the clock of a Redis is off is in quarantine for as long as
// it would be with a clock that is right, counted from when it is.
func TestLossWhileClockIsOff(t *testing.T) {
	server := redistest.Start(t)
	for _, off := range []time.Duration{400 * time.Millisecond, -400 * time.Millisecond, 2 * time.Second, -2 * time.Second, time.Hour, -time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			ctx := t.Context()
			flush(t, server)
			var c clocks
			s, other := open(t, c.options(server.URL())), open(t, c.options(server.URL()))
			r := acquireRequest("a")
			last := mustAcquire(t, s, r).Holder.Token
			c.redis.Store(int64(off))
			flush(t, server)
			want := fencing.CodeQuarantined
			if off.Abs() > time.Second {
				want = fencing.CodeClockSkew
			}
			for _, gateway := range []*Store{s, other, open(t, c.options(server.URL()))} {
				_, err := gateway.Do(ctx, acquireRequest("a"))
				wantCode(t, "acquire after a loss", err, want)
			}
			c.redis.Store(0)
			for _, gateway := range []*Store{s, other} {
				left := refused(t, gateway, "a")
				until(t, func() bool { // 0: it could not find out in time for how long
					if left == 0 {
						left = refused(t, gateway, "a")
					}
					return left != 0
				})
				if left < 29*time.Second || left > 31*time.Second {
					t.Errorf("quarantine of %s, want that of a TTL of 30 s", left)
				}
			}
			client := server.Client()
			defer client.Close()
			counter, err := client.Get(ctx, s.keys[0].token).Int64()
			if ahead := time.Duration(counter-int64(last)) * time.Microsecond; err == nil && ahead > 10*time.Second {
				t.Errorf("the counter was left %s ahead", ahead)
			}
		})
	}
}

// A floor from the far future is refused, whoever has it, and nobody else is
// troubled by it; one that is not so far ahead counts.
func TestFloorsAhead(t *testing.T) {
	server := redistest.Start(t)
	mad, sane := open(t, Options{URL: server.URL()}), open(t, Options{URL: server.URL()})
	ctx, partition := t.Context(), 0
	first := acquireRequest("a")
	last := mustAcquire(t, sane, first).Holder.Token
	mustRelease(t, sane, first)
	mad.sender.raiseFloor(partition, last+fencing.Token(2*time.Hour.Microseconds()))
	for range 3 {
		_, err := mad.Do(ctx, acquireRequest("a"))
		wantCode(t, "acquire with a floor 2 h ahead", err, fencing.CodeClockSkew)
	}
	mad.checkGuards(ctx)
	r := acquireRequest("a")
	next := mustAcquire(t, sane, r).Holder.Token
	if ahead := time.Duration(next-last) * time.Microsecond; next <= last || ahead > 10*time.Second {
		t.Errorf("the token went %s ahead", ahead)
	}
	mustRelease(t, sane, r)
	// With a new server it is in an arrival.
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return mad.Check(ctx) == nil && sane.Check(ctx) == nil })
	refused(t, sane, "a")
	client := server.Client()
	defer client.Close()
	if counter, err := client.Get(ctx, sane.keys[partition].token).Int64(); err == nil && fencing.Token(counter) > next+fencing.Token(time.Minute.Microseconds()) {
		t.Errorf("the counter was raised to %d, which is in the far future", counter)
	}
}
