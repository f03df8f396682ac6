package redis

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

func TestListen(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), PoolSize: 1})
	if err := s.awaitSubscription(t.Context()); err != nil {
		t.Errorf("before anybody listens: %v", err)
	}
	e := listen(t, s)
	until(t, func() bool { return e.gapped() == 1 })
	wantCode(t, "check with the only connection of the pool", s.Check(t.Context()), fencing.CodeOK)

	r := acquireRequest("orders/42")
	say(t, server, s.subscription.channel, wireGateway(r.Name, wireItem("G", r, 77)))
	until(t, func() bool { return len(e.granted(r.Lease)) == 1 })
	if g := e.granted(r.Lease)[0]; g.Name != r.Name || g.Stamp != r.Stamp || g.Holder.Token != 77 || g.Holder.TTL != r.TTL {
		t.Errorf("told of %+v", g)
	}
	say(t, server, s.subscription.channel, wireGateway(r.Name, "X\x00"+string(r.Stamp)+"\x00"))
	until(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.Equal(e.replaced, []fencing.Stamp{r.Stamp})
	})
	say(t, server, s.subscription.channel, "rubbish, not a message")
	until(t, func() bool { return e.gapped() == 2 })
}

// However the connection is lost, messages are heard again soon, and what was
// missed is looked for.
func TestListenAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	client := server.Client()
	defer client.Close()
	s := open(t, Options{URL: proxy.URL(), DialTimeout: 20 * time.Second, ReadTimeout: 20 * time.Second}) // else a busy machine needs another connection
	s.guards.close()                                                                                      // who connects from here on is the subscription
	e := listen(t, s)
	until(t, func() bool { return e.gapped() == 1 })
	for _, loss := range []struct {
		how   string
		conns int // that it takes at most, for one gap
		lose  func() error
	}{
		{"closed", 1, func() error {
			if n := proxy.CutSubscribers(); n != 1 {
				return fmt.Errorf("%d subscribers, want 1", n)
			}
			return nil
		}},
		{"killed in Redis", 1, func() error {
			return client.Do(t.Context(), "client", "kill", "type", "pubsub").Err()
		}},
		{"silent", 1, func() error {
			if n := proxy.StallSubscribers(); n != 1 {
				return fmt.Errorf("%d subscribers, want 1", n)
			}
			return nil
		}},
		{"Redis restarted", 100, server.Restart},
		{"refused for a while", 100, func() error {
			proxy.Cut(true)
			until(t, func() bool { return s.awaitSubscription(t.Context()) != nil })
			proxy.Cut(false)
			return nil
		}},
	} {
		conns, gaps := proxy.Accepted(), e.gapped()
		if err := loss.lose(); err != nil {
			t.Fatalf("%s: %v", loss.how, err)
		}
		until(t, func() bool { return e.gapped() > gaps })
		if err := s.awaitSubscription(t.Context()); err != nil {
			t.Errorf("%s: %v", loss.how, err)
		}
		n := proxy.Accepted() - conns // a machine that stands still for long loses the next connection too, and tells of a gap
		if again := e.gapped() - gaps - 1; n > loss.conns+again {
			t.Errorf("%s: %d new connections, want at most %d, and %d gaps more", loss.how, n, loss.conns, again)
		}
		r := acquireRequest("orders/42")
		say(t, server, s.subscription.channel, wireGateway(r.Name, wireItem("G", r, 77)))
		until(t, func() bool { return len(e.granted(r.Lease)) == 1 })
	}
}

// A connection on which nothing is said for long, but that lives, stays.
func TestListenQuietly(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	s := open(t, Options{URL: server.URL()})
	e := listen(t, s)
	pings := func() int {
		return calls(client.Info(t.Context(), "commandstats").Val(), "ping")
	}
	first := pings()
	until(t, func() bool { return pings() >= first+5 }) // longer than maxSilence
	if n := e.gapped(); n != 1 {
		t.Errorf("%d gaps, want 1", n)
	}
}

