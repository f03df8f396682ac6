package raft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/redis/redistest"
)

// TestMain looks for goroutines that stay, but for those that settled and stopRaft leave where hashicorp/raft does not answer or end.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error"),
		goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*Raft).pipelineDecode"), goleak.IgnoreAnyFunction("github.com/hashicorp/raft.(*shutdownFuture).Error"))
}

// testClock is a monotonic clock that a test moves, and the wall clock as well.
type testClock struct{ now atomic.Int64 }

func newTestClock() *testClock {
	c := &testClock{}
	c.now.Store(int64(fencingtest.Epoch))
	return c
}

func (c *testClock) read() fencing.Instant   { return fencing.Instant(c.now.Load()) }
func (c *testClock) set(to fencing.Instant)  { c.now.Store(int64(to)) }
func (c *testClock) advance(d time.Duration) { c.now.Add(int64(d / time.Microsecond)) }
func (c *testClock) since() time.Duration    { return c.read().Sub(fencingtest.Epoch) }
func (c *testClock) wall() time.Time         { return c.read().Time() }

// hub connects the nodes of a test: their streams are TCP, their calls are functions. A
// node that is cut off reaches nobody, and nobody reaches it.
type hub struct {
	mu       sync.Mutex
	calls    map[string]*hubCalls
	conns    map[net.Conn][2]string
	cut      map[string]bool
	apart    map[[2]string]bool                    // pairs that don't reach each other
	most     int                                   // bytes of an answer
	tooLarge atomic.Int64                          // how many answers had more
	late     func(from, to string, request []byte) // called before a request is handled; may wait
}

func newHub() *hub {
	return &hub{calls: map[string]*hubCalls{}, conns: map[net.Conn][2]string{}, cut: map[string]bool{}, apart: map[[2]string]bool{}, most: MaxMessage}
}

var errCut = errors.New("the node is cut off")

func (h *hub) reaches(from, to string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.cut[from] && !h.cut[to] && !h.apart[[2]string{from, to}] && !h.apart[[2]string{to, from}]
}

// setCut cuts a node off, or lets it in again.
func (h *hub) setCut(address string, is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut[address] = is
	for conn, ends := range h.conns {
		if is && (ends[0] == address || ends[1] == address) {
			conn.Close()
			delete(h.conns, conn)
		}
	}
}

// setApart cuts two nodes off from each other, or lets them meet again.
func (h *hub) setApart(a, b string, is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.apart[[2]string{a, b}] = is
	for conn, ends := range h.conns {
		if is && (ends == [2]string{a, b} || ends == [2]string{b, a}) {
			conn.Close()
			delete(h.conns, conn)
		}
	}
}

type hubNetwork struct {
	net.Listener
	hub  *hub
	self string
}

func (n *hubNetwork) Dial(address string, timeout time.Duration) (net.Conn, error) {
	if !n.hub.reaches(n.self, address) {
		return nil, errCut
	}
	conn, err := net.DialTimeout("tcp", address, timeout)
	if err == nil {
		n.hub.mu.Lock()
		n.hub.conns[conn] = [2]string{n.self, address}
		n.hub.mu.Unlock()
	}
	return conn, err
}

type hubCalls struct {
	hub    *hub
	self   string
	silent atomic.Bool // it asks nobody

	mu      sync.RWMutex // read while a request is handled
	handler func(context.Context, []byte) ([]byte, error)
	handled func(error) // called after each; nil is nobody
}

