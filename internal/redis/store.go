package redis

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options say where Redis is and how to talk to it. A zero field has its
// default.
type Options struct {
	URL     string        // redis://, rediss:// or unix://
	MaxSkew time.Duration // largest difference between the gateway's clock and Redis's; default 1 s

	DialTimeout      time.Duration // default 500 ms
	ReadTimeout      time.Duration // for one batch of answers; default 1 s
	WriteTimeout     time.Duration // default 1 s
	OperationTimeout time.Duration // for one operation with all its retries; default 2 s
	PoolSize         int           // connections; default 8, of which requests use few

	Clock  func() time.Time // the gateway's clock; default time.Now
	Logger *slog.Logger     // default: slog.Default

	// Uncoalesced sends every command on its own, as one EVALSHA a request: the
	// baseline that benchmarks compare with.
	Uncoalesced bool

	// Now is the store's clock, for tests that move the time. Default: nil,
	// which leaves it to Redis.
	Now func() fencing.Instant

	onePartition bool // all names share one, for tests that compare with one fencing.State
}

// Store keeps locks in one Redis. It is a fencing.Store.
type Store struct {
	options Options
	client  *goredis.Client
	keys    *[partitions]keyspace
	guard   any    // handle and MaxSkew in µs, as an argument of scripts
	handle  string // names this handle among the gateways of one Redis: its fencing.Gateway
	sender  *sender
	lanes   [lanes]*batcher

	listener *listener
	searches searches

	commands [scriptCount]sync.Pool // of *command, by script
	told     sync.Map               // keys of damaged records that were logged
}

var _ fencing.Store = (*Store)(nil)

// Open returns a store on the Redis of options.URL. A URL that can't be
// understood, and data there that has another layout, are errors. A Redis that
// can't be reached now is not: every operation then fails with CodeUnavailable
// until it can be.
func Open(ctx context.Context, options Options) (*Store, error) {
	parsed, err := parseURL(options.URL)
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
	if options.Clock == nil {
		options.Clock = time.Now
	}

	s := &Store{
		options: options,
		keys:    newKeyspaces(),
		handle:  string(fencing.NewStamp()),
	}
	s.guard = s.handle + strconv.FormatInt(options.MaxSkew.Microseconds(), 10)
	parsed.Protocol = 2 // no push messages: nothing here listens to any
	parsed.MaxRetries = -1
	parsed.ContextTimeoutEnabled = true
	parsed.DisableIdentity = true
	parsed.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	parsed.DialTimeout, parsed.DialerRetries = options.DialTimeout, 1
	parsed.ReadTimeout, parsed.WriteTimeout = options.ReadTimeout, options.WriteTimeout
	parsed.PoolSize = options.PoolSize
	parsed.PoolTimeout = options.ReadTimeout
	parsed.PipelinePoolSize = -1 // pipelines are the normal case: one pool for all
	parsed.ReadBufferSize, parsed.WriteBufferSize = 64<<10, 64<<10
	parsed.OnConnect = checkMeta
	s.client = goredis.NewClient(parsed)
	s.searches.until = map[fencing.Name]time.Time{}
	s.searches.ctx, s.searches.cancel = context.WithCancel(context.Background())
	s.sender = &sender{client: s.client, clock: options.Clock, now: options.Now}
	s.listener = newListener(s.client, options.Logger, options.Clock, gatewayChannel(fencing.Gateway(s.handle)))
	for i := range s.lanes {
		s.lanes[i] = &batcher{sender: s.sender, flights: 1, idle: make(chan struct{}), orphaned: s.orphaned}
		if options.Uncoalesced {
			s.lanes[i].flights = math.MaxInt // nothing ever queues
		}
	}

	ctx, cancel := context.WithTimeout(ctx, options.OperationTimeout)
	defer cancel()
	if err := s.client.Ping(ctx).Err(); err != nil {
		var meta *metaError
		if errors.As(err, &meta) {
			s.client.Close()
			return nil, meta
		}
		options.Logger.Warn("Redis can't be reached; every request is answered unavailable until it can be",
			"addr", parsed.Addr, "error", err)
	}
	return s, nil
}

// checkMeta runs on every new connection, so that a Redis that was emptied or
// exchanged is looked at again.
func checkMeta(ctx context.Context, conn *goredis.Conn) error {
	want := []struct{ field, value, words string }{
		{"format", format, "the layout"},
		{"partitions", strconv.Itoa(partitions), "the partition count"},
	}
	for attempt := 0; ; attempt++ {
		values, err := conn.HMGet(ctx, metaKey, want[0].field, want[1].field).Result()
		if err != nil {
			return err
		}
		missing := false
		for i, w := range want {
			got, ok := values[i].(string)
			switch {
			case !ok:
				missing = true
			case got != w.value:
				return &metaError{field: w.words, got: got, want: w.value}
			}
		}
		if !missing || attempt > 0 {
			return nil
		}
		for _, w := range want { // another gateway may do the same now: the first one counts
			if err := conn.HSetNX(ctx, metaKey, w.field, w.value).Err(); err != nil {
				return err
			}
		}
	}
}

// partitionOf returns the partition of a name.
func (s *Store) partitionOf(name fencing.Name) int {
	if s.options.onePartition {
		return 0
	}
	return partitionOf(name)
}

// Close stops listening, waits for the commands that are queued or under way,
// which takes no longer than the timeouts, and closes the connections.
func (s *Store) Close() error {
	s.listener.close()
	s.searches.close()
	for _, lane := range s.lanes {
		lane.close()
	}
	if err := s.client.Close(); err != nil && !errors.Is(err, goredis.ErrClosed) {
		return err
	}
	return nil
}

// PoolStats are counts of connections to Redis.
type PoolStats struct {
	Hits, Misses, Timeouts uint32 // since the start: taken from the pool, newly dialled, waited for in vain
	Stale                  uint32 // since the start: closed for age or error
	Total, Idle            uint32 // now
}

// PoolStats returns the state of the connection pool.
func (s *Store) PoolStats() PoolStats {
	p := s.client.PoolStats()
	return PoolStats{
		Hits: p.Hits, Misses: p.Misses, Timeouts: p.Timeouts, Stale: p.StaleConns,
		Total: p.TotalConns, Idle: p.IdleConns,
	}
}
