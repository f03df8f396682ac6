package redis

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
)

const (
	// checkInterval is how often the guards are checked: what operations and new
	// connections don't notice by themselves is noticed this late.
	checkInterval = time.Second

	// longestPeriod is how long this gateway remembers a TTL at least, and half of
	// how long it does at most.
	longestPeriod = 2 * fencing.LongestQuarantine
)

// guardWatch keeps what this gateway remembers of the store, in case the store forgets
// it, and compares both each second.
type guardWatch struct {
	ttl    atomic.Int64 // ns, the longest in use
	ttlWas atomic.Int64 // the same of the period before
	losses atomic.Int64 // partitions that had lost something

	mu               sync.Mutex
	partitions       []partitionMemory
	servers          map[string]serverMemory // by the run of a process
	rolled           time.Time
	quarantineLogged bool  // a quarantine was logged, and its end was not
	lossesLogged     int64 // of losses, that were logged

	alarm   chan alarm
	cancel  context.CancelFunc
	ctx     context.Context
	running sync.WaitGroup

	options *Options
}

// partitionMemory is what is remembered of a partition.
type partitionMemory struct {
	remembered
	arrivedAt time.Time
}

// serverMemory is what is remembered of a run of a server whose partitions were checked.
type serverMemory struct {
	name, addr string
	evicted    int64
	since      time.Time // see identity
	seen       time.Time // when it last served
}

// alarm says that an operation has found something missing in a partition.
type alarm struct {
	partition int
	since     time.Time // or before
}

func (w *guardWatch) init(options *Options, partitions int) {
	w.options = options
	w.partitions, w.servers = make([]partitionMemory, partitions), map[string]serverMemory{}
	w.alarm = make(chan alarm, partitions)
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.rolled = time.Now()
}

func (w *guardWatch) close() {
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.running.Wait()
}

// noteTTL counts a TTL as in use.
func (w *guardWatch) noteTTL(ttl time.Duration) { raiseTo(&w.ttl, int64(ttl)) }

// longest returns the longest TTL in use.
func (w *guardWatch) longest() time.Duration {
	return time.Duration(max(w.ttl.Load(), w.ttlWas.Load()))
}

// roll begins a new period of TTLs when it is time.
func (w *guardWatch) roll(now time.Time) {
	if now.Sub(w.rolled) >= longestPeriod {
		w.rolled = now
		w.ttlWas.Store(w.ttl.Swap(0))
	}
}

// remember takes down the guard of a partition, and when it was still served by who is in it.
// It is that of an arrival, which deals with what was missing, or was only read.
func (w *guardWatch) remember(partition int, g *guard, seen time.Time, arrived bool) {
	w.noteTTL(g.Longest(fencing.InstantOf(w.options.Clock())))
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.partitions[partition]
	p.born, p.server, p.seen, p.until = g.born, g.Server, seen, g.Until
	if arrived {
		p.behind, p.arrivedAt = false, seen
	}
}

// unreadable notes that a partition has a guard, whatever it says: without one, something
// was lost.
func (w *guardWatch) unreadable(partition int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := &w.partitions[partition]; p.born == 0 {
		p.born = -1
	}
}

// recall returns what is remembered of a partition, and of a run of a server.
func (w *guardWatch) recall(partition int, run string) remembered {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.partitions[partition].remembered
	was.member, was.passive, was.waits, was.evicted = w.options.Member, w.options.Passive, w.options.Quarantine.For > 0, -1
	if server, known := w.servers[run]; known {
		was.evicted = server.evicted
	}
	return was
}

