package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// ofName are the kinds of keys that stand beside the record of a name.
var ofHolders, ofQueue = []string{"holders", "until", "limits", "tokens", "slots"}, []string{"places", "queue", "gateway", "resting", "history"}

// harms are what may come of a key.
var harms = map[string]func(context.Context, *Store, string){
	"gone": func(ctx context.Context, s *Store, key string) { s.redis().Del(ctx, key) },
	"of another type": func(ctx context.Context, s *Store, key string) {
		s.redis().Del(ctx, key)
		s.redis().Set(ctx, key, "?", 0)
	},
}

// A name goes on whichever key of its queue is gone or damaged, at the latest when the
// lock is free: heartbeats do not tell of those who can't be served, so that they ask again.
// The holder keeps its lease.
func TestQueueKeyGone(t *testing.T) {
	server := redistest.Start(t)
	for _, kind := range ofQueue {
		for what, harm := range harms {
			for _, verb := range []string{"release", "join", "inspect", "expire", "heartbeat"} {
				t.Run(kind+" "+what+" "+verb, func(t *testing.T) {
					flush(t, server)
					b := openBackend(t, server)
					s, other, ctx := b.stores[0], b.stores[1], t.Context()
					e := listen(t, s)
					held, waits, rests := acquireRequest("a"), waitRequest("a"), waitRequest("a")
					rests.Keep = true
					mustAcquire(t, s, held)
					mustWait(t, s, rests)
					_, err := s.Do(ctx, fencing.LeaveRequest{Name: "a", Lease: rests.Lease, Stamp: rests.Stamp})
					wantCode(t, "leave", err, fencing.CodeOK)
					mustWait(t, s, waits)
					wantCode(t, "heartbeat", s.Heartbeat(ctx, []fencing.Name{"a"}), fencing.CodeOK)
					key := s.keys[0].prefix + kind + ":a"
					if kind == "gateway" {
						key = s.keys[0].prefix + kind + ":" + s.handle
					}
					harm(ctx, s, key)
					switch verb {
					case "release":
						mustRelease(t, s, held)
						_, err := s.Do(ctx, waits)
						wantCode(t, "the waiter asks again", err, fencing.CodeOK)
					case "join":
						mustWait(t, other, waitRequest("a"))
					case "inspect":
						_, err := other.Do(ctx, fencing.InspectRequest{Name: "a"})
						wantCode(t, "inspect", err, fencing.CodeOK)
					case "heartbeat":
						wantCode(t, "heartbeat", s.Heartbeat(ctx, []fencing.Name{"a"}), fencing.CodeOK)
					case "expire":
						b.SetTime(epoch.Add(held.TTL))
						_, err := other.Expire(ctx, 100)
						wantCode(t, "expire", err, fencing.CodeOK)
					}
					if verb != "release" && verb != "expire" {
						_, err := s.Do(ctx, fencing.RenewRequest{Name: "a", Lease: held.Lease})
						wantCode(t, "renewal by the holder", err, fencing.CodeOK)
						mustRelease(t, s, held)
					}
					wantCode(t, "heartbeat", s.Heartbeat(ctx, []fencing.Name{"a"}), fencing.CodeOK)
					for _, entry := range e.entries() { // who has a place no more is not told of it
						if kind != "resting" && kind != "history" && entry.Stamp == waits.Stamp && !entry.Provisional {
							t.Errorf("told of %+v", entry)
						}
					}
				})
			}
		}
	}
}