func (c *hubCalls) Handle(handler func(context.Context, []byte) ([]byte, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handler = handler
}

func (c *hubCalls) Call(ctx context.Context, address string, request []byte) ([]byte, error) {
	c.hub.mu.Lock()
	to, late := c.hub.calls[address], c.hub.late
	c.hub.mu.Unlock()
	if to == nil || !c.hub.reaches(c.self, address) || c.silent.Load() {
		return nil, errors.Join(ErrNotSent, errCut)
	}
	type answered struct {
		b   []byte
		err error
	}
	answers := make(chan answered, 1)
	go func() {
		if late != nil {
			late(c.self, address, request)
		}
		to.mu.RLock()
		defer to.mu.RUnlock()
		if to.handler == nil {
			answers <- answered{nil, errCut}
			return
		}
		b, err := to.handler(context.WithoutCancel(ctx), request) // a machine does not hear that its caller has left
		if to.handled != nil {
			to.handled(err)
		}
		if len(b) > to.hub.most {
			to.hub.tooLarge.Add(1)
			b, err = nil, errors.New("the answer is too large")
		}
		answers <- answered{b, err}
	}()
	select {
	case a := <-answers:
		if a.err == nil && !c.hub.reaches(c.self, address) {
			return nil, errCut
		}
		return a.b, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cluster is some nodes in this process.
type cluster struct {
	t     testing.TB
	hub   *hub
	nodes []*node
}

type node struct {
	options Options
	*Store
}

// testSegment is the size of a file of the log of most nodes of tests: each node fills two with zeros.
const testSegment = 64 << 10

// newCluster starts a cluster. Its first node leads, and keeps the lead unless something
// fails; edit may change the options of each.
func newCluster(t testing.TB, size int, edit func(i int, o *Options)) *cluster {
	t.Helper()
	c := &cluster{t: t, hub: newHub()}
	var members []Member
	for i := range size {
		l, err := redistest.Listen() // where it may listen again
		if err != nil {
			t.Fatal(err)
		}
		member := Member{ID: fmt.Sprintf("n%d", i+1), Address: l.Addr().String()}
		members = append(members, member)
		calls := &hubCalls{hub: c.hub, self: member.Address}
		c.hub.calls[member.Address] = calls
		o := Options{
			Dir: t.TempDir(), Self: member, Network: &hubNetwork{l, c.hub, member.Address}, Calls: calls, Election: 10 * time.Second,
			segment: testSegment,
		}
		if size == 1 {
			o.Election = leastElection
		}
		if os.Getenv("FENCEPOST_RAFT_LOG") != "" {
			o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", member.ID)
		}
		c.nodes = append(c.nodes, &node{options: o})
	}
	for i, n := range c.nodes {
		n.options.Members = members
		if edit != nil {
			edit(i, &n.options)
		}
	}
	t.Cleanup(c.close)
	for _, n := range c.nodes {
		n.open(t)
	}
	if size > 1 {
		c.elect(0)
	}
	c.awaitLeader()
	return c
}

func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (n *node) open(t testing.TB) {
	t.Helper()
	s, err := Open(n.options)
	if err != nil {
		t.Fatal(err)
	}
	n.Store = s
}

// reopen opens a node that was closed.
func (c *cluster) reopen(i int) {
	c.t.Helper()
	n := c.nodes[i]
	n.options.Network = &hubNetwork{listen(c.t, n.options.Self.Address), c.hub, n.options.Self.Address}
	n.open(c.t)
}

func (c *cluster) close() {
	var closing sync.WaitGroup
	for _, n := range c.nodes {
		if n.Store != nil {
			closing.Go(func() {
				if err := n.Close(); err != nil {
					c.t.Errorf("Close: %v", err)
				}
			})
		}
	}
	closing.Wait()
}

// elect has the leader hand over to a node or, where there is none, that node stand for
// election at once.
func (c *cluster) elect(i int) {
	c.t.Helper()
	to := c.nodes[i].options.Self
	for _, n := range c.nodes {
		if n.leading.Load() != nil {
			if n == c.nodes[i] {
				return
			}
			if err := n.raft.LeadershipTransferToServer(raft.ServerID(to.ID), raft.ServerAddress(to.Address)).Error(); err != nil {
				c.t.Fatal(err)
			}
			c.resigned(n)
			return
		}
	}
	from := c.nodes[(i+1)%len(c.nodes)].dir.transport
	if err := from.TimeoutNow(raft.ServerID(to.ID), raft.ServerAddress(to.Address), &raft.TimeoutNowRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax},
	}, &raft.TimeoutNowResponse{}); err != nil {
		c.t.Fatal(err)
	}
}

// resigned waits until a node knows that it does not lead any more: others may know sooner.
func (c *cluster) resigned(n *node) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	for {
		changed := n.nextChange()
		if n.leading.Load() == nil {
			return
		}
		if !awaitAny(ctx, []<-chan struct{}{changed}) {
			c.t.Fatal("a node that has handed over the lead keeps it")
		}
	}
}

