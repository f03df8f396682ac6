package quorum

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

var (
	quiet  = slog.New(slog.NewTextHandler(io.Discard, nil))
	errCut = errors.New("the node is out of reach")
)

// node is a model that can be out of reach.
type node struct {
	*fencingtest.Model

	mu     sync.Mutex
	cut    bool                  // it fails at once
	silent bool                  // it does not answer
	before func(op string)       // runs before a call reaches the model
	lost   func(op string) bool  // the answer does not come back
	says   func(op string) error // comes back instead of the answer, if it is not nil
	blank  bool                  // it is, and grants nothing, whatever the model says
	admits []admission
}

type admission struct {
	isNew   bool
	longest time.Duration
}

func (n *node) set(change func(*node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

// via makes a call of the model, if the node can be reached.
func via[A, R any](ctx context.Context, n *node, op string, do func(*fencingtest.Model, context.Context, A) (R, error), r A) (R, error) {
	var none R
	n.mu.Lock()
	cut, silent, before, lost, says := n.cut, n.silent, n.before, n.lost, n.says
	n.mu.Unlock()
	switch {
	case cut:
		return none, fencing.Unavailable(errCut)
	case silent:
		<-ctx.Done()
		return none, fencing.Unavailable(ctx.Err())
	case before != nil:
		before(op)
	}
	n.mu.Lock()
	model := n.Model // that is there by now
	n.mu.Unlock()
	out, err := do(model, ctx, r)
	if lost != nil && lost(op) {
		return none, fencing.Unavailable(errCut)
	}
	if says != nil {
		if err := says(op); err != nil {
			return none, err
		}
	}
	return out, err
}

func (n *node) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	return via(ctx, n, fencing.Verb(op), func(m *fencingtest.Model, ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
		if _, acquires := op.(fencing.AcquireRequest); acquires && n.isBlank() { // as a Redis that is not in service
			return fencing.Outcome{}, &fencing.Error{Code: fencing.CodeQuarantined}
		}
		return m.Do(ctx, op)
	}, op)
}

func (n *node) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	return via(ctx, n, "list", (*fencingtest.Model).List, r)
}

func (n *node) Stats(ctx context.Context) (fencing.Stats, error) {
	return via(ctx, n, "stats", func(m *fencingtest.Model, ctx context.Context, _ struct{}) (fencing.Stats, error) {
		return m.Stats(ctx)
	}, struct{}{})
}

func (n *node) Check(ctx context.Context) error {
	if m, err := n.Memory(ctx); err == nil && !m.InService {
		return &fencing.Error{Code: fencing.CodeQuarantined}
	}
	_, err := via(ctx, n, "check", func(m *fencingtest.Model, ctx context.Context, _ struct{}) (struct{}, error) {
		return struct{}{}, m.Check(ctx)
	}, struct{}{})
	return err
}

func (n *node) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	return via(ctx, n, "expire", (*fencingtest.Model).Expire, limit)
}

func (n *node) Heartbeat(ctx context.Context, names []fencing.Name) error {
	_, err := via(ctx, n, "heartbeat", func(m *fencingtest.Model, ctx context.Context, names []fencing.Name) (struct{}, error) {
		return struct{}{}, m.Heartbeat(ctx, names)
	}, names)
	return err
}

func (n *node) Memory(ctx context.Context) (fencing.Memory, error) {
	return via(ctx, n, "memory", func(m *fencingtest.Model, ctx context.Context, _ struct{}) (fencing.Memory, error) {
		memory, err := m.Memory(ctx)
		if n.isBlank() {
			memory.Blank, memory.InService, memory.Quarantine = true, false, 30*time.Second
		}
		return memory, err
	}, struct{}{})
}

func (n *node) isBlank() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.blank
}

func (n *node) Enroll(ctx context.Context, server string, isNew bool, longest time.Duration) (time.Duration, error) {
	return via(ctx, n, "enroll", func(m *fencingtest.Model, ctx context.Context, _ struct{}) (time.Duration, error) {
		left, err := m.Enroll(ctx, server, isNew, longest)
		if err == nil {
			n.set(func(n *node) { n.blank, n.admits = false, append(n.admits, admission{isNew, longest}) })
		}
		return left, err
	}, struct{}{})
}