// What stands beside the leases of several holders, of which some have several permits, is
// made anew from them.
func TestHoldersKeyGone(t *testing.T) {
	server := redistest.Start(t)
	const limit = 7
	for _, kind := range ofHolders {
		for what, harm := range harms {
			t.Run(kind+" "+what, func(t *testing.T) {
				flush(t, server)
				var c clocks
				s, ctx := open(t, c.options(server.URL())), t.Context()
				var all []fencing.AcquireRequest
				for _, permits := range []int{2, 1, 2} {
					r := acquireRequest("a")
					r.Mode, r.Limit, r.Permits = fencing.ModeShared, limit, permits
					mustAcquire(t, s, r)
					all = append(all, r)
				}
				key := s.keys[0].prefix + kind + ":a"
				harm(ctx, s, key)
				next := acquireRequest("a")
				next.Mode, next.Limit, next.Permits = fencing.ModeShared, limit, 2
				out, err := s.Do(ctx, next)
				switch {
				case kind == "holders" && what == "gone": // leases are lost: nobody gets in before they have ended
					wantCode(t, "acquire", err, fencing.CodeQuarantined)
					if left := refused(t, s, "another"); left < all[0].TTL-time.Second || left > all[0].TTL {
						t.Errorf("nothing is granted for %s, want %s", left, all[0].TTL)
					}
					if s.Losses() != 1 {
						t.Errorf("%d losses were counted, want 1", s.Losses())
					}
					c.redis.Store(int64(all[0].TTL))
					c.gateway.Store(int64(all[0].TTL))
					mustAcquire(t, s, next)
					return
				case kind == "holders":
					wantCode(t, "acquire", err, fencing.CodeUnavailable)
					s.redis().Del(ctx, key) // the operator's way out
					_, err = s.Do(ctx, next)
					wantCode(t, "acquire", err, fencing.CodeQuarantined)
					return
				}
				wantCode(t, "acquire", err, fencing.CodeOK)
				if out.Holder.Slots != "5-6" {
					t.Errorf("slots %s, want 5-6", out.Holder.Slots)
				}
				more := acquireRequest("a")
				more.Mode, more.Limit = fencing.ModeShared, limit
				_, err = s.Do(ctx, more)
				wantCode(t, "one more", err, fencing.CodeLocked)
				_, err = s.Do(ctx, acquireRequest("a"))
				wantCode(t, "an exclusive one", err, fencing.CodeLocked)
				for _, r := range append(all, next) {
					_, err := s.Do(ctx, fencing.RenewRequest{Name: "a", Lease: r.Lease})
					wantCode(t, "renewal", err, fencing.CodeOK)
				}
				for _, r := range append(all, next) {
					mustRelease(t, s, r)
				}
				mustAcquire(t, s, acquireRequest("a"))
			})
		}
	}
}

// Permits that are given back are marked as free by the renewal: that nobody has to make it anew.
func TestSlotsGivenBack(t *testing.T) {
	s, ctx := openBackend(t, redistest.Start(t)).stores[0], t.Context()
	var all []fencing.AcquireRequest
	for range 2 {
		r := acquireRequest("a")
		r.Mode, r.Limit, r.Permits = fencing.ModeShared, 20, 8
		mustAcquire(t, s, r)
		all = append(all, r)
	}
	for i, kept := range []int{5, 7} {
		_, err := s.Do(ctx, fencing.RenewRequest{Name: "a", Lease: all[i].Lease, Permits: kept})
		wantCode(t, "renewal", err, fencing.CodeOK)
	}
	if n := s.redis().BitCount(ctx, s.keys[0].prefix+"slots:a", nil).Val(); n != 12 {
		t.Errorf("%d slots are marked as taken, want 12", n)
	}
}

// With the record of a name gone, what stood beside it is in nobody's way: not in the
// queue, and not among the holders.
func TestRecordGone(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	s, ctx := b.stores[0], t.Context()
	shared := func() fencing.AcquireRequest {
		r := acquireRequest("a")
		r.Mode, r.Limit = fencing.ModeShared, 2
		return r
	}
	mustAcquire(t, s, shared())
	mustAcquire(t, s, shared())
	mustWait(t, s, waitRequest("a"))
	mustWait(t, s, waitRequest("a"))
	s.redis().Del(ctx, s.keys[0].lock("a"))

	first, second, waiter := shared(), shared(), waitRequest("a")
	mustAcquire(t, s, first)
	mustAcquire(t, s, second)
	if out, err := s.Do(ctx, waiter); err != nil || out.Place == nil || out.Place.Position != 1 {
		t.Errorf("joined: %+v, %v; want the first place", out.Place, err)
	}
	mustRelease(t, s, first)
	mustRelease(t, s, second)
	out, err := s.Do(ctx, fencing.InspectRequest{Name: "a"})
	if err != nil || len(out.Lock.Holders) != 1 || out.Lock.Holders[0].Lease != waiter.Lease.Public() {
		t.Errorf("%+v, %v; want the waiter", out.Lock.Holders, err)
	}
}