// awaitLeader returns the node that leads, once there is one that serves and all those that
// are not cut off know of it.
func (c *cluster) awaitLeader() *node {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	for {
		var wait []<-chan struct{}
		var leader *node
		for _, n := range c.nodes {
			if n.Store == nil || !c.hub.reaches(n.self.Address, n.self.Address) || n.ctx.Err() != nil {
				continue
			}
			wait = append(wait, n.nextChange())
			if n.leading.Load() != nil {
				leader = n
			}
		}
		for _, n := range c.nodes {
			if leader == nil || n.Store == nil || !c.hub.reaches(n.self.Address, n.self.Address) || n.ctx.Err() != nil {
				continue
			}
			if address, _, _ := n.leader(); address != leader.self.Address {
				leader = nil
			}
		}
		if leader != nil {
			return leader
		}
		if !awaitAny(ctx, wait) {
			c.t.Fatal("no node leads")
		}
	}
}

// awaitAny waits for one of some channels.
func awaitAny(ctx context.Context, all []<-chan struct{}) bool {
	any, cancel := context.WithCancel(ctx)
	defer cancel()
	var waiting sync.WaitGroup
	for _, ch := range all {
		waiting.Go(func() {
			select {
			case <-ch:
				cancel()
			case <-any.Done():
			}
		})
	}
	waiting.Wait()
	return ctx.Err() == nil
}

func acquire(name fencing.Name, ttl time.Duration) fencing.AcquireRequest {
	return fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(),
		Owner: "worker", Mode: fencing.ModeExclusive, Hold: 1, TTL: ttl,
	}
}

func code(err error) fencing.Code {
	if err == nil {
		return fencing.CodeOK
	}
	if e, ok := errors.AsType[*fencing.Error](err); ok {
		return e.Code
	}
	return ""
}

// backend is a cluster of which the suite has two nodes.
type backend struct {
	*cluster
	clock *testClock
}

func (b backend) Store(handle int) fencing.Store { return b.nodes[min(handle, len(b.nodes)-1)].Store }
func (b backend) SetTime(now fencing.Instant)    { b.clock.set(now) }
func (b backend) SetSkew(int, time.Duration)     { panic("raft: one clock") }

// opener opens clusters of so many nodes. The suite has the leader and a follower, or with
// followers two of those.
func opener(size int, followers bool, edit func(*Options)) fencingtest.Open {
	return func(t testing.TB) fencingtest.Backend {
		clock := newTestClock()
		c := newCluster(t, size, func(_ int, o *Options) {
			o.wall, o.monotonic = clock.wall, clock.since
			edit(o)
		})
		c.raised()
		if followers {
			c.nodes = append(c.nodes[1:], c.nodes[0])
		}
		return backend{c, clock}
	}
}

// The suite on one node, and on the leader and a follower, plays some of the cases.
func TestConformance(t *testing.T) {
	t.Parallel()
	conforms(t, suite{"one node", 1, false, fencingtest.Capabilities{Sample: 5}})
	conforms(t, suite{"leader and follower", 3, false, gateways(4)})
	small := gateways(4)
	small.StepLimit = 2
	conforms(t, suite{"small steps", 3, false, small})
	few := gateways(4)
	few.MaxHolders = 2
	conforms(t, suite{"few holders", 3, true, few})
}

// TestSystemConformance plays all of the cases on the leader and a follower, and some on two
// followers, of three nodes and of five.
func TestSystemConformance(t *testing.T) {
	t.Parallel()
	conforms(t, suite{"one node", 1, false, fencingtest.Capabilities{Sample: 2}})
	conforms(t, suite{"leader and follower", 3, false, gateways(0)})
	conforms(t, suite{"two followers", 3, true, gateways(4)})
	conforms(t, suite{"two followers of five nodes", 5, true, gateways(10)})
	small := gateways(0)
	small.StepLimit = 2
	conforms(t, suite{"small steps", 3, false, small})
	few := gateways(0)
	few.MaxHolders = 2
	conforms(t, suite{"few holders", 3, true, few})
}

// suite is the conformance suite on so many nodes.
type suite struct {
	title     string
	size      int
	followers bool // the suite has two of them
	fencingtest.Capabilities
}

// gateways is what a cluster can do whose nodes are gateways, with one case in so many played.
func gateways(sample int) fencingtest.Capabilities {
	return fencingtest.Capabilities{Gateways: true, OneState: true, Sample: sample}
}

func conforms(t *testing.T, s suite) {
	t.Run(s.title, func(t *testing.T) {
		t.Parallel()
		fencingtest.Run(t, opener(s.size, s.followers, func(o *Options) {
			o.stepLimit, o.MaxHolders = s.StepLimit, s.MaxHolders
		}), s.Capabilities)
	})
}
