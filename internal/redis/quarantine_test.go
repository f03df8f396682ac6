package redis

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// refused asks for a lease and returns how long it will not be had, failing the
// test if it is.
func refused(t *testing.T, s *Store, name fencing.Name) time.Duration {
	t.Helper()
	_, err := s.Do(t.Context(), acquireRequest(name))
	wantCode(t, "acquire", err, fencing.CodeQuarantined)
	var e *fencing.Error
	errors.As(err, &e)
	return e.RetryAfter
}

func flush(t testing.TB, server *redistest.Server) {
	t.Helper()
	client := server.Client()
	defer client.Close()
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// What a Redis has forgotten is not granted to others while its holder may
// believe in it: for as long as the longest TTL in use, by whomever.
func TestQuarantineAfterFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := open(t, Options{URL: server.URL()}), open(t, Options{URL: server.URL()})
	held, long := acquireRequest("a"), acquireRequest("b")
	long.TTL = 2 * time.Minute
	mustAcquire(t, a, held)
	mustAcquire(t, b, long)
	flush(t, server)
	if left := refused(t, a, "a"); left < 29*time.Second || left > 30*time.Second {
		t.Errorf("nothing is granted for %s; want the TTL in use, 30 s", left)
	}
	if left := refused(t, b, "a"); left < 29*time.Second {
		t.Errorf("the other gateway grants in %s", left)
	}
	// The gateway that knows of the longer TTL notices that a guard is not the one it
	// has seen.
	until(t, func() bool { return refused(t, a, "a") > 115*time.Second })
	until(t, func() bool { return refused(t, a, "another") > 115*time.Second })
	_, err := a.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: held.Lease})
	wantLost(t, "renewal of what was forgotten", err, fencing.ReasonUnknown)
	until(t, func() bool {
		stats, err := a.Stats(t.Context())
		return err == nil && stats.Quarantine > 115*time.Second
	})
}

// A server that begins another run may have less than the one before. What it
// has goes on.
func TestQuarantineAfterRestart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := open(t, Options{URL: server.URL(), Quarantine: QuarantinePolicy{For: 2 * time.Second}}) // a test can wait for it, and be slow
	until(t, func() bool {                                                                       // the first one, for nobody knows what was there before
		_, err := s.Do(t.Context(), acquireRequest("first"))
		return err == nil
	})
	held, waiter := acquireRequest("a"), waitRequest("a")
	e := listen(t, s)
	token := mustAcquire(t, s, held).Holder.Token
	mustWait(t, s, waiter)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return s.Check(t.Context()) == nil })
	refused(t, s, "b")
	out, err := s.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: held.Lease})
	if err != nil || out.Holder.Token != token {
		t.Errorf("renewal in quarantine: %+v, %v", out.Holder, err)
	}
	again, err := s.Do(t.Context(), held)
	if err != nil || again.Holder.Token != token {
		t.Errorf("retry in quarantine: %+v, %v", again.Holder, err)
	}
	mustRelease(t, s, held)
	if got := e.granted(waiter.Lease); len(got) != 0 {
		t.Errorf("handed on in quarantine: %+v", got)
	}
	until(t, func() bool { // its end hands on
		_, err := s.Expire(t.Context(), 100)
		return err == nil && len(e.granted(waiter.Lease)) == 1
	})
	until(t, func() bool {
		_, err := s.Do(t.Context(), acquireRequest("b"))
		return err == nil
	})
}

// An old snapshot is found out by the tokens that this gateway was given, even
// where the server looks as if it had served all the time.
func TestQuarantineOfAnOldSnapshot(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	s := open(t, Options{URL: server.URL()})
	r := acquireRequest("a")
	mustAcquire(t, s, r)
	k := &newKeyspaces(alonePartitions)[0]
	saved := client.Dump(t.Context(), k.token).Val()
	mustRelease(t, s, r)
	last := mustAcquire(t, s, acquireRequest("a")).Holder.Token
	client.Del(t.Context(), k.lock("a"))
	if err := client.RestoreReplace(t.Context(), k.token, 0, saved).Err(); err != nil {
		t.Fatal(err)
	}
	if left := refused(t, s, "a"); left < 29*time.Second {
		t.Errorf("quarantine of %s", left)
	}
	if got := client.Get(t.Context(), k.token).Val(); got != last.String() {
		t.Errorf("the counter is %s, want %s: the next grant would find it behind again", got, last)
	}
}

