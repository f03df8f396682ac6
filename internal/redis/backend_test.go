package redis

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// epoch and maxSkew are what the clocks of a backend start at and may differ by.
const (
	epoch   fencing.Instant = 1_767_225_600_000_000
	maxSkew                 = time.Second
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// backend is an empty Redis with two handles and a clock that the test moves: its own, where it was
// started with one, otherwise what it is told of in place of it.
type backend struct {
	now    atomic.Int64
	clock  *redistest.Clock // nil: it is told
	skew   [2]atomic.Int64
	stores [2]*Store
	flush  func()

	clients []*goredis.Client // of the masters

	t       testing.TB
	options [2]Options // of the stores
}

// Flush makes Redis forget everything; the handles keep what they remember.
func (b *backend) Flush() { b.flush() }

func (b *backend) Store(handle int) fencing.Store { return hearing{b.stores[handle], b.t} }

// hearing is a store whose Watch and Listen return when it hears: what was said before is
// covered by a Gap, which no comparison of events or messages can know of.
type hearing struct {
	*Store
	t testing.TB
}

func (h hearing) Listen(listener fencing.Listener) {
	h.Store.Listen(listener)
	until(h.t, h.subscription.active)
}

func (h hearing) Watch(sink fencing.EventSink) (stop func()) {
	heard := make(chan struct{})
	stop = h.Store.Watch(&starting{EventSink: sink, begin: sync.OnceFunc(func() { close(heard) })})
	<-heard
	return stop
}

// Heartbeat also beats without names where all share one partition: the suite
// then knows of no others.
func (h hearing) Heartbeat(ctx context.Context, names []fencing.Name) error {
	if len(names) == 0 && h.partitions == 1 {
		names = []fencing.Name{"any"}
	}
	return h.Store.Heartbeat(ctx, names)
}

type starting struct {
	fencing.EventSink
	begin func()
}

func (s *starting) Gap() {
	s.begin()
	s.EventSink.Gap()
}

func (b *backend) SetTime(now fencing.Instant) {
	b.now.Store(int64(now))
	if b.clock == nil {
		return
	}
	if err := b.clock.Stop(now.Time()); err != nil {
		b.t.Fatal(err)
	}
	if err := b.clients[0].Scan(context.Background(), 0, "", 1_000_000).Err(); err != nil { // what has expired is gone at once
		b.t.Fatal(err)
	}
}

func (b *backend) SetSkew(handle int, skew time.Duration) { b.skew[handle].Store(int64(skew)) }

func openBackend(t testing.TB, server *redistest.Server) *backend {
	t.Helper()
	return openOn(t, Options{URL: server.SocketURL()}, server)
}

// openOn opens a backend on several masters.
func openOn(t testing.TB, options Options, masters ...*redistest.Server) *backend {
	t.Helper()
	b := &backend{t: t, clock: masters[0].Clock()}
	for _, master := range masters {
		client := master.Client()
		t.Cleanup(func() { client.Close() })
		b.clients = append(b.clients, client)
	}
	b.flush = func() {
		for _, client := range b.clients {
			if err := client.FlushAll(context.Background()).Err(); err != nil {
				t.Error(err)
			}
		}
	}
	b.Flush()
	if len(b.clients) > 1 {
		drainBus(t, b.clients)
	}
	b.SetTime(epoch)
	for i := range b.stores {
		o := options
		o.MaxSkew, o.Quarantine = maxSkew, QuarantinePolicy{Off: true}
		o.OperationTimeout, o.ReadTimeout, o.WriteTimeout = 20*time.Second, 5*time.Second, 5*time.Second // no case is about them
		if b.clock == nil {
			o.Now = func() fencing.Instant { return fencing.Instant(b.now.Load()) }
		}
		o.Clock = func() time.Time {
			return fencing.Instant(b.now.Load()).Time().Add(time.Duration(b.skew[i].Load()))
		}
		b.stores[i], b.options[i] = open(t, o), o
	}
	return b
}

// drainBus returns when every node of a Cluster has been told what was published
// on any of them before: it is told to those who subscribe meanwhile.
func drainBus(t testing.TB, clients []*goredis.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var heard []*goredis.PubSub
	for _, client := range clients {
		draining := client.Subscribe(ctx, "drain")
		defer draining.Close()
		if _, err := draining.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		heard = append(heard, draining)
	}
	for _, client := range clients {
		if err := client.Publish(ctx, "drain", "").Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, draining := range heard {
		for range clients {
			if _, err := draining.ReceiveMessage(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func open(t testing.TB, options Options) *Store {
	t.Helper()
	if options.Logger == nil {
		options.Logger = quiet
	}
	s, err := Open(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// redis returns the client of the only node of a store.
func (s *Store) redis() *goredis.Client { return s.topology.nodes()[0].client }

// acquireRequest asks for a lease of 30 s with a new id.
func acquireRequest(name fencing.Name) fencing.AcquireRequest {
	return fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Owner: "worker-7",
		Mode: fencing.ModeExclusive, Hold: 1, TTL: 30 * time.Second,
	}
}
