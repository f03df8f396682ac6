package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// surveyGap is how long two surveys are apart at least, however often they are
// asked for. It is below what retries wait, so that a retry finds what moved.
const surveyGap = 50 * time.Millisecond

// retellGap is how long a warning stands before another reason for it is logged: the
// first may be that it took too long, the next one what is wrong.
const retellGap = 10 * time.Second

var (
	errNowhere = errors.New("redis: no master is known that has this partition")
	errRetired = errors.New("redis: another node has become the master of this partition")
)

// node is a Redis master as this gateway talks to it. Connections and batchers are
// its own, so that one that is dead holds up no command for another.
type node struct {
	addr     string
	client   *goredis.Client        // nil of the node that stands for none
	batchers [2 * batchers]*batcher // the second half is for what waits for replicas
	scripts  atomic.Int64           // it has no Functions, as far as is known until then (ns of the gateway's clock)
	tidied   time.Time              // of the one who looks after all nodes
	gone     chan struct{}          // closed when it is not known as a master any more

	changes   atomic.Int64           // what gives reason to check, besides partitions that came: another server or none that is a master, an arrival that failed
	settledAt atomic.Int64           // reasons(), when its partitions were last checked
	server    string                 // whose partitions these were; of who is arriving
	checked   atomic.Pointer[string] // the same, for those who are not
	last      check                  // of who is entering
	entering  turn                   // of who needs a connection to arrive by
	arriving  turn                   // of who has one
	topology  *topology
}

// settled reports whether its partitions were checked, and what may be lost is in quarantine.
func (n *node) settled() bool { return n.settledAt.Load() == n.reasons(n.topology.chart.Load()) }

// serves returns the server whose partitions were checked; empty: they have to be, first.
func (n *node) serves() string {
	if !n.settled() {
		return ""
	}
	return *n.checked.Load()
}

// reasons returns how many reasons to check there were until a chart was made: a partition
// comes with the chart that says so, so that no command finds it settled.
func (n *node) reasons(c *chart) int64 { return n.changes.Load() + c.came[n] }

// ready has the partitions checked if they were not yet: what is sent to them would be
// refused otherwise, for what may be lost is not known before that.
func (n *node) ready() error {
	if n.settled() {
		return nil
	}
	t := n.topology
	if err := t.store.arriveAt(context.Background(), n, t.options.Clock(), reconcile); !errors.Is(err, errSkewed) {
		return err
	}
	return nil // what grants nothing may go on
}

// check is what the last check of the partitions of a node came to.
type check struct {
	at  time.Time // when it began, or failed
	err error
}

// retired reports whether the node is not known as a master any more.
func (n *node) retired() bool {
	select {
	case <-n.gone:
		return true
	default:
		return false
	}
}

// close ends the node. With errRetired commands that are on their way fail, and
// those that come later as well: they may try again elsewhere. It waits for all of
// them.
func (n *node) close(reason error) error {
	var err error
	if n.client != nil && reason == errRetired { // what it would still answer is of no use
		err = n.client.Close()
	}
	for _, b := range n.batchers {
		b.close(reason)
	}
	if n.client != nil && reason != errRetired {
		err = n.client.Close()
	}
	return err
}

// layout is what a survey found: the address of the master of each partition, ""
// where there is none.
type layout []string

// chart says where the partitions are. It is replaced, never changed.
type chart struct {
	nodes  []*node         // every master that has a partition, in the order of addresses
	owners []*node         // never nil, by partition
	came   map[*node]int64 // how many partitions have, while it was known
}

// partitionsOf returns the partitions of a node, in order.
func (c *chart) partitionsOf(n *node) []int {
	var all []int
	for i, owner := range c.owners {
		if owner == n {
			all = append(all, i)
		}
	}
	return all
}

// missing returns a partition without a master, or -1.
func (c *chart) missing() int {
	return slices.IndexFunc(c.owners, func(n *node) bool { return n.client == nil })
}

// topology knows which master has which partition. A single Redis has all, and
// for ever. Of others the topology is surveyed at start, every so often, and when
// an answer says that something has moved.
type topology struct {
	location *location
	options  *Options
	sender   *sender
	store    *Store

	survey func(context.Context) (layout, error) // nil: nothing ever moves
	every  time.Duration                         // between surveys nobody asked for
	guides guides

	chart   atomic.Pointer[chart]
	nowhere *node // stands for the master of partitions that have none
	wanted  chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	spoken  atomic.Bool           // something has answered as is expected of it
	lostBy  atomic.Pointer[error] // why the last survey failed; nil if it did not
	lost    bool                  // what follows too is of the one who surveys
	why     string                // as it was logged
	warned  time.Time             // when

	closing sync.Once
	closed  error
}