// A replica that was promoted may be behind; so may a server that was one for a
// while and is a master again, in the same run.
func TestQuarantineAfterPromotion(t *testing.T) {
	t.Parallel()
	server, other := redistest.Start(t), redistest.Start(t)
	s := open(t, Options{URL: server.URL(), OperationTimeout: 3 * time.Second}) // what is refused at a replica takes it all
	mustAcquire(t, s, acquireRequest("a"))
	client := server.Client()
	defer client.Close()
	host, port, _ := net.SplitHostPort(other.Addr())
	if err := client.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Do(t.Context(), acquireRequest("b"))
	wantCode(t, "acquire at a replica", err, fencing.CodeUnavailable)
	until(t, func() bool { // it has taken over what the other has: nothing
		return client.DBSize(t.Context()).Val() == 0
	})
	promoted := time.Now()
	if err := client.ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return s.Check(t.Context()) == nil })
	if left := refused(t, s, "a"); left < 29*time.Second-time.Since(promoted) {
		t.Errorf("quarantine of %s, %s after it was promoted", left, time.Since(promoted))
	}
}

func memoryOf(t *testing.T, s *Store) fencing.Memory {
	t.Helper()
	m, err := s.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// enroll takes the server that is there into service.
func enroll(t *testing.T, s *Store, isNew bool, longest time.Duration) time.Duration {
	t.Helper()
	left, err := s.Enroll(t.Context(), memoryOf(t, s).Server, isNew, longest)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// A node of a quorum that was restarted with its data, all or older, is not in service before
// the quorum takes it, which knows from the other nodes for how long a lease may live. Only
// the run of the server is taken that was looked at.
func TestRestartedNodeIsNotInService(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--dir", t.TempDir())
	s := open(t, Options{URL: server.URL(), Member: true})
	enroll(t, s, true, 0)
	held := acquireRequest("a")
	held.TTL = 5 * time.Minute
	mustAcquire(t, s, held)
	before := memoryOf(t, s)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a gateway that remembers, and one that does not
		until(t, func() bool {
			e, ok := errors.AsType[*fencing.Error](s.Check(t.Context()))
			return ok && e.Code == fencing.CodeQuarantined
		})
		s.checkGuards(t.Context())
		if m := memoryOf(t, s); m.Blank || m.InService || m.Server == before.Server || m.Longest != held.TTL {
			t.Errorf("%+v", m)
		}
		if left := refused(t, s, "b"); left != 0 {
			t.Errorf("in quarantine for %s; it is for the quorum to say", left)
		}
		if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: held.Lease}); err != nil {
			t.Errorf("what it still has can be renewed: %v", err)
		}
		if _, err := s.Enroll(t.Context(), before.Server, false, time.Minute); err == nil {
			t.Error("the run before was taken into service")
		}
		s = open(t, Options{URL: server.URL(), Member: true})
	}
	enroll(t, s, false, 4*time.Minute)
	if left := refused(t, s, "b"); left < 3*time.Minute {
		t.Errorf("quarantine of %s, and a TTL of 4 min is in use elsewhere", left)
	}
}