// misses reports whether an operation found something missing in its partition, and since
// when a check has to have begun that deals with it.
func (w *guardWatch) misses(c *command, r *reply) (since time.Time, something bool) {
	if !r.behind {
		return c.sentAt, r.unguarded
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.partitions[c.partition]
	if p.behind || !c.sentAt.After(p.arrivedAt) {
		return c.sentAt, true
	}
	p.behind = true
	return w.options.Clock(), true // a check that has begun may not have heard of it
}

// server returns what is remembered of a run of a server, if anything is.
func (w *guardWatch) server(run string) serverMemory {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.servers[run]
}

// addrs returns where the servers are of which something is remembered.
func (w *guardWatch) addrs() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, server := range w.servers {
		all = append(all, server.addr)
	}
	return all
}

// noteServer notes that a server's partitions have been checked.
func (w *guardWatch) noteServer(id *identity, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[id.run] = serverMemory{name: id.server(), addr: addr, evicted: id.evicted, since: id.since, seen: id.asked}
	if len(w.servers) > 64 { // runs of long ago
		maps.DeleteFunc(w.servers, func(_ string, server serverMemory) bool { return id.asked.Sub(server.seen) > time.Hour })
	}
}

// watchGuards checks the guards until the store is closed.
func (s *Store) watchGuards() {
	w := &s.guards
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case a := <-w.alarm:
			n := s.topology.node(a.partition)
			_ = s.topology.nodeError(n, s.arriveAt(w.ctx, n, a.since, reconcile))
		case now := <-tick.C:
			w.roll(now)
			s.checkGuards(w.ctx)
			w.report()
		}
	}
}

// checkGuards checks the guards of all partitions. What fails is tried again by the
// next check.
func (s *Store) checkGuards(ctx context.Context) {
	nodes := s.topology.nodes()
	_ = inParallel(len(nodes), func(i int) error { // one that hangs holds up no other
		n := nodes[i]
		err := s.topology.nodeError(n, s.arriveAt(ctx, n, time.Time{}, reconcile)) // nobody else may notice that it has gone
		if isMetaError(err) {
			s.logDamage("the guards at "+n.addr, err)
		}
		if mine := s.topology.table.Load().partitionsOf(n); err == nil && len(mine) > 0 {
			s.tidy(ctx, n, mine[0])
		}
		return nil
	})
}

// raiseAlarm has a partition checked in which a step found that something is missing
// when it was to hand on.
func (w *guardWatch) raiseAlarm(c *command, r *reply) {
	if r.behind && w.options.Quarantine.Off { // the grant has taken the counter above the floor
		w.losses.Add(1)
		return
	}
	if since, something := w.misses(c, r); something {
		select {
		case w.alarm <- alarm{c.partition, since}:
		default: // enough is known to be wrong
		}
	}
}

// report logs the beginning and the end of quarantine.
func (w *guardWatch) report() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := fencing.InstantOf(w.options.Clock())
	shut := 0
	var until fencing.Instant
	for i := range w.partitions {
		if till := w.partitions[i].until; till > now {
			shut++
			until = max(until, till)
		}
	}
	losses := w.losses.Load()
	was, lost := w.quarantineLogged, losses-w.lossesLogged
	w.quarantineLogged, w.lossesLogged = shut > 0, losses
	switch {
	case lost > 0 && w.options.Quarantine.Off:
		w.options.Logger.Warn("Redis may have lost leases; FENCEPOST_QUARANTINE is off, so new leases are granted at once",
			"partitions", lost)
	case shut > 0 && !was:
		w.options.Logger.Warn("Redis may have lost leases: no new ones are granted until those have expired; leases that it still has can be renewed",
			"for", until.Sub(now).Round(time.Millisecond).String(), "partitions", fmt.Sprintf("%d of %d", shut, len(w.partitions)))
	case shut == 0 && was:
		w.options.Logger.Info("new leases are granted again")
	}
}

// quarantine returns how long something is not granted at most.
func (w *guardWatch) quarantine(now fencing.Instant) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var until fencing.Instant
	for i := range w.partitions {
		until = max(until, w.partitions[i].until)
	}
	return max(until.Sub(now), 0)
}

// Losses returns how often a partition was found to have lost something.
func (s *Store) Losses() int64 { return s.guards.losses.Load() }