// newTopology makes the topology of a location and surveys it once, for up to ctx.
func newTopology(ctx context.Context, l *location, s *Store) *topology {
	t := &topology{location: l, options: &s.options, sender: s.sender, store: s, wanted: make(chan struct{}, 1)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.nowhere = t.newNode("")
	t.sender.strayed = t.refresh
	empty := &chart{owners: make([]*node, l.partitions())}
	for i := range empty.owners {
		empty.owners[i] = t.nowhere
	}
	t.chart.Store(empty)
	switch l.kind {
	case kindSentinel:
		watched := &sentinels{topology: t}
		t.survey, t.every = watched.survey, sentinelEvery
	case kindCluster:
		t.survey, t.every = t.surveyCluster, clusterEvery
	default:
		t.apply(slices.Repeat(layout{l.addrs[0]}, l.partitions()))
		return t
	}
	t.update(ctx)
	t.running.Go(t.run)
	return t
}

// node returns the master of a partition. Where none is known it is one on which
// every command fails and may be tried again.
func (t *topology) node(partition int) *node { return t.chart.Load().owners[partition] }

// nodes returns every master that has a partition.
func (t *topology) nodes() []*node { return t.chart.Load().nodes }

// refresh asks for a survey. It returns at once.
func (t *topology) refresh() {
	if t.survey == nil {
		return
	}
	select {
	case t.wanted <- struct{}{}:
	default:
	}
}

// subscriber returns a node at which messages can be heard, wherever they are
// published: any of a Cluster. It is nil if no master is known. Messages of a node
// that is retired must be heard elsewhere.
func (t *topology) subscriber() *node {
	nodes := t.nodes()
	if len(nodes) == 0 {
		t.refresh()
		return nil
	}
	return nodes[rand.N(len(nodes))]
}

// close ends all nodes, once. Commands that are on their way are waited for.
func (t *topology) close() error {
	t.closing.Do(func() { t.closed = t.closeAll() })
	return t.closed
}

func (t *topology) closeAll() error {
	t.cancel()
	t.running.Wait()
	errs := []error{t.nowhere.close(errClosed)}
	for _, n := range t.nodes() {
		errs = append(errs, n.close(errClosed))
	}
	t.guides.close()
	return errors.Join(errs...)
}

// run surveys until the topology is closed.
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
		rest.Reset(surveyGap)
		select {
		case <-rest.C:
		case <-t.ctx.Done():
			return
		}
	}
}

// update surveys once. What is not found out leaves the chart as it is.
func (t *topology) update(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, t.options.OperationTimeout)
	defer cancel()
	found, err := t.survey(ctx)
	if t.lostBy.Store(nil); err != nil {
		err = t.told(err)
		t.lostBy.Store(&err)
	} else {
		t.spoken.Store(true)
	}
	switch {
	case err == nil:
		if t.lost {
			t.options.Logger.Info("the masters are known again")
		}
		t.lost = false
		t.apply(found)
	case t.ctx.Err() == nil && (!t.lost || err.Error() != t.why && time.Since(t.warned) > retellGap):
		t.lost, t.why, t.warned = true, err.Error(), time.Now()
		t.options.Logger.Warn("nobody says which Redis is the master; what was known is used until somebody does", "error", err)
	}
}