// What an operation was about to tell others is not told when it breaks off: here an
// index of the partition can't be written.
func TestBrokenOffTellsNothing(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	near, far, ctx := b.stores[0], b.stores[1], t.Context()
	held, waits := acquireRequest("a"), waitRequest("a")
	mustAcquire(t, near, held)
	mustWait(t, far, waits)
	mail := near.redis().Subscribe(ctx, gatewayChannel(fencing.Gateway(far.handle)))
	defer mail.Close()
	if _, err := mail.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	b.SetTime(epoch.Add(time.Second))
	wantCode(t, "heartbeat", far.Heartbeat(ctx, []fencing.Name{"a"}), fencing.CodeOK) // so that the index has to change
	index := near.keys[0].expiry
	near.redis().Rename(ctx, index, "elsewhere")
	near.redis().Set(ctx, index, "?", 0)
	_, err := near.Do(ctx, fencing.ReleaseRequest{Name: "a", Lease: held.Lease})
	wantCode(t, "release", err, fencing.CodeUnavailable)
	near.redis().Rename(ctx, "elsewhere", index)
	near.redis().Publish(ctx, gatewayChannel(fencing.Gateway(far.handle)), "end")
	m, err := mail.ReceiveMessage(ctx)
	if err != nil || m.Payload != "end" {
		t.Errorf("the other gateway was told %q, %v, of what has not been done", m.Payload, err)
	}
	mustRelease(t, near, held)
}

// BenchmarkManyHolders measures what Redis works on one operation of a name with as many
// holders as may be.
func BenchmarkManyHolders(b *testing.B) {
	s := open(b, Options{URL: redistest.Start(b).URL()})
	const many = 10_000
	var tokens []fencing.Token
	var last fencing.AcquireRequest
	for range many {
		r := acquireRequest("a")
		r.Mode, r.Limit = fencing.ModeShared, many
		out, err := s.Do(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		tokens, last = append(tokens, out.Holder.Token), r
	}
	took := func(name string, do func()) {
		b.Run(name, func(b *testing.B) {
			s.redis().ConfigResetStat(b.Context())
			for range b.N {
				do()
			}
			_, stat, _ := strings.Cut(s.redis().Info(b.Context(), "commandstats").Val(), "cmdstat_fcall:")
			var calls, us int64
			if _, err := fmt.Sscanf(stat, "calls=%d,usec=%d", &calls, &us); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(us)/float64(calls), "us/call")
		})
	}
	took("break of none", func() { _, _ = s.Do(b.Context(), fencing.BreakRequest{Name: "a", Token: 1}) })
	took("break", func() {
		if _, err := s.Do(b.Context(), fencing.BreakRequest{Name: "a", Token: tokens[0]}); err != nil {
			b.Fatal(err)
		}
		tokens = tokens[1:]
	})
	took("renew", func() {
		if _, err := s.Do(b.Context(), fencing.RenewRequest{Name: "a", Lease: last.Lease}); err != nil {
			b.Fatal(err)
		}
	})
}

// The way out of a key that can't be read (docs/failures.md): it is deleted with the
// guard of its partition, and nobody is granted what its holder may believe in.
func TestWayOutOfDamage(t *testing.T) {
	var c clocks
	s, ctx := open(t, c.options(redistest.Start(t).URL())), t.Context()
	held := acquireRequest("a")
	mustAcquire(t, s, held)
	s.redis().Set(ctx, s.keys[0].lock("a"), "?", 0)
	_, err := s.Do(ctx, acquireRequest("a"))
	wantCode(t, "acquire", err, fencing.CodeUnavailable)
	s.redis().Del(ctx, s.keys[0].lock("a"), s.keys[0].guard)
	if left := refused(t, s, "a"); left < held.TTL-time.Second || left > held.TTL {
		t.Errorf("nothing is granted for %s, want %s", left, held.TTL)
	}
	c.redis.Store(int64(held.TTL))
	c.gateway.Store(int64(held.TTL))
	mustAcquire(t, s, acquireRequest("a"))
}

