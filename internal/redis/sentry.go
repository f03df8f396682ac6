package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// lookInterval is how often the guards are looked at: what scripts and new
	// connections don't notice by themselves is noticed this late.
	lookInterval = time.Second

	// longestPeriod is how long this gateway remembers a TTL at least, and half of
	// how long it does at most.
	longestPeriod = 2 * fencing.LongestQuarantine
)

// sentry finds out whether a Redis has forgotten something, and has nothing new
// granted there until that is harmless. It keeps what the gateway remembers in case
// the store forgets that as well.
type sentry struct {
	born   [partitions]atomic.Int64 // of the guard; 0: never seen
	until  [partitions]atomic.Int64 // µs of the store's clock
	ttl    atomic.Int64             // ns, the longest in use
	ttlWas atomic.Int64             // the same of the period before
	losses atomic.Int64             // partitions that had lost something

	arriving  sync.Mutex            // those for which a command gave cause; may make a connection
	arrivedAt [partitions]time.Time // guarded by arriving

	mu      sync.Mutex
	greets  map[string]*sync.Mutex // arrivals on new connections to a server, one after the other
	servers map[string]time.Time   // whose partitions were looked at; when they were last seen to serve
	evicted map[string]int64
	rolled  time.Time
	shut    bool // a quarantine was logged, and its end was not

	alarm   chan alarm
	cancel  context.CancelFunc
	ctx     context.Context
	running sync.WaitGroup

	options *Options
}

// alarm says that a script has found something missing in a partition.
type alarm struct {
	partition int
	at        time.Time // or before
	unguarded bool      // there was no guard; else the store was behind
}

func (w *sentry) init(options *Options) {
	w.options = options
	w.greets, w.servers, w.evicted = map[string]*sync.Mutex{}, map[string]time.Time{}, map[string]int64{}
	w.alarm = make(chan alarm, partitions)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.rolled = time.Now()
}

func (w *sentry) close() {
	w.cancel()
	w.running.Wait()
}

// uses counts a TTL as in use.
func (w *sentry) uses(ttl time.Duration) {
	for {
		old := w.ttl.Load()
		if int64(ttl) <= old || w.ttl.CompareAndSwap(old, int64(ttl)) {
			return
		}
	}
}

// longest returns the longest TTL in use.
func (w *sentry) longest() time.Duration {
	return time.Duration(max(w.ttl.Load(), w.ttlWas.Load()))
}

// roll begins a new period of TTLs when it is time.
func (w *sentry) roll(now time.Time) {
	if now.Sub(w.rolled) >= longestPeriod {
		w.rolled = now
		w.ttlWas.Store(w.ttl.Swap(0))
	}
}

// manner returns how a partition is arrived at whose guard may be missing. A gateway
// that has never seen one takes the store for new, unless it was told how long to
// wait whenever something may be missing.
func (w *sentry) manner(partition int) byte {
	policy := &w.options.Quarantine
	switch {
	case w.options.Member:
		return arriveNever
	case w.born[partition].Load() == 0 && policy.For == 0:
		return arriveNew
	}
	return arriveCareful
}

// learn takes down the guard of a partition.
func (w *sentry) learn(partition int, g *guard) {
	w.born[partition].Store(int64(g.born))
	w.until[partition].Store(int64(g.Until))
	w.uses(g.Longest())
}

// knows reports whether a server's partitions have been looked at.
func (w *sentry) knows(server string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known := w.servers[server]
	return known
}

// greeting returns the lock for arrivals on new connections to a server.
func (w *sentry) greeting(server string) *sync.Mutex {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.greets[server] == nil {
		w.greets[server] = &sync.Mutex{}
	}
	return w.greets[server]
}

// settle notes that a server's partitions have been looked at.
func (w *sentry) settle(id *identity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[id.server()], w.evicted[id.run] = time.Now(), id.evicted
	if len(w.servers) > 64 { // runs of long ago
		for server, seen := range w.servers {
			if time.Since(seen) > time.Hour {
				delete(w.servers, server)
				delete(w.greets, server)
			}
		}
	}
}

// watchOver looks at the guards until the store is closed.
func (s *Store) watchOver() {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.sentry.ctx.Done():
			return
		case a := <-s.sentry.alarm:
			s.reArrive(s.sentry.ctx, a)
		case now := <-tick.C:
			s.sentry.roll(now)
			s.look(s.sentry.ctx)
			s.sentry.report(s)
		}
	}
}

// sight is what a look at one server has found.
type sight struct {
	node   *node
	id     identity
	guards map[int]*goredis.StringCmd // of the partitions it has
	blank  bool                       // there is no guard at all
}

// look compares the guards of all partitions with who serves them.
func (s *Store) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.options.OperationTimeout)
	defer cancel()
	var seen []*sight
	for _, n := range s.topology.nodes() {
		if v := s.lookAt(ctx, n); v != nil {
			seen = append(seen, v)
		}
	}
	for _, v := range seen {
		var arrivals []*command
		for p, cmd := range v.guards {
			if how := s.judge(v, seen, p, cmd); how != 0 {
				arrivals = append(arrivals, s.newArriveCommand(p, v.id.server(), how, 0))
			}
		}
		if len(arrivals) == 0 || s.arriveAt(ctx, v.node, arrivals) == nil { // or the next look tries again
			s.sentry.settle(&v.id)
		}
	}
}