// apply makes a layout the chart. Nodes that stay keep their connections.
func (t *topology) apply(l layout) {
	old := t.chart.Load()
	next := &chart{owners: make([]*node, len(l)), came: map[*node]int64{}}
	known := map[string]*node{}
	for _, n := range old.nodes {
		known[n.addr], next.came[n] = n, old.came[n]
	}
	for i, addr := range l {
		if addr == "" {
			next.owners[i] = t.nowhere
			continue
		}
		n := known[addr]
		if n == nil {
			n = t.newNode(addr)
			known[addr] = n
		}
		if next.owners[i] = n; n != old.owners[i] {
			next.came[n]++
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
	t.chart.Store(next)
	for _, n := range retired {
		t.options.Logger.Info("a Redis is not the master of any lock any more", slog.String("addr", n.addr))
		t.running.Go(func() { _ = n.close(errRetired) })
	}
}

// newNode returns a node that has not been connected to yet.
func (t *topology) newNode(addr string) *node {
	n := &node{addr: addr, topology: t, gone: make(chan struct{}), entering: make(turn, 1), arriving: make(turn, 1)}
	n.changes.Store(1)
	if addr != "" {
		o := t.clientOptions(addr)
		o.OnConnect = func(ctx context.Context, conn *goredis.Conn) error { return t.store.onConnect(ctx, n, conn) }
		n.client = goredis.NewClient(o)
	}
	for i := range n.batchers {
		n.batchers[i] = &batcher{sender: t.sender, node: n, flights: 1, idle: make(chan struct{}), orphaned: t.store.orphaned}
		if t.options.Uncoalesced {
			n.batchers[i].flights = math.MaxInt // nothing ever queues
		}
	}
	return n
}

// connectionBuffer is what a connection keeps for what it reads, and for what it writes.
// A stall fills the pools, of 8 connections to each master, and they keep them.
const connectionBuffer = 16 << 10

// clientOptions are those of every client of Redis, whatever the topology. The
// library repeats nothing by itself, and everything has an end.
func (t *topology) clientOptions(addr string) *goredis.Options {
	l, options := t.location, t.options
	o := &goredis.Options{
		Network: l.network, Addr: addr, DB: l.db, Username: l.username, Password: l.password,
		Protocol:   2, // no push messages: nothing here listens to any
		MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		DialTimeout:              options.DialTimeout, DialerRetries: 1,
		ReadTimeout: options.ReadTimeout, WriteTimeout: options.WriteTimeout,
		PoolSize: options.PoolSize, PoolTimeout: options.ReadTimeout,
		PipelinePoolSize: -1, // pipelines are the normal case: one pool for all
		ReadBufferSize:   connectionBuffer, WriteBufferSize: connectionBuffer,
	}
	if o.Password == "" {
		o.Username, o.Password = options.Username, options.Password
	}
	if l.tls {
		host, _, _ := net.SplitHostPort(addr)
		o.Dialer = dialTLS(options.TLS, host, options.DialTimeout)
	}
	return o
}

// dialTLS returns what connects with TLS. It says of a handshake that it was that: a
// port without TLS just does not answer.
func dialTLS(settings func() *tls.Config, host string, timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout) // that of a subscription has no end
		defer cancel()
		dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}} // as without TLS
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		config := &tls.Config{}
		if settings != nil {
			config = settings()
		}
		config.ServerName, config.MinVersion = host, tls.VersionTLS12
		encrypted := tls.Client(conn, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		return encrypted, nil
	}
}

// guides are connections to those who are asked where the masters are. Nothing is arrived
// at by them: replicas and Sentinels know it as well.
type guides struct {
	mu      sync.Mutex
	clients map[string]*goredis.Client
	members []string // of a Cluster: addresses of its nodes
}

// guide returns the client of who is asked at addr.
func (t *topology) guide(addr string) *goredis.Client {
	g := &t.guides
	g.mu.Lock()
	defer g.mu.Unlock()
	if client := g.clients[addr]; client != nil {
		return client
	}
	o := t.clientOptions(addr)
	o.PoolSize, o.ReadBufferSize, o.WriteBufferSize = 1, 4<<10, 4<<10
	o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = guideTimeout, guideTimeout, guideTimeout
	if t.location.kind == kindSentinel {
		o.DB, o.Username, o.Password = 0, t.options.SentinelUsername, t.options.SentinelPassword
	}
	client := goredis.NewClient(o)
	if g.clients == nil {
		g.clients = map[string]*goredis.Client{}
	}
	g.clients[addr] = client
	return client
}

// guideTimeout is for one answer about the topology, which costs next to nothing.
const guideTimeout = 500 * time.Millisecond

// keep closes the guides that are not among addrs.
func (g *guides) keep(addrs []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for addr, client := range g.clients {
		if !slices.Contains(addrs, addr) {
			_ = client.Close()
			delete(g.clients, addr)
		}
	}
}

func (g *guides) close() { g.keep(nil) }

// strays are first words of answers that say that something has moved.
var strays = []string{"MOVED", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING"}

// strayed reports whether an error suggests that somebody else is the master: by
// what Redis says, or because it says nothing.
func strayed(err error) bool {
	var answer goredis.Error
	if errors.As(err, &answer) && !errors.Is(err, goredis.Nil) {
		word, _, _ := strings.Cut(answer.Error(), " ")
		return slices.Contains(strays, word)
	}
	return err != nil && !errors.Is(err, goredis.Nil)
}

// at says of which node an error is.
func (n *node) at(err error) error {
	if err == nil || n.addr == "" {
		return err
	}
	return fmt.Errorf("the Redis at %s: %w", n.addr, err)
}
