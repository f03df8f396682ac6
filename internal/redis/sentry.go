package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// lookInterval is how often the guards are looked at: what operations and new
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
	born   []atomic.Int64           // of the guard, by partition; 0: never seen
	until  []atomic.Int64           // µs of the store's clock
	served []atomic.Pointer[string] // by whom, when it was last looked at
	ttl    atomic.Int64             // ns, the longest in use
	ttlWas atomic.Int64             // the same of the period before
	losses atomic.Int64             // partitions that had lost something

	arriving  chan struct{} // room for one: who arrives because a command gave cause
	arrivedAt []time.Time   // by partition; guarded by arriving

	mu      sync.Mutex
	greets  map[string]*sync.Mutex // arrivals on new connections to a server, one after the other
	servers map[string]time.Time   // whose partitions were looked at; when they were last seen to serve
	addrs   map[string]string      // of servers
	evicted map[string]int64
	rolled  time.Time
	shut    bool  // a quarantine was logged, and its end was not
	told    int64 // of losses, that were logged

	alarm   chan alarm
	cancel  context.CancelFunc
	ctx     context.Context
	running sync.WaitGroup

	options *Options
}

// alarm says that an operation has found something missing in a partition.
type alarm struct {
	partition int
	at        time.Time // or before
	unguarded bool      // there was no guard; else the store was behind
}

func (w *sentry) init(options *Options, partitions int) {
	w.options = options
	w.born, w.until, w.served = make([]atomic.Int64, partitions), make([]atomic.Int64, partitions), make([]atomic.Pointer[string], partitions)
	w.arrivedAt = make([]time.Time, partitions)
	w.greets, w.servers, w.addrs, w.evicted = map[string]*sync.Mutex{}, map[string]time.Time{}, map[string]string{}, map[string]int64{}
	w.alarm, w.arriving = make(chan alarm, partitions), make(chan struct{}, 1)
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
func (w *sentry) manner(partition int) string {
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
	w.served[partition].Store(&g.Server)
	w.until[partition].Store(int64(g.Until))
	w.uses(g.Longest(fencing.InstantOf(w.options.Clock())))
}

// servedElsewhere reports whether another server had a partition when it was last
// looked at.
func (w *sentry) servedElsewhere(partition int, server string) bool {
	last := w.served[partition].Load()
	return last != nil && *last != "" && *last != server
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
func (w *sentry) settle(id *identity, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[id.server()], w.addrs[id.server()], w.evicted[id.run] = time.Now(), addr, id.evicted
	if len(w.servers) > 64 { // runs of long ago
		for server, seen := range w.servers {
			if time.Since(seen) > time.Hour {
				delete(w.servers, server)
				delete(w.greets, server)
				delete(w.addrs, server)
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
	nodes := s.topology.nodes()
	sights := make([]*sight, len(nodes))
	_ = inParallel(len(nodes), func(i int) error { // one that hangs holds up no other
		sights[i] = s.lookAt(ctx, nodes[i])
		return nil
	})
	var seen []*sight
	for _, v := range sights {
		if v != nil {
			seen = append(seen, v)
		}
	}
	serves := s.serving(ctx, seen)
	for _, v := range seen {
		var arrivals []*command
		for p, cmd := range v.guards {
			if how := s.judge(v, serves, p, cmd); how != "" {
				arrivals = append(arrivals, s.newArriveCommand(p, v.id.server(), how, 0))
			}
		}
		if len(arrivals) == 0 || s.arriveAt(ctx, v.node, arrivals) == nil { // or the next look tries again
			s.sentry.settle(&v.id, v.node.addr)
			v.node.settled.Store(true)
		}
		if len(v.guards) > 0 {
			s.tidy(ctx, v.node, slices.Min(slices.Collect(maps.Keys(v.guards))))
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

// judge decides how a partition is to be arrived at; "": all is as it should be.
func (s *Store) judge(v *sight, serves func(string) bool, partition int, cmd *goredis.StringCmd) string {
	w := &s.sentry
	text, err := cmd.Result()
	switch {
	case errors.Is(err, goredis.Nil):
		if how := w.manner(partition); how != arriveNever {
			return how
		} else if !v.blank {
			return arriveCareful
		}
		return "" // the quorum decides
	case err != nil:
		return "" // elsewhere, or out of reach
	}
	g, err := decodeGuard(text, s.partitions)
	if err != nil {
		s.damaged(s.keys[partition].guard, err)
		return ""
	}
	if born := w.born[partition].Load(); born != 0 && born != int64(g.born) || w.lostKeys(v) {
		return arriveLost // and, if it was lost, another gateway has noticed
	}
	w.learn(partition, &g)
	switch {
	case g.Server == v.id.server():
		return ""
	case v.id.same(g.Server), serves(g.Server):
		return arriveLossless // the server is still there: the partition was moved
	}
	return arriveCareful
}

// serving returns what tells whether a server is still the master that it was, of
// some partition or, when the last was moved, of none. A server is asked once.
func (s *Store) serving(ctx context.Context, seen []*sight) func(server string) bool {
	known := map[string]bool{}
	for _, v := range seen {
		known[v.id.server()] = true
	}
	return func(server string) bool {
		if serves, asked := known[server]; asked {
			return serves
		}
		known[server] = false
		s.sentry.mu.Lock()
		addr := s.sentry.addrs[server]
		s.sentry.mu.Unlock()
		if s.topology.location.kind != kindCluster || addr == "" {
			return false
		}
		info, err := s.topology.guide(addr).Info(ctx, identityInfo...).Result()
		if err == nil {
			id, err := identify(info)
			known[server] = err == nil && id.master && id.same(server)
		}
		return known[server]
	}
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
	s.sender.exec(ctx, n.client, n, s.sender.calls(n, arrivals), false)
	return s.allArrived(arrivals)
}

// reArrive deals with a partition in which an operation has found that something is
// missing. It reports whether it could.
func (s *Store) reArrive(ctx context.Context, a alarm) bool {
	w, partition := &s.sentry, a.partition
	ctx, cancel := context.WithTimeout(ctx, s.options.OperationTimeout)
	defer cancel()
	select {
	case w.arriving <- struct{}{}:
		defer func() { <-w.arriving }()
	case <-ctx.Done():
		return false
	}
	if a.at.Before(w.arrivedAt[partition]) {
		return true // somebody has dealt with it since
	}
	n := s.topology.node(partition)
	if n.client == nil {
		return false
	}
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
	case err == nil && a.unguarded && how != arriveNever: // or it might be made here, should it be emptied now
		how = arriveCareful // somebody has dealt with it since, who may have taken it for new
	case err == nil && a.unguarded:
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
	losses := w.losses.Load()
	w.mu.Lock()
	was, lost := w.shut, losses-w.told
	w.shut, w.told = shut > 0, losses
	w.mu.Unlock()
	switch {
	case lost > 0 && w.options.Quarantine.Off:
		w.options.Logger.Warn("Redis has forgotten what it granted, or another server serves that may have; new leases are granted at once, for quarantine is off",
			"partitions", lost)
	case shut > 0 && !was:
		w.options.Logger.Warn("Redis may have forgotten leases: nothing new is granted until they have run out; those that it still has can be renewed",
			"for", until.Sub(now).Round(time.Millisecond).String(), "partitions", fmt.Sprintf("%d of %d", shut, len(w.until)))
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
