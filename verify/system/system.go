// Package system runs Fencepost as it is used: the real program, one or several
// gateways on a real store, every part a process of its own that can be killed,
// stopped, cut off and started again. Nothing in it is simulated. What it starts
// listens on free ports of loopback, and has ended when Close returns.
package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
	"fencepost/internal/sql/sqltest"
)

// Kind is a kind of store.
type Kind string

// The kinds of stores: a file; one Redis; a master with two replicas and three
// Sentinels; a Cluster of three masters with a replica each; a quorum of three; gateways that
// are a cluster of their own; one PostgreSQL; one MariaDB.
const (
	Embedded Kind = "embedded"
	Redis    Kind = "redis"
	Sentinel Kind = "sentinel"
	Cluster  Kind = "cluster"
	Quorum   Kind = "quorum"
	Raft     Kind = "raft"
	Postgres Kind = "postgres"
	MariaDB  Kind = "mariadb"
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{Embedded, Redis, Sentinel, Cluster, Quorum, Raft, Postgres, MariaDB}
}

// Options say what is started. The zero value is one gateway on one Redis.
type Options struct {
	Store    Kind     // default: Redis
	Gateways int      // default: 1, of Raft 3; Embedded has no more
	Build    Build    // of the gateways
	Env      []string // settings of the gateways, like "FENCEPOST_DEFAULT_TTL=1s"
	Redis    []string // arguments of every redis-server; nothing is persisted by default
	Clocks   bool     // the servers of Redis and Quorum have wall clocks of their own, which the faults of clocks need
}

// System is what was started.
type System struct {
	Kind     Kind
	Gateways []*Gateway

	// Servers are the Redis that have data, in no order that means anything.
	Servers []*redistest.Server

	// Sentinel and Cluster are set if the store is one.
	Sentinel *redistest.Sentinel
	Cluster  *redistest.Cluster

	// Database is set if the store is in one, at DatabaseURL.
	Database    *sqltest.Server
	DatabaseURL string

	// Links are the ways between the gateways of Raft.
	Links *Links

	options Options
	dir     string
	url     string // of the store, where gateways have no proxies
	stops   []func() error
}

// Start starts a store and its gateways, and waits until all are ready.
func Start(o Options) (s *System, err error) {
	if o.Store == "" {
		o.Store = Redis
	}
	if o.Store == Raft && o.Gateways == 0 {
		o.Gateways = 3
	}
	o.Gateways = max(o.Gateways, 1)
	if o.Store == Embedded && o.Gateways > 1 {
		return nil, errors.New("an embedded store has one gateway")
	}
	s = &System{Kind: o.Store, options: o}
	if s.dir, err = os.MkdirTemp("", "fencepost-system"); err != nil {
		return nil, err
	}
	s.stops = append(s.stops, func() error { return os.RemoveAll(s.dir) })
	if err := s.startStore(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for len(s.Gateways) < o.Gateways {
		if _, err := s.AddGateway(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// StartTest is Start for a test, with which what it started ends. A flaw in a
// gateway's log (see Gateway.Flaws) fails the test.
func StartTest(t testing.TB, o Options) *System {
	t.Helper()
	s, err := Start(o)
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

// launch starts servers by redistest.
func (s *System) launch(start func(t testing.TB)) error {
	stop, err := redistest.Launch(start)
	s.stops = append(s.stops, stop)
	return err
}

func (s *System) startStore() error {
	args, start := s.options.Redis, redistest.Start
	if s.options.Clocks {
		start = redistest.StartWithClock
	}
	switch s.Kind {
	case Embedded:
		s.url = "embedded"
		return nil
	case Raft:
		return s.startCluster()
	case Postgres, MariaDB:
		return s.startDatabase()
	case Redis:
		return s.launch(func(t testing.TB) { s.Servers = []*redistest.Server{start(t, args...)} })
	case Quorum:
		return s.launch(func(t testing.TB) {
			for range 3 {
				s.Servers = append(s.Servers, start(t, args...))
			}
		})
	case Sentinel:
		return s.launch(func(t testing.TB) {
			s.Sentinel = redistest.StartSentinel(t, 2, 3, args...)
			s.url, s.Servers = s.Sentinel.URL(), s.Sentinel.Servers()
		})
	case Cluster:
		return s.launch(func(t testing.TB) {
			s.Cluster = redistest.StartCluster(t, 3, 3, args...)
			s.url, s.Servers = s.Cluster.URL(), s.Cluster.Members()
		})
	}
	return fmt.Errorf("there is no kind of store %q; there are %v", s.Kind, Kinds())
}

// AddGateway starts one more gateway, with further settings; not of Raft: see NewNode.
func (s *System) AddGateway(env ...string) (*Gateway, error) {
	g := &Gateway{Name: fmt.Sprint("gateway ", len(s.Gateways)+1), build: s.options.Build}
	url := s.url
	if url == "" {
		if err := s.launch(func(t testing.TB) {
			for _, server := range s.Servers {
				g.Proxies = append(g.Proxies, redistest.StartProxy(t, server.Addr()))
			}
		}); err != nil {
			return nil, err
		}
		if url = g.Proxies[0].URL(); s.Kind == Quorum {
			url = redistest.ProxiedQuorumURL(g.Proxies)
		}
	}
	if s.Database != nil {
		var err error
		if g.Cable, url, err = layCable(url); err != nil {
			return nil, err
		}
		s.stops = append(s.stops, g.Cable.close)
	}
	g.env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "FENCEPOST_STORE=" + url, "FENCEPOST_DATA_DIR=" + s.DataDir()}, s.options.Env...)
	g.env = append(g.env, env...)
	s.stops = append(s.stops, func() error { return errors.Join(g.Kill(), g.Flaws()) })
	if err := g.Start(); err != nil {
		return nil, err
	}
	s.Gateways = append(s.Gateways, g)
	return g, nil
}

// Front puts a proxy between clients and a gateway.
func (s *System) Front(g *Gateway) (p *redistest.Proxy, err error) {
	err = s.launch(func(t testing.TB) { p = redistest.StartProxy(t, g.Addr()) })
	return p, err
}

// DataDir returns the directory of an embedded store.
func (s *System) DataDir() string { return filepath.Join(s.dir, "data") }

// AwaitReady waits until all gateways are ready.
func (s *System) AwaitReady(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for _, g := range s.Gateways {
		if err := g.AwaitReady(time.Until(deadline)); err != nil {
			return err
		}
	}
	return nil
}

// Close ends all processes and removes all files. It returns an error if something
// does not end, and what a gateway's log has of panics and data races. It may be
// called twice.
func (s *System) Close() (err error) {
	for len(s.stops) > 0 {
		last := len(s.stops) - 1
		err = errors.Join(err, s.stops[last]())
		s.stops = s.stops[:last]
	}
	return err
}
