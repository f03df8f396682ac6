package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
)

// Options say where Redis is and how to talk to it. A zero field has its
// default.
type Options struct {
	URL     string        // as CheckURL allows, but not of a quorum
	MaxSkew time.Duration // largest difference between the gateway's clock and Redis's; default 1 s

	Username, Password                 string // of Redis, where the URL has none
	SentinelUsername, SentinelPassword string // of the Sentinels, which have their own

	// TLS returns what a connection to a Redis or Sentinel with TLS is made with, beside
	// the name of the server. It is asked for each, and what it returns is not kept. nil:
	// the authorities of the system, and no certificate.
	TLS func() *tls.Config

	DialTimeout      time.Duration // for one connection, and for one answer about the topology; default 500 ms
	ReadTimeout      time.Duration // for one batch of answers; default 1 s
	WriteTimeout     time.Duration // default 1 s
	OperationTimeout time.Duration // for one operation with all its retries; default 2 s
	PoolSize         int           // connections; default 8, of which requests use few

	// ReplicaAcks is how many replicas have to confirm a grant before it is answered;
	// 0 is none. With too few within 500 ms it fails with CodeNotReplicated, and is to
	// be taken back.
	ReplicaAcks int

	Quarantine QuarantinePolicy

	// Passive is for who only looks: nothing is noted of the gateway, which grants
	// nothing.
	Passive bool

	// Member is for a node of a quorum: what remembers nothing grants nothing until
	// Enroll.
	Member bool

	MaxHolders int // of one name, up to 999,999: see fencing.Guard; 0 is any number

	Clock  func() time.Time // the gateway's clock; default time.Now
	Logger *slog.Logger     // default: slog.Default

	// Uncoalesced sends every command on its own, as one FCALL a request: the
	// baseline that benchmarks compare with.
	Uncoalesced bool

	// Now is the store's clock, for tests that move the time. Default: nil,
	// which leaves it to Redis.
	Now func() fencing.Instant

	// stepLimit is for tests: how much one step does of what has come due. With it, only
	// Expire and Heartbeat go on with the rest. 0 is fencing.StepLimit.
	stepLimit int
}

// Store keeps locks in one Redis. It is a fencing.Store.
type Store struct {
	options Options
	keys    []keyspace

	partitions int
	handle     string // names this handle among the gateways of one Redis: its fencing.Gateway
	sender     *sender

	topology     *topology
	subscription *subscription
	handOffs     handOffs
	guards       guardWatch

	commands     sync.Pool // of *command
	damageLogged sync.Map  // keys of damaged records that were logged
	cursors      sync.Map  // partition -> *cursor that the last heartbeat has not finished

	heartbeatBudget time.Duration // see there; tests shorten it
}

var _ fencing.Store = (*Store)(nil)

// Open returns a store on the Redis of options.URL. A URL that can't be
// understood, and data there that has another layout, are errors. A Redis that
// can't be reached now is not: every operation then fails with CodeUnavailable
// until it can be.
func Open(ctx context.Context, options Options) (*Store, error) {
	where, err := parseURL(options.URL)
	if err != nil {
		return nil, err
	}
	options.MaxSkew = cmp.Or(options.MaxSkew, time.Second)
	options.DialTimeout = cmp.Or(options.DialTimeout, 500*time.Millisecond)
	options.ReadTimeout = cmp.Or(options.ReadTimeout, time.Second)
	options.WriteTimeout = cmp.Or(options.WriteTimeout, time.Second)
	options.OperationTimeout = cmp.Or(options.OperationTimeout, 2*time.Second)
	options.PoolSize = cmp.Or(options.PoolSize, 8)
	options.Logger = cmp.Or(options.Logger, slog.Default())
	options.Quarantine.Least = cmp.Or(options.Quarantine.Least, defaultLeast)
	if options.Clock == nil {
		options.Clock = time.Now
	}

	s := &Store{
		options: options,
		keys:    newKeyspaces(where.partitions()),
		handle:  string(fencing.NewStamp()),

		partitions: where.partitions(), heartbeatBudget: heartbeatBudget,
	}
	s.guards.init(&s.options, s.partitions)
	s.handOffs.active = map[fencing.Name]*handOff{}
	s.handOffs.ctx, s.handOffs.cancel = context.WithCancel(context.Background())
	s.sender = &sender{clock: options.Clock, now: options.Now, member: options.Member, acks: options.ReplicaAcks, keys: s.keys,
		floors: make([]atomic.Int64, s.partitions), most: callOperations,
		header: header{
			gateway: s.handle, heedsLoss: !options.Quarantine.Off, stepLimit: cmp.Or(options.stepLimit, fencing.StepLimit),
			maxHolders: options.MaxHolders, maxSkew: options.MaxSkew, maxHistories: maxHistories / s.partitions, cluster: where.kind == kindCluster,
		},
	}
	if options.stepLimit != 0 {
		s.sender.most = 1 // the limit is then of one operation
	}

	ctx, cancel := context.WithTimeout(ctx, options.OperationTimeout)
	defer cancel()
	s.topology = newTopology(ctx, where, s)
	s.subscription = newSubscription(s.topology, options.Logger, options.Clock, gatewayChannel(fencing.Gateway(s.handle)))
	if err := s.reach(ctx); err != nil {
		var meta *metaError
		if errors.As(err, &meta) {
			_ = s.Close()
			return nil, meta
		}
		options.Logger.Warn("Redis can't be used; every request is answered 503 until it can", "error", s.topology.diagnose(err))
	}
	if !options.Passive {
		s.guards.running.Go(s.watchGuards)
	}
	return s, nil
}

// partitionOf returns the partition of a name.
func (s *Store) partitionOf(name fencing.Name) int { return partitionOf(name, s.partitions) }

// Close stops listening, waits for the commands that are queued or under way,
// which takes no longer than the timeouts, and closes the connections.
func (s *Store) Close() error {
	s.subscription.close()
	s.handOffs.close()
	s.guards.close()
	return s.topology.close()
}

// reach connects to every master.
func (s *Store) reach(ctx context.Context) error {
	nodes := s.topology.nodes()
	if len(nodes) == 0 {
		return errNoMaster
	}
	return inParallel(len(nodes), func(i int) error { return nodes[i].at(nodes[i].client.Ping(ctx).Err()) })
}

// PoolStats are counts of connections to Redis.
type PoolStats struct {
	Hits, Misses, Timeouts uint32 // since the start: taken from the pool, newly dialled, waited for in vain
	Stale                  uint32 // since the start: closed for age or error
	Total, Idle            uint32 // now
}

// PoolStats returns the state of the connections to all masters together.
func (s *Store) PoolStats() PoolStats {
	var sum PoolStats
	for _, n := range s.topology.nodes() {
		p := n.client.PoolStats()
		sum.Hits += p.Hits
		sum.Misses += p.Misses
		sum.Timeouts += p.Timeouts
		sum.Stale += p.StaleConns
		sum.Total += p.TotalConns
		sum.Idle += p.IdleConns
	}
	return sum
}
