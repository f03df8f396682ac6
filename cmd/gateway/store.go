package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"fencepost/internal/embedded"
	"fencepost/internal/fencing"
	"fencepost/internal/observe"
	"fencepost/internal/quorum"
	"fencepost/internal/raft/cluster"
	"fencepost/internal/redis"
	"fencepost/internal/sql"
	"fencepost/internal/watchdog"
)

// examineTimeout bounds an examination that somebody waits for.
const examineTimeout = 5 * time.Second

// openedStore is the store of the settings.
type openedStore struct {
	fencing.Store
	failed <-chan struct{} // closed when it can't go on; nil for one that recovers by itself
	cause  func() error    // why it can't
	alive  func() error    // see lockhttp.Options.Alive; nil for one that has no lock of its own
	panics func() int64    // counts the operations that could not be carried out, for they panicked; nil for one that ends then, or can't know
	nodes  []*redis.Store  // none if it is not on Redis

	cluster  *cluster.Cluster // nil if this gateway is no node of one
	database *sql.Store       // nil if it is in none
}

// end closes the store, and returns what is wrong with the end: err, which it came to, and what the store
// has to say. A store may have failed when nobody looked any more, for the last requests or in Close.
func (s *openedStore) end(err error) error {
	err = errors.Join(err, s.Close())
	select {
	case <-s.failed:
		if err == nil {
			return s.cause()
		}
	default:
	}
	return err
}

// pool sums up the pools of connections to all nodes.
func (s *openedStore) pool() (sum observe.Pool) {
	for _, node := range s.nodes {
		p := node.PoolStats()
		sum.Hits += p.Hits
		sum.Misses += p.Misses
		sum.Timeouts += p.Timeouts
		sum.Stale += p.Stale
		sum.Total += p.Total
		sum.Idle += p.Idle
	}
	return sum
}

// losses counts how often the database, or any of the nodes, was found to have forgotten something.
func (s *openedStore) losses() (n int64) {
	if s.database != nil {
		return s.database.Losses()
	}
	for _, node := range s.nodes {
		n += node.Losses()
	}
	return n
}

// openStore opens the store of the settings. A passive one is only to be looked at.
func openStore(ctx context.Context, cfg config, secured security, log *slog.Logger, passive bool) (*openedStore, error) {
	switch cfg.storeKind() {
	case kindEmbedded:
		s, err := embedded.Open(embedded.Options{Dir: cfg.DataDir, Logger: log, Version: build(), MaxHolders: cfg.MaxHoldersPerName, Expect: cfg.ExpectStore})
		if err != nil {
			return nil, fmt.Errorf("FENCEPOST_DATA_DIR: %w", err)
		}
		return &openedStore{Store: s, failed: s.Failed(), alive: s.Alive, cause: func() error {
			return fmt.Errorf("the embedded store has stopped: %w", s.Cause())
		}}, nil
	case kindRaft:
		return openCluster(ctx, cfg, secured.nodes, log, secured.audit)
	case kindQuorum:
		return openQuorum(ctx, cfg, secured.redis, log, passive)
	case kindPostgres, kindMySQL:
		s, err := sql.Open(ctx, sqlOptions(cfg, log))
		if err != nil {
			return nil, fmt.Errorf("FENCEPOST_STORE: %w", err)
		}
		return &openedStore{Store: s, database: s, failed: s.Failed(), cause: s.Cause, panics: s.Panics}, nil
	}
	s, err := redis.Open(ctx, redisOptions(cfg, secured.redis, log, passive))
	if err != nil {
		return nil, fmt.Errorf("FENCEPOST_STORE: %w", err)
	}
	return &openedStore{Store: s, nodes: []*redis.Store{s}}, nil
}