// What does not fit into Redis's buffer for a subscriber that does not read is
// lost, and the subscriber is told.
func TestListenSlowly(t *testing.T) {
	server := redistest.Start(t, "--client-output-buffer-limit", "pubsub 1mb 0 0")
	client := server.Client()
	defer client.Close()
	s := open(t, Options{URL: server.URL()})
	e := &recorder{block: make(chan struct{})}
	s.Listen(e)
	until(t, func() bool { return s.awaitSubscription(t.Context()) == nil })
	r := acquireRequest("orders/42")
	message := wireGateway(r.Name, slices.Repeat([]string{wireItem("G", r, 77)}, 1000)...)
	until(t, func() bool { // until Redis gives up on it
		n, err := client.Publish(t.Context(), s.subscription.channel, message).Result()
		return err == nil && n == 0
	})
	e.mu.Lock()
	close(e.block)
	e.block = nil
	e.mu.Unlock()
	until(t, func() bool { return e.gapped() == 2 })
}

// A gateway that may not subscribe works all the same, and says so once.
func TestListenForbidden(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	ctx := t.Context()
	if err := client.Do(ctx, "acl", "setuser", "deaf", "on", ">sesame", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	log := &logged{}
	s := open(t, Options{URL: strings.Replace(server.URL(), "//", "//deaf:sesame@", 1), Logger: log.logger()})
	s.Listen(&recorder{})
	began := time.Now()
	if err := s.awaitSubscription(ctx); err == nil {
		t.Error("it listens to a channel that it may not hear")
	}
	if took := time.Since(began); took > maxJoinDelay+30*time.Second {
		t.Errorf("a request was held back for %s", took)
	}
	wantCode(t, "check", s.Check(ctx), fencing.CodeOK)
	attempts := func() int { return strings.Count(client.Do(ctx, "acl", "log").String(), "channel") }
	until(t, func() bool {
		return attempts() > 0 && s.awaitSubscription(ctx) != nil && log.count("can't be received") == 1
	})
	if err := client.Do(ctx, "acl", "setuser", "deaf", "allchannels").Err(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return s.awaitSubscription(ctx) == nil && log.count("received again") == 1 })
	if n := log.count("can't be received"); n != 1 {
		t.Errorf("logged %d times, want 1", n)
	}
}

func TestListenClose(t *testing.T) {
	server := redistest.Start(t)
	for _, state := range []string{"listening", "silent", "down", "idle", "at once"} {
		proxy := redistest.StartProxy(t, server.Addr())
		s := open(t, Options{URL: proxy.URL(), OperationTimeout: time.Second})
		e, y := &recorder{}, &eye{}
		if state != "idle" {
			s.Listen(e)
			s.Watch(y)
		}
		if state != "at once" && state != "idle" {
			until(t, func() bool { _, gaps := y.seen(); return gaps == 1 && e.gapped() == 1 })
		}
		switch state {
		case "silent":
			proxy.StallSubscribers()
		case "down":
			proxy.Cut(true)
			until(t, func() bool { return s.awaitSubscription(t.Context()) != nil })
		}
		var closing sync.WaitGroup
		for range 3 {
			closing.Go(func() {
				if err := s.Close(); err != nil {
					t.Errorf("%s: %v", state, err)
				}
			})
		}
		closing.Wait()
		proxy.Cut(false)
		gaps := e.gapped()
		s.Listen(e)
		stop := s.Watch(y)
		stop()
		stop()
		if err := s.awaitSubscription(t.Context()); err == nil {
			t.Errorf("%s: it listens after Close", state)
		}
		if n := e.gapped(); n != gaps {
			t.Errorf("%s: told after Close", state)
		}
	}
}

// A server that accepts connections and says nothing: a subscription, whose context has
// no end, is given up, so that the next master is looked for.
func TestSubscribingHasAnEnd(t *testing.T) {
	t.Parallel()
	quiet, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	for _, scheme := range []string{"redis", "rediss"} {
		s := open(t, Options{URL: scheme + "://" + quiet.Addr().String(), DialTimeout: 300 * time.Millisecond, ReadTimeout: 300 * time.Millisecond})
		client := goredis.NewClient(s.topology.clientOptions(quiet.Addr().String()))
		pubsub := client.Subscribe(t.Context())
		began := time.Now()
		stop := time.AfterFunc(20*time.Second, func() { quiet.Close() })
		err := pubsub.Subscribe(t.Context(), "a")
		stop.Stop()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: %v after %s", scheme, err, took)
		}
		pubsub.Close()
		client.Close()
		s.Close()
	}
}