// Close leaves the model to other gateways.
func (n *node) Close() error { return nil }

// admissions returns how the node was admitted.
func (n *node) admissions() []admission {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.admits)
}

// forget makes the node remember nothing, until it is admitted again.
func (n *node) forget() {
	n.set(func(n *node) { n.Model, n.blank = newModel(), true })
}

func newModel() *fencingtest.Model {
	return fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(time.Now()) })
}

// scene is a quorum of models in a bubble of its own time.
type scene struct {
	*Store
	t     *testing.T
	nodes []*node
	told  int64 // of so many takeovers a stream was told: see renews
}

const testSkew = 100 * time.Millisecond

func newScene(t *testing.T, n int) *scene {
	t.Helper()
	s := newNodes(t, n)
	s.Store = s.open()
	synctest.Wait() // for the nodes to be admitted
	return s
}

// newNodes returns a scene without a store.
func newNodes(t *testing.T, n int) *scene {
	t.Helper()
	s := &scene{t: t}
	for range n {
		s.nodes = append(s.nodes, &node{Model: newModel()})
	}
	return s
}

// open returns a store on the nodes, as another gateway has it.
func (s *scene) open() *Store {
	s.t.Helper()
	return s.openWith(func(*Options) {})
}

func (s *scene) openWith(change func(*Options)) *Store {
	s.t.Helper()
	var nodes []fencing.Node
	for _, n := range s.nodes {
		nodes = append(nodes, n)
	}
	o := Options{MaxSkew: testSkew, NodeTimeout: 100 * time.Millisecond, Logger: quiet}
	change(&o)
	q, err := Open(nodes, o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := q.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return q
}

func request(name fencing.Name) fencing.AcquireRequest {
	return fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Owner: "worker-7",
		Mode: fencing.ModeExclusive, Hold: 1, TTL: 10 * time.Second,
	}
}

func (s *scene) acquire(r fencing.AcquireRequest) fencing.Outcome {
	s.t.Helper()
	out, err := s.Do(context.Background(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// refused fails unless err has the code.
func (s *scene) refused(err error, code fencing.Code) *fencing.Error {
	s.t.Helper()
	e := asError(err)
	if e == nil || e.Code != code {
		s.t.Fatalf("got %v, want %s", err, code)
	}
	return e
}

// holders returns at how many nodes a lease is.
func (s *scene) holders(name fencing.Name, lease fencing.LeaseID) int {
	n := 0
	for _, node := range s.nodes {
		r := node.Model.Snapshot().Records[name]
		if r == nil {
			continue
		}
		if h, ok := r.Holders.Find(lease.Public()); ok && h.Live(fencing.InstantOf(time.Now())) {
			n++
		}
	}
	return n
}

// imposter has the public part of a lease id, with another secret.
func imposter(t *testing.T, lease fencing.LeaseID) fencing.LeaseID {
	id, err := fencing.ParseLeaseID(string(lease.Public()) + "." + strings.Repeat("x", 30))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// pass moves the clock, and lets what is due by then happen: a check of the nodes among
// others. For the test itself; calls of nodes advance.
func (s *scene) pass(d time.Duration) {
	advance(d)
	synctest.Wait()
}

// advance moves the clock of the synctest bubble. What is due at the same instant may
// happen before or after.
func advance(d time.Duration) { <-time.After(d) }

// slowly has an operation at nodes take d before it gets there.
func slowly(op string, d time.Duration, nodes ...*node) {
	for _, n := range nodes {
		n.set(func(n *node) {
			n.before = func(o string) {
				if o == op {
					advance(d)
				}
			}
		})
	}
}

// playLenient plays on nodes that are a little behind, so that they accept proposals
// that come late, as real nodes do within the skew.
func playLenient(t *testing.T, wrap func(fencing.Node) fencing.Node, test func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newNodes(t, 3)
		var nodes []fencing.Node
		for _, n := range s.nodes {
			n.Model = fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(time.Now().Add(-time.Second)) })
			nodes = append(nodes, wrap(n))
		}
		q, err := Open(nodes, Options{MaxSkew: testSkew, NodeTimeout: 100 * time.Millisecond, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = q.Close() }()
		s.Store = q
		synctest.Wait()
		test(s)
	})
}

func asIs(n fencing.Node) fencing.Node { return n }