// openQuorum opens every node of a quorum, all at once, and composes them.
func openQuorum(ctx context.Context, cfg config, secured func() *tls.Config, log *slog.Logger, passive bool) (*openedStore, error) {
	urls, err := redis.SplitQuorum(cfg.Store)
	if err != nil {
		return nil, fmt.Errorf("FENCEPOST_STORE: %w", err)
	}
	opened := &openedStore{nodes: make([]*redis.Store, len(urls))}
	names, errs := make([]string, len(urls)), make([]error, len(urls))
	var opening sync.WaitGroup
	for i, url := range urls {
		names[i] = address(url)
		o := redisOptions(cfg, secured, log.With("node", names[i]), passive)
		o.URL, o.Member = url, true
		opening.Go(func() { opened.nodes[i], errs[i] = redis.Open(ctx, o) })
	}
	opening.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("FENCEPOST_STORE: %w", errors.Join(err, opened.closeNodes()))
	}
	nodes := make([]fencing.Node, len(urls))
	for i, node := range opened.nodes {
		nodes[i] = node
	}
	options := quorum.Options{MaxSkew: cfg.MaxClockSkew, LongestTTL: cfg.DefaultTTL, Names: names, Logger: log, Passive: passive}
	if passive {
		options.NodeTimeout = examineTimeout
	}
	opened.Store, err = quorum.Open(nodes, options)
	if err != nil {
		return nil, errors.Join(err, opened.closeNodes())
	}
	return opened, nil
}

// closeNodes closes the nodes that were opened, of a quorum that was not.
func (o *openedStore) closeNodes() (err error) {
	for _, node := range o.nodes {
		if node != nil {
			err = errors.Join(err, node.Close())
		}
	}
	return err
}

// redisOptions are those of every Redis of the settings.
func redisOptions(cfg config, secured func() *tls.Config, log *slog.Logger, passive bool) redis.Options {
	quarantine, _ := cfg.quarantine() // validated before
	options := redis.Options{
		URL: cfg.Store, TLS: secured, MaxSkew: cfg.MaxClockSkew, Logger: log,
		Username: cfg.RedisUsername, Password: cfg.RedisPassword,
		SentinelUsername: cfg.SentinelUsername, SentinelPassword: cfg.SentinelPassword,
		ReplicaAcks: cfg.RedisReplicaAcks, Quarantine: quarantine, Passive: passive,
		MaxHolders: cfg.MaxHoldersPerName,
	}
	if passive { // what answers slowly is told from what does not answer
		options.DialTimeout, options.OperationTimeout = examineTimeout/3, examineTimeout
	}
	return options
}

// sqlOptions are those of the database of the settings.
func sqlOptions(cfg config, log *slog.Logger) sql.Options {
	quarantine, _ := cfg.quarantine() // validated before
	return sql.Options{
		URL: cfg.Store, Version: build(), MaxSkew: cfg.MaxClockSkew, MaxHolders: cfg.MaxHoldersPerName, Logger: log,
		Quarantine: sql.Quarantine{Off: quarantine.Off, For: quarantine.For, Least: quarantine.Least},
	}
}

// lateBy returns how far from the store's clock a command may be: nothing is late
// for a store in this process.
func lateBy(cfg config) time.Duration {
	if cfg.storeKind() == kindEmbedded {
		return 0
	}
	return cfg.MaxClockSkew
}

// examineEvery returns how often the store is examined: the members of a cluster often, for what is
// said of them changes, and they are few. 0 is the default.
func examineEvery(cfg config) time.Duration {
	if cfg.storeKind() == kindRaft {
		return 2 * time.Second
	}
	return 0
}

// demand refuses a store that endangers a promise. One that can't be examined now
// is let pass: nothing is granted there until the watchdog has examined it.
func demand(ctx context.Context, dog *watchdog.Watchdog) error {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	findings, err := dog.Examine(ctx)
	dangers := watchdog.Endangering(findings)
	if err != nil || len(dangers) == 0 {
		return nil
	}
	var list strings.Builder
	for _, f := range dangers {
		fmt.Fprintf(&list, "\n  %s endangers %s: %s\n    change: %s", subject(f), f.Promise, f.Detail, f.Remedy)
	}
	return errors.New("FENCEPOST_STRICT refuses a store that endangers a promise:" + list.String())
}

// subject names what a finding is about.
func subject(f fencing.Finding) string {
	if f.Node == "" {
		return f.Check
	}
	return f.Check + " of " + f.Node
}