// Who waits behind leases that are lost is served when the last of them has ended, and not
// before, whichever operation finds it out; behind leases of which a key was lost that can be
// made anew, when they end.
func TestWaitingBehindLostLeases(t *testing.T) {
	server := redistest.Start(t)
	for _, kind := range ofHolders {
		for _, verb := range []string{"renew", "release", "break", "inspect", "list", "join", "leave", "confirm", "expire", "admit"} {
			t.Run(kind+" "+verb, func(t *testing.T) {
				flush(t, server)
				var c clocks
				s, ctx := open(t, c.options(server.URL())), t.Context()
				listen(t, s)
				var all []fencing.AcquireRequest
				var first, last fencing.Holder
				for _, ttl := range []time.Duration{10 * time.Second, 20 * time.Second} {
					r := acquireRequest("a")
					r.Mode, r.Limit, r.TTL = fencing.ModeShared, 2, ttl
					if last = mustAcquire(t, s, r).Holder; len(all) == 0 {
						first = last
					}
					all = append(all, r)
				}
				waits, leaves := waitRequest("a"), waitRequest("a")
				mustWait(t, s, waits)
				mustWait(t, s, leaves)
				s.redis().Del(ctx, s.keys[0].prefix+kind+":a")
				unlessLost := func(refusal fencing.Code) fencing.Code {
					if kind == "holders" {
						return refusal
					}
					return fencing.CodeOK
				}
				switch verb {
				case "renew":
					_, err := s.Do(ctx, fencing.RenewRequest{Name: "a", Lease: all[1].Lease, TTL: 20 * time.Second})
					wantCode(t, verb, err, unlessLost(fencing.CodeLeaseLost))
				case "release":
					_, err := s.Do(ctx, fencing.ReleaseRequest{Name: "a", Lease: all[0].Lease})
					wantCode(t, verb, err, unlessLost(fencing.CodeLeaseLost))
				case "break":
					_, err := s.Do(ctx, fencing.BreakRequest{Name: "a", Token: first.Token - 1})
					wantCode(t, verb, err, fencing.CodeStaleToken)
				case "inspect":
					_, err := s.Do(ctx, fencing.InspectRequest{Name: "a"})
					wantCode(t, verb, err, fencing.CodeOK)
				case "list":
					_, err := s.List(ctx, fencing.ListRequest{Limit: 10})
					wantCode(t, verb, err, fencing.CodeOK)
				case "join":
					mustWait(t, s, waitRequest("a"))
				case "leave":
					_, err := s.Do(ctx, fencing.LeaveRequest{Name: "a", Lease: leaves.Lease, Stamp: leaves.Stamp})
					wantCode(t, verb, err, fencing.CodeOK)
				case "confirm":
					_, err := s.Do(ctx, fencing.ConfirmRequest{Name: "a", Lease: all[0].Lease, Stamp: all[0].Stamp})
					wantCode(t, verb, err, unlessLost(fencing.CodeLeaseLost))
				case "admit":
					_, err := s.Do(ctx, fencing.AdmitRequest{Name: "a", Token: last.Token, Slot: fencing.NoSlot})
					wantCode(t, verb, err, unlessLost(fencing.CodeQuarantined))
				}
				holder := func() fencing.LeasePublic {
					t.Helper()
					out, err := s.Do(ctx, fencing.InspectRequest{Name: "a", Holders: 10})
					wantCode(t, "inspect", err, fencing.CodeOK)
					if len(out.Lock.Holders) == 1 {
						return out.Lock.Holders[0].Lease
					}
					return ""
				}
				pass := func(till time.Duration) {
					t.Helper()
					for at := time.Duration(c.redis.Load()); at < till; {
						at = min(at+time.Second, till)
						c.redis.Store(int64(at))
						c.gateway.Store(int64(at))
						wantCode(t, "heartbeat", s.Heartbeat(ctx, []fencing.Name{"a"}), fencing.CodeOK)
						_, err := s.Expire(ctx, 100)
						wantCode(t, "expire", err, fencing.CodeOK)
					}
				}
				pass(18 * time.Second)
				if holder() == waits.Lease.Public() {
					t.Error("granted while the lease before it may be believed in")
				}
				pass(22 * time.Second)
				if got := holder(); got != waits.Lease.Public() {
					t.Errorf("%s holds, want who waits", got)
				}
			})
		}
	}
}
