package redis

import (
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// readers has n shared requests wait for a name, in order.
func readers(t testing.TB, s *Store, name fencing.Name, n int) []fencing.AcquireRequest {
	t.Helper()
	all := make([]fencing.AcquireRequest, n)
	for i := range all {
		all[i] = waitRequest(name)
		all[i].Mode = fencing.ModeShared
		if out, err := s.Do(t.Context(), all[i]); err != nil || !out.Waits() {
			t.Fatalf("waiter %d: %+v, %v", i, out, err)
		}
	}
	return all
}

// A release with more waiters behind it than one step hands on to: all are granted at
// once, in order, without anybody asking again; also where another gateway has to go on,
// for that which began has died.
func TestHandOffGoesOn(t *testing.T) {
	for what, limit := range map[string]int{"by who began": 0, "by another gateway": fencing.StepLimit} {
		t.Run(what, func(t *testing.T) {
			server := redistest.Start(t)
			begins := open(t, Options{URL: server.SocketURL(), stepLimit: limit}) // with a limit of its own it does not go on
			waits := open(t, Options{URL: server.SocketURL()})
			heard := &recorder{}
			waits.Listen(heard)
			first := acquireRequest("a")
			mustAcquire(t, begins, first)
			all := readers(t, waits, "a", 5*fencing.StepLimit+7)
			last := heard.expect(all[len(all)-1].Lease)
			out, err := begins.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: first.Lease})
			if err != nil || len(out.Granted) != fencing.StepLimit || !out.More {
				t.Fatalf("the first step grants to %d, more: %v, %v", len(out.Granted), out.More, err)
			}
			if limit != 0 {
				if err := waits.Heartbeat(t.Context(), []fencing.Name{"a"}); err != nil {
					t.Fatal(err)
				}
			}
			receive(t, "news of a grant", last)
			token := fencing.Token(0)
			told := map[fencing.LeasePublic]fencing.Token{}
			heard.mu.Lock()
			for _, g := range heard.grants {
				told[g.Holder.Lease] = g.Holder.Token
			}
			heard.mu.Unlock()
			for i := range all {
				if told[all[i].Lease.Public()] <= token {
					t.Fatalf("waiter %d has the token %d, the one before it %d", i, told[all[i].Lease.Public()], token)
				}
				token = told[all[i].Lease.Public()]
			}
		})
	}
}

// BenchmarkHandOffToMany measures a release with many shared waiters behind it: how long
// until all are granted, and for how long a call keeps Redis from others.
func BenchmarkHandOffToMany(b *testing.B) {
	for _, n := range []int{5_000, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			server := redistest.Start(b)
			s := open(b, Options{URL: server.SocketURL(), ReadTimeout: time.Minute, OperationTimeout: time.Minute})
			heard := &recorder{}
			s.Listen(heard)
			client := server.Client()
			defer client.Close()
			if err := client.Do(b.Context(), "CONFIG", "SET", "slowlog-log-slower-than", "1000", "slowlog-max-len", "100000").Err(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				name := fencing.Name(rand.Text())
				first := acquireRequest(name)
				mustAcquire(b, s, first)
				var joining sync.WaitGroup
				for range 50 {
					joining.Go(func() { readers(b, s, name, n/50) })
				}
				joining.Wait()
				end := waitRequest(name)
				end.Mode = fencing.ModeShared
				if out, err := s.Do(b.Context(), end); err != nil || !out.Waits() {
					b.Fatal(err)
				}
				last := heard.expect(end.Lease)
				if err := client.Do(b.Context(), "SLOWLOG", "RESET").Err(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if _, err := s.Do(b.Context(), fencing.ReleaseRequest{Name: name, Lease: first.Lease}); err != nil {
					b.Fatal(err)
				}
				receive(b, "news of a grant", last)
			}
			b.ReportMetric(longestCommand(b, client).Seconds()*1000, "longest-ms")
		})
	}
}

// longestCommand returns how long the slowest command of the slow log took.
func longestCommand(b *testing.B, client *goredis.Client) time.Duration {
	b.Helper()
	log, err := client.SlowLogGet(b.Context(), -1).Result()
	if err != nil {
		b.Fatal(err)
	}
	longest := time.Duration(0)
	for _, entry := range log {
		longest = max(longest, entry.Duration)
	}
	return longest
}