// lookAt asks one server; nil if it can't be asked, or is no master.
func (s *Store) lookAt(ctx context.Context, n *node) *sight {
	v := &sight{node: n, guards: map[int]*goredis.StringCmd{}}
	pipe := n.client.Pipeline()
	info := pipe.Info(ctx, identityInfo...)
	for _, p := range s.topology.chart.Load().partitionsOf(n) {
		v.guards[p] = pipe.Get(ctx, s.keys[p].guard)
	}
	_, _ = pipe.Exec(ctx)
	var err error
	if v.id, err = identify(info.Val()); err != nil || !v.id.master {
		return nil
	}
	v.blank = true
	for _, cmd := range v.guards {
		v.blank = v.blank && cmd.Err() != nil
	}
	return v
}

// judge decides how a partition is to be arrived at; 0: all is as it should be.
func (s *Store) judge(v *sight, all []*sight, partition int, cmd *goredis.StringCmd) byte {
	w := &s.sentry
	text, err := cmd.Result()
	switch {
	case errors.Is(err, goredis.Nil):
		if how := w.manner(partition); how != arriveNever {
			return how
		} else if !v.blank {
			return arriveCareful
		}
		return 0 // the quorum decides
	case err != nil:
		return 0 // elsewhere, or out of reach
	}
	g, err := decodeGuard(text)
	if err != nil {
		s.damaged(s.keys[partition].guard, err)
		return 0
	}
	if born := w.born[partition].Load(); born != 0 && born != int64(g.born) || w.lostKeys(v) {
		return arriveLost // and, if it was lost, another gateway has noticed
	}
	w.learn(partition, &g)
	switch {
	case g.Server == v.id.server():
		return 0
	case v.id.same(g.Server), slices.ContainsFunc(all, func(o *sight) bool { return o != v && o.id.server() == g.Server }):
		return arriveLossless // the server is still there: the partition was moved
	}
	return arriveCareful
}

// lostKeys reports whether a server has evicted keys since it was last looked at.
func (w *sentry) lostKeys(v *sight) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.evicted[v.id.run]
	return known && v.id.evicted > before
}

// arriveAt runs arrivals on one server.
func (s *Store) arriveAt(ctx context.Context, n *node, arrivals []*command) error {
	arrivals[0].asSource = true
	s.sender.prepare(arrivals)
	pipe := n.client.Pipeline()
	for _, c := range arrivals {
		_ = pipe.Process(ctx, c.cmd)
	}
	_, _ = pipe.Exec(ctx)
	return s.allArrived(arrivals)
}

// reArrive deals with a partition in which a script has found that something is
// missing. It reports whether it could.
func (s *Store) reArrive(ctx context.Context, a alarm) bool {
	w, partition := &s.sentry, a.partition
	w.arriving.Lock()
	defer w.arriving.Unlock()
	if a.at.Before(w.arrivedAt[partition]) {
		return true // somebody has dealt with it since
	}
	n := s.topology.node(partition)
	if n.client == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.OperationTimeout)
	defer cancel()
	info, err := n.client.Info(ctx, identityInfo...).Result()
	if err != nil {
		return false
	}
	id, err := identify(info)
	if err != nil {
		return false
	}
	how := w.manner(partition)
	switch err := n.client.Get(ctx, s.keys[partition].guard).Err(); {
	case err == nil && a.unguarded:
		return true // somebody has dealt with it since
	case err == nil: // it is behind
		how = arriveLost
	case !errors.Is(err, goredis.Nil) || how == arriveNever:
		return false
	}
	if s.arriveAt(ctx, n, []*command{s.newArriveCommand(partition, id.server(), how, 0)}) != nil {
		return false
	}
	w.arrivedAt[partition] = time.Now()
	return true
}

// heeds deals with a refusal for something that was found to be missing, and
// reports whether the command is worth sending again.
func (s *Store) heeds(ctx context.Context, c *command, r *reply) bool {
	return r.code == fencing.CodeQuarantined && (r.unguarded || r.behind) &&
		s.reArrive(ctx, alarm{c.partition, c.sentAt, r.unguarded})
}

// notice has a partition looked at in which a step found that something is missing
// when it was to hand on.
func (w *sentry) notice(partition int, r *reply) {
	switch {
	case r.behind && w.options.Quarantine.Off: // the grant has taken the counter above the floor
		w.losses.Add(1)
	case r.behind, r.unguarded:
		select {
		case w.alarm <- alarm{partition, time.Now(), r.unguarded}:
		default: // enough is known to be wrong
		}
	}
}

// report logs the beginning and the end of quarantine.
func (w *sentry) report(s *Store) {
	now := fencing.InstantOf(w.options.Clock())
	var shut int
	var until fencing.Instant
	for p := range w.until {
		if till := fencing.Instant(w.until[p].Load()); till > now {
			shut++
			until = max(until, till)
		}
	}
	w.mu.Lock()
	was := w.shut
	w.shut = shut > 0
	w.mu.Unlock()
	switch {
	case shut > 0 && !was:
		w.options.Logger.Warn("Redis may have forgotten leases: nothing new is granted until they have run out; renewals go on",
			"for", until.Sub(now).Round(time.Millisecond).String(), "partitions", fmt.Sprintf("%d of %d", shut, partitions))
	case shut == 0 && was:
		w.options.Logger.Info("everything is granted again")
	}
}

// quarantine returns how long something is not granted at most.
func (w *sentry) quarantine(now fencing.Instant) time.Duration {
	var until fencing.Instant
	for p := range w.until {
		until = max(until, fencing.Instant(w.until[p].Load()))
	}
	return max(until.Sub(now), 0)
}

// Losses returns how often a partition was found to have lost something.
func (s *Store) Losses() int64 { return s.sentry.losses.Load() }
