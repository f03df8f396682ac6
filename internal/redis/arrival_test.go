package redis

import (
	"errors"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// An arrival whose answer is lost was noted: the next check goes on from there, begins no
// quarantine where there was none, and the one that was begun not again each time.
func TestArrivalUnanswered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what        string
		options     Options
		harm        func(*testing.T, *redistest.Server)
		quarantined bool
	}{
		{"unused", Options{Member: true}, func(*testing.T, *redistest.Server) {}, false},
		{"flushed", Options{}, func(t *testing.T, server *redistest.Server) { flush(t, server) }, true},
		{"served by another", Options{}, func(t *testing.T, server *redistest.Server) {
			client, key := server.Client(), newKeyspaces(alonePartitions)[0].guard
			defer client.Close()
			guard := client.Get(t.Context(), key).Val()
			client.Set(t.Context(), key, strings.Replace(guard, serverAt(t, server), "other", 1), 0)
		}, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := redistest.StartProxy(t, server.Addr())
			c.options.URL = proxy.URL()
			s := open(t, c.options)
			s.guards.close()
			n := s.topology.node(0)
			until(t, func() bool { // it has the library
				_, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"})
				return err == nil && n.isChecked()
			})
			c.harm(t, server)
			lost := proxy.Lost()
			lose := func(was *remembered, is *reported) verdict {
				v := reconcile(was, is)
				if v == withheld {
					v = unused
				}
				proxy.SwallowReply(false)
				return v
			}
			until(t, func() bool { return s.arriveAt(t.Context(), n, time.Time{}, lose) != nil && proxy.Lost() > lost })
			guardThere := func() bool { m, err := s.Memory(t.Context()); return err == nil && !m.Blank }
			until(t, guardThere)
			ends := func() fencing.Instant {
				if err := s.arriveAt(t.Context(), n, time.Time{}, reconcile); err != nil {
					t.Error(err)
				}
				return s.guards.recall(0, "").until
			}
			before := ends()
			if after := ends(); after != before {
				t.Errorf("the quarantine was begun again, to end %s later", after.Sub(before))
			}
			if c.quarantined {
				if left := refused(t, s, "a"); left < 28*time.Second || left > 30*time.Second {
					t.Errorf("quarantine of %s", left)
				}
			} else {
				mustAcquire(t, s, acquireRequest("a"))
			}
		})
	}
}

// An arrival that is under way for too long is refused: what it goes by may be of the past.
// It is made good before anything is granted.
func TestArrivalComesLate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := open(t, Options{URL: proxy.URL(), ReadTimeout: 5 * time.Second, OperationTimeout: 20 * time.Second})
	s.guards.close()
	mustAcquire(t, s, acquireRequest("a"))
	flush(t, server)
	n := s.topology.node(0)
	err := s.arriveAt(t.Context(), n, time.Time{}, func(was *remembered, is *reported) verdict {
		proxy.Lag(s.options.MaxSkew+time.Second, true)
		return reconcile(was, is)
	})
	if !errors.Is(err, errSkewed) || n.isChecked() {
		t.Fatalf("an arrival that came late: %v", err)
	}
	if m, err := s.Memory(t.Context()); err != nil || !m.Blank {
		t.Errorf("it was noted: %+v, %v", m, err)
	}
	if left := refused(t, s, "a"); left < 28*time.Second {
		t.Errorf("quarantine of %s", left)
	}
}

// Of two gateways the one that knows of the shorter TTL finds the old snapshot: the other
// makes the quarantine as long as what was forgotten is believed in.
func TestLongerTTLElsewhere(t *testing.T) {
	server := redistest.Start(t)
	one, two := open(t, Options{URL: server.URL()}), open(t, Options{URL: server.URL()})
	one.guards.close()
	mustAcquire(t, two, acquireRequest("a"))
	two.guards.close()
	client, k := server.Client(), &one.keys[0]
	defer client.Close()
	saved := map[string]string{}
	for _, key := range []string{k.guard, k.token} {
		saved[key] = client.Dump(t.Context(), key).Val()
	}
	long := acquireRequest("b")
	long.TTL = 2 * time.Minute
	mustAcquire(t, one, long)
	r := acquireRequest("c")
	r.TTL = 10 * time.Second
	mustAcquire(t, two, r)
	client.FlushAll(t.Context())
	for key, value := range saved {
		if err := client.RestoreReplace(t.Context(), key, 0, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if left := refused(t, two, "d"); left > 31*time.Second {
		t.Fatalf("quarantine of %s: who found it knew of the longer TTL", left)
	}
	one.checkGuards(t.Context())
	if left := refused(t, two, "d"); left < 115*time.Second {
		t.Errorf("quarantine of %s; a lease of 2 min was lost", left)
	}
}

// A guard in which a quarantine ends earlier than this gateway knows has lost what it was
// told: it is told again.
func TestEarlierEnd(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	s.guards.close()
	mustAcquire(t, s, acquireRequest("a"))
	flush(t, server)
	if left := refused(t, s, "a"); left < 28*time.Second {
		t.Fatalf("quarantine of %s", left)
	}
	client, key := server.Client(), s.keys[0].guard
	defer client.Close()
	g, err := decodeGuard(client.Get(t.Context(), key).Val(), 1)
	must(t, err)
	g.Until = 0
	w := codec{mode: writing}
	w.guard(&g)
	must(t, client.Set(t.Context(), key, w.b, 0).Err())
	s.checkGuards(t.Context())
	s.checkGuards(t.Context())
	if left := refused(t, s, "a"); left < 25*time.Second {
		t.Errorf("quarantine of %s", left)
	}
}
