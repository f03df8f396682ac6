package quorum

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// clock is a time that the suite moves.
type clock struct{ now atomic.Int64 }

func (c *clock) instant() fencing.Instant { return fencing.Instant(c.now.Load()) }

func (c *clock) SetTime(now fencing.Instant) { c.now.Store(int64(now)) }

// backend is a quorum as the suite sees it. Both handles are one gateway.
type backend struct {
	*clock
	store patient
}

func (b *backend) Store(int) fencing.Store { return b.store }

// SetSkew is never called.
func (b *backend) SetSkew(int, time.Duration) {}

// openBackend opens a quorum on nodes, and waits until they are in service. A lease
// lasts as long as the nodes say, so that it can be compared with theirs.
func openBackend(t testing.TB, c *clock, nodes []fencing.Node) *backend {
	t.Helper()
	s, err := Open(nodes, Options{
		MaxSkew: fencingtest.MaxSkew, NodeTimeout: 10 * time.Second, Logger: quiet, exact: true,
		Clock: func() time.Time { return c.instant().Time() },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	<-s.enrolled
	return &backend{c, patient{s, new(atomic.Int64)}}
}

// patient is a store whose commands return when all nodes are done with them: the
// suite moves the time on then. Of commands that are under way together, none waits.
type patient struct {
	*Store
	commands *atomic.Int64 // under way
}

// begin begins a command; end waits for its last node.
func (p patient) begin() (end func()) {
	alone := p.commands.Add(1) == 1
	return func() {
		for alone && p.busy.Load() > 0 && p.commands.Load() == 1 {
			<-time.After(20 * time.Microsecond) // the nodes need the machine themselves
		}
		p.commands.Add(-1)
	}
}

func (p patient) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	defer p.begin()()
	return p.Store.Do(ctx, op)
}

func (p patient) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	defer p.begin()()
	return p.Store.Expire(ctx, limit)
}

func (p patient) Heartbeat(ctx context.Context, names []fencing.Name) error {
	defer p.begin()()
	return p.Store.Heartbeat(ctx, names)
}

// unproposed is a node that makes nothing of a proposal, so that every token takes a
// claim.
type unproposed struct{ fencing.Node }

func (n unproposed) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	if r, acquires := op.(fencing.AcquireRequest); acquires {
		r.Propose = 0
		op = r
	}
	return n.Node.Do(ctx, op)
}

func TestConformance(t *testing.T) { conforms(t, 3) }

// TestSystemConformance plays all of the cases.
func TestSystemConformance(t *testing.T) { conforms(t, 0) }

// conforms plays one case in so many.
func conforms(t *testing.T, sample int) {
	for name, wrap := range map[string]func(fencing.Node) fencing.Node{
		"proposed": func(n fencing.Node) fencing.Node { return n },
		"claimed":  func(n fencing.Node) fencing.Node { return unproposed{n} },
	} {
		t.Run(name, func(t *testing.T) {
			fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
				c := &clock{}
				c.SetTime(fencingtest.Epoch)
				var nodes []fencing.Node
				for range 3 {
					nodes = append(nodes, wrap(fencingtest.NewModel(c.instant)))
				}
				return openBackend(t, c, nodes)
			}, fencingtest.Capabilities{Quorum: true, Sample: sample})
		})
	}
}

// FENCEPOST_LONG has a quorum of five beside those of three.
func TestConformanceOnRedis(t *testing.T) { conformsOnRedis(t, 24) }

func TestSystemConformanceOnRedis(t *testing.T) { conformsOnRedis(t, 8) }

func conformsOnRedis(t *testing.T, sample int) {
	quorums := map[string]struct{ of, maxHolders int }{"of 3": {3, 0}, "few holders": {3, 2}}
	if os.Getenv("FENCEPOST_LONG") != "" {
		quorums["of 5"] = struct{ of, maxHolders int }{5, 0}
	}
	for name, quorum := range quorums {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var servers []*redistest.Server
			for range quorum.of {
				servers = append(servers, redistest.Start(t))
			}
			fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
				c := &clock{}
				c.SetTime(fencingtest.Epoch)
				var nodes []fencing.Node
				for _, server := range servers {
					nodes = append(nodes, openNode(t, c, server, quorum.maxHolders))
				}
				return openBackend(t, c, nodes)
			}, fencingtest.Capabilities{Quorum: true, MaxHolders: quorum.maxHolders, Sample: sample})
		})
	}
}

// openNode opens a node that has forgotten everything.
func openNode(t testing.TB, c *clock, server *redistest.Server, maxHolders int) fencing.Node {
	t.Helper()
	client := server.Client()
	defer client.Close()
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return nodeAt(t, c, server, maxHolders)
}

// nodeAt opens a node as it is.
func nodeAt(t testing.TB, c *clock, server *redistest.Server, maxHolders int) fencing.Node {
	t.Helper()
	node, err := redis.Open(t.Context(), redis.Options{
		URL: server.SocketURL(), Member: true, Logger: quiet, MaxSkew: fencingtest.MaxSkew, MaxHolders: maxHolders,
		Now: c.instant, Clock: func() time.Time { return c.instant().Time() },
	})
	if err != nil {
		t.Fatal(err)
	}
	return hearing{node}
}

// hearing is a node whose events are heard from the moment on in which Watch returns.
type hearing struct{ fencing.Node }

func (h hearing) Watch(sink fencing.EventSink) (stop func()) {
	heard := make(chan struct{})
	stop = h.Node.Watch(&starting{EventSink: sink, begin: sync.OnceFunc(func() { close(heard) })})
	<-heard
	return stop
}

// starting is a sink that notes when events are heard.
type starting struct {
	fencing.EventSink
	begin func()
}

func (s *starting) Gap() {
	s.begin()
	s.EventSink.Gap()
}