// Who takes a store for new, and who does not.
func TestNewStores(t *testing.T) {
	t.Run("auto", func(t *testing.T) {
		mustAcquire(t, open(t, Options{URL: redistest.Start(t).URL()}), acquireRequest("a"))
	})
	t.Run("a duration", func(t *testing.T) {
		s := open(t, Options{URL: redistest.Start(t).URL(), Quarantine: QuarantinePolicy{For: time.Minute}})
		if left := refused(t, s, "a"); left < 59*time.Second || left > time.Minute {
			t.Errorf("quarantine of %s", left)
		}
	})
	t.Run("a node of a quorum", func(t *testing.T) {
		server := redistest.Start(t)
		s := open(t, Options{URL: server.URL(), Member: true})
		refused(t, s, "a")
		if m := memoryOf(t, s); !m.Blank || m.InService || m.Quarantine != 30*time.Second {
			t.Errorf("a new one: %+v", m)
		}
		enroll(t, s, true, 0)
		if m := memoryOf(t, s); m.Blank || !m.InService || m.Quarantine != 0 {
			t.Errorf("in service: %+v", m)
		}
		mustAcquire(t, s, acquireRequest("a"))
		flush(t, server)
		until(t, func() bool { refused(t, s, "b"); return true })
		if m := memoryOf(t, s); !m.Blank || m.InService {
			t.Errorf("flushed: %+v", m)
		}
		if left := enroll(t, s, false, 3*time.Minute); left < 150*time.Second || left > 3*time.Minute {
			t.Errorf("enrolled for %s", left)
		}
		if left := refused(t, s, "b"); left < 150*time.Second {
			t.Errorf("quarantine of %s", left)
		}
		if m := memoryOf(t, s); m.Quarantine < 150*time.Second || m.Longest != 3*time.Minute {
			t.Errorf("in quarantine: %+v", m)
		}
	})
	t.Run("a node of a quorum that several gateways enroll", func(t *testing.T) {
		server := redistest.Start(t)
		one, two := open(t, Options{URL: server.URL(), Member: true}), open(t, Options{URL: server.URL(), Member: true})
		for range 20 {
			flush(t, server)
			m := memoryOf(t, one)
			err := inParallel(2, func(i int) error {
				_, err := []*Store{one, two}[i].Enroll(t.Context(), m.Server, false, 30*time.Second)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		enroll(t, two, false, 90*time.Second)
		if left := refused(t, one, "a"); left < 60*time.Second {
			t.Errorf("quarantine of %s, and a TTL of 90 s is in use", left)
		}
	})
	t.Run("off", func(t *testing.T) {
		server := redistest.Start(t)
		s := open(t, Options{URL: server.URL(), Quarantine: QuarantinePolicy{Off: true}})
		mustAcquire(t, s, acquireRequest("a"))
		before := s.Losses()
		flush(t, server)
		mustAcquire(t, s, acquireRequest("a"))
		if s.Losses() == before {
			t.Error("the loss was not counted")
		}
	})
}

// Keys that a server evicts may have been leases.
func TestQuarantineAfterEviction(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory-policy", "volatile-random")
	s := open(t, Options{URL: server.URL()})
	mustAcquire(t, s, acquireRequest("a"))
	client := server.Client()
	defer client.Close()
	// What is evicted is something else: it is the count that tells.
	evict(t, client, 0)
	until(t, func() bool {
		r := acquireRequest("b")
		_, err := s.Do(t.Context(), r)
		if err == nil {
			mustRelease(t, s, r)
		}
		var e *fencing.Error
		return errors.As(err, &e) && e.Code == fencing.CodeQuarantined
	})
}

// A quarantine is there for gateways that come later, and after a restart.
func TestQuarantineIsKept(t *testing.T) {
	dir := t.TempDir()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always", "--dir", dir)
	s := open(t, Options{URL: server.URL()})
	r := acquireRequest("a")
	r.TTL = time.Minute
	mustAcquire(t, s, r)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "appendonlydir", "*")); err != nil || len(files) == 0 {
		entries, _ := os.ReadDir(dir)
		t.Fatalf("nothing was persisted: %v", entries)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	// The next gateway knows of no TTL; the store does.
	s = open(t, Options{URL: server.URL()})
	if left := refused(t, s, "b"); left < 58*time.Second {
		t.Errorf("quarantine of %s, want the longest TTL in use, 1 min", left)
	}
	s = open(t, Options{URL: server.URL()})
	if left := refused(t, s, "b"); left < 57*time.Second {
		t.Errorf("a later gateway grants in %s", left)
	}
}

func evictedBy(t testing.TB, client *goredis.Client) int64 {
	t.Helper()
	info, err := client.Info(context.Background(), identityInfo...).Result()
	if err != nil {
		t.Fatal(err)
	}
	id, err := identify(info)
	if err != nil {
		t.Fatal(err)
	}
	return id.evicted
}
