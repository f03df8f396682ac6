package redis

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// discoveryGap is how far apart two discoveries are at least, however often they are
// asked for. It is below what retries wait, so that a retry finds what moved.
const discoveryGap = 50 * time.Millisecond

// warningGap is how long a warning stands before another reason for it is logged: the
// first may be that it took too long, the next one what is wrong.
const warningGap = 10 * time.Second

// masterAddrs is what a discovery found: the address of the master of each partition, ""
// where there is none.
type masterAddrs []string

// partitionTable says where the partitions are. It is replaced, never changed.
type partitionTable struct {
	nodes  []*node         // every master that has a partition, in the order of addresses
	owners []*node         // never nil, by partition
	gained map[*node]int64 // how many partitions each has been given, while it was known
}

// partitionsOf returns the partitions of a node, in order.
func (p *partitionTable) partitionsOf(n *node) []int {
	var all []int
	for i, owner := range p.owners {
		if owner == n {
			all = append(all, i)
		}
	}
	return all
}

// incomplete reports whether a partition has no master.
func (p *partitionTable) incomplete() bool {
	return slices.ContainsFunc(p.owners, func(n *node) bool { return n.client == nil })
}

// topology knows which master has which partition. A single Redis has all, and
// for ever. Of others it is discovered at start, every so often, and when an answer says
// that something has moved.
type topology struct {
	location *location
	options  *Options
	sender   *sender
	store    *Store

	discover func(context.Context) (masterAddrs, error) // nil: nothing ever moves
	every    time.Duration                              // between discoveries nobody asked for
	clients  discoveryClients

	table     atomic.Pointer[partitionTable]
	noMaster  *node // stands for the master of partitions that have none
	wanted    chan struct{}
	ctx       context.Context
	cancel    context.CancelFunc
	running   sync.WaitGroup
	answered  atomic.Bool           // something has answered as is expected of it
	lastError atomic.Pointer[error] // why the last discovery failed; nil if it did not
	unknown   bool                  // a failure was logged; this and the next are of the goroutine that discovers
	warnedOf  string                // as it was logged
	warned    time.Time             // when

	close func() error // ends all nodes, once; commands that are on their way are waited for
}

// newTopology makes the topology of a location and discovers it once, for up to ctx.
func newTopology(ctx context.Context, l *location, s *Store) *topology {
	t := &topology{location: l, options: &s.options, sender: s.sender, store: s, wanted: make(chan struct{}, 1)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.close = sync.OnceValue(t.closeAll)
	t.noMaster = t.newNode("")
	t.sender.rediscover = t.refresh
	empty := &partitionTable{owners: make([]*node, l.partitions())}
	for i := range empty.owners {
		empty.owners[i] = t.noMaster
	}
	t.table.Store(empty)
	switch l.kind {
	case kindSentinel:
		watched := &sentinels{topology: t}
		t.discover, t.every = watched.discover, sentinelEvery
	case kindCluster:
		t.discover, t.every = t.discoverCluster, clusterEvery
	default:
		t.apply(slices.Repeat(masterAddrs{l.addrs[0]}, l.partitions()))
		return t
	}
	t.update(ctx)
	t.running.Go(t.run)
	return t
}

// node returns the master of a partition. Where none is known it is one on which
// every command fails and may be tried again.
func (t *topology) node(partition int) *node { return t.table.Load().owners[partition] }

// nodes returns every master that has a partition.
func (t *topology) nodes() []*node { return t.table.Load().nodes }

// refresh asks for a discovery. It returns at once.
func (t *topology) refresh() {
	if t.discover == nil {
		return
	}
	select {
	case t.wanted <- struct{}{}:
	default:
	}
}

// subscriptionNode returns a node at which messages can be heard, wherever they are
// published: any of a Cluster. It is nil if no master is known. Messages of a node
// that is retired must be heard elsewhere.
func (t *topology) subscriptionNode() *node {
	nodes := t.nodes()
	if len(nodes) == 0 {
		t.refresh()
		return nil
	}
	return nodes[rand.N(len(nodes))]
}

func (t *topology) closeAll() error {
	t.cancel()
	t.running.Wait()
	errs := []error{t.noMaster.close(errClosed)}
	for _, n := range t.nodes() {
		errs = append(errs, n.close(errClosed))
	}
	t.clients.close()
	return errors.Join(errs...)
}

// run discovers until the topology is closed.
func (t *topology) run() {
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-t.wanted:
		case <-tick.C:
		case <-t.ctx.Done():
			return
		}
		t.update(t.ctx)
		rest.Reset(discoveryGap)
		select {
		case <-rest.C:
		case <-t.ctx.Done():
			return
		}
	}
}

// update discovers once. What is not found out leaves the table as it is.
func (t *topology) update(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, t.options.OperationTimeout)
	defer cancel()
	found, err := t.discover(ctx)
	if t.lastError.Store(nil); err != nil {
		err = t.diagnose(err)
		t.lastError.Store(&err)
	} else {
		t.answered.Store(true)
	}
	switch {
	case err == nil:
		if t.unknown {
			t.options.Logger.Info("the masters are known again")
		}
		t.unknown = false
		t.apply(found)
	case t.ctx.Err() == nil && (!t.unknown || err.Error() != t.warnedOf && time.Since(t.warned) > warningGap):
		t.unknown, t.warnedOf, t.warned = true, err.Error(), time.Now()
		t.options.Logger.Warn("no node says which Redis is the master; the last known master is used until one does", "error", err)
	}
}

// apply makes what was found the table. Nodes that stay keep their connections.
func (t *topology) apply(l masterAddrs) {
	old := t.table.Load()
	next := &partitionTable{owners: make([]*node, len(l)), gained: map[*node]int64{}}
	known := map[string]*node{}
	for _, n := range old.nodes {
		known[n.addr], next.gained[n] = n, old.gained[n]
	}
	for i, addr := range l {
		if addr == "" {
			next.owners[i] = t.noMaster
			continue
		}
		n := known[addr]
		if n == nil {
			n = t.newNode(addr)
			known[addr] = n
		}
		if next.owners[i] = n; n != old.owners[i] {
			next.gained[n]++
		}
		if !slices.Contains(next.nodes, n) {
			next.nodes = append(next.nodes, n)
		}
	}
	slices.SortFunc(next.nodes, func(a, b *node) int { return strings.Compare(a.addr, b.addr) })
	var retired []*node
	for _, n := range old.nodes {
		if !slices.Contains(next.nodes, n) {
			close(n.gone) // before others serve: what they publish is not heard there
			retired = append(retired, n)
		}
	}
	t.table.Store(next)
	for _, n := range retired {
		t.options.Logger.Info("a Redis is no longer the master of any lock", slog.String("addr", n.addr))
		t.running.Go(func() { _ = n.close(errRetired) })
	}
}
