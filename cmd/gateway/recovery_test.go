package main

import (
	"context"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// waitAt has a client wait at a gateway; the channel has what became of it.
func waitAt(ctx context.Context, g *gatewayProcess, name string) <-chan error {
	done := make(chan error, 1)
	go func() {
		h, err := acquireAt(ctx, g, name, `{"wait_ms":40000}`)
		if err == nil {
			err = releaseAt(g, name, h)
		}
		done <- err
	}()
	return done
}

// entriesOf counts what Redis has for gateways.
func entriesOf(t *testing.T, server *redistest.Server) (n int64) {
	t.Helper()
	c := server.Client()
	defer c.Close()
	keys, err := c.Keys(t.Context(), "fencepost:*:gateway:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		n += c.ZCard(t.Context(), key).Val()
	}
	return n
}

// entriesAre waits until Redis has so much for gateways.
func entriesAre(t *testing.T, server *redistest.Server, want int64) {
	t.Helper()
	for deadline := time.Now().Add(patience); entriesOf(t, server) != want; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("Redis has %d entries for gateways, want %d", entriesOf(t, server), want)
		}
	}
}

// Whichever keys of a name are deleted or evicted while somebody waits, that one is served,
// or leaves; and nothing of it stays behind.
func TestWaitersOutliveKeys(t *testing.T) {
	t.Parallel()
	waitersOutliveKeys(t, map[string][]string{
		"the way out of damage":   {"lock:a", "guard"}, // docs/failures.md
		"the places and gateways": {"places:a", "gateways"},
	})
}

func TestSystemWaitersOutliveKeys(t *testing.T) {
	t.Parallel()
	waitersOutliveKeys(t, map[string][]string{
		"the record":             {"lock:a"},
		"the record and a queue": {"lock:a", "queue:a"},
	})
}

func waitersOutliveKeys(t *testing.T, deleted map[string][]string) {
	for what, keys := range deleted {
		for _, leaves := range []bool{false, true} {
			title := what
			if leaves {
				title += ", the waiter leaves"
			}
			t.Run(title, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				near, far := startOn(t, server.URL(), "FENCEPOST_QUARANTINE=2s"), startOn(t, server.URL(), "FENCEPOST_QUARANTINE=2s")
				held, err := acquireAt(t.Context(), near, "a", `{"ttl_ms":2000,"wait_ms":20000}`) // there is a quarantine at first
				if err != nil {
					t.Fatal(err)
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				waiter := waitAt(ctx, far, "a")
				entriesAre(t, server, 1)
				c := server.Client()
				defer c.Close()
				for _, key := range keys {
					if err := c.Del(t.Context(), c.Keys(t.Context(), "fencepost:*:"+key).Val()...).Err(); err != nil {
						t.Fatal(err)
					}
				}
				if leaves {
					leave()
					<-waiter
				} else if err := <-waiter; err != nil {
					t.Errorf("the waiter was not served: %v", err)
				}
				entriesAre(t, server, 0)
				_ = releaseAt(near, "a", held) // it may be gone
			})
		}
	}
}

// The answer to a release that handed the lock on is lost: the waiter of the same gateway,
// whose lease is firm, is found.
func TestAnAnswerThatHandsOnIsLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	g := startOn(t, proxy.URL())
	for range 3 {
		held, err := acquireAt(t.Context(), g, "a", `{"wait_ms":40000}`)
		if err != nil {
			t.Fatal(err)
		}
		waiter := waitAt(t.Context(), g, "a")
		entriesAre(t, server, 1)
		proxy.SwallowReply(false)
		if err := releaseAt(g, "a", held); err != nil {
			t.Fatal(err)
		}
		if err := <-waiter; err != nil {
			t.Errorf("the waiter was not served: %v", err)
		}
	}
	if n := proxy.Lost(); n != 3 {
		t.Errorf("%d of 3 answers were lost: the test misses its aim", n)
	}
}
