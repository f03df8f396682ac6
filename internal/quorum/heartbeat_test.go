package quorum

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// hearer is the listener of a gateway. It forgets what it returns.
type hearer struct {
	mu       sync.Mutex
	granted  int
	gaps     int
	replaced []fencing.Stamp
	names    []fencing.Name
	since    time.Time
	entries  []fencing.Entry
}

func (h *hearer) Granted(fencing.Grant, fencing.Instant, time.Time) { h.note(func() { h.granted++ }) }
func (h *hearer) Ask(fencing.Name, fencing.Stamp)                   { h.note(func() { h.granted++ }) }
func (h *hearer) Gap()                                              { h.note(func() { h.gaps++ }) }

func (h *hearer) Replaced(_ fencing.Name, stamp fencing.Stamp) {
	h.note(func() { h.replaced = append(h.replaced, stamp) })
}

func (h *hearer) Has(names []fencing.Name, since time.Time, entries []fencing.Entry) {
	h.note(func() { h.names, h.since, h.entries = append(h.names, names...), since, append(h.entries, entries...) })
}

func (h *hearer) note(what func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	what()
}

func (h *hearer) takeReplaced() (all []fencing.Stamp) {
	h.note(func() { all, h.replaced = h.replaced, nil })
	return all
}

// entryOf is what there is for a stream.
func entryOf(r fencing.AcquireRequest) fencing.Entry {
	return fencing.Entry{Name: r.Name, Lease: r.Lease.Public(), Stamp: r.Stamp, Attached: true}
}

// tells fails unless a heartbeat about names tells of these requests, and of all that there is on
// the names.
func (h *hearer) tells(t *testing.T, s *Store, names []fencing.Name, want ...fencing.AcquireRequest) {
	t.Helper()
	h.names, h.entries = nil, nil
	if err := s.Heartbeat(context.Background(), names); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var entries []fencing.Entry
	for _, r := range want {
		entries = append(entries, entryOf(r))
	}
	slices.SortFunc(h.entries, func(a, b fencing.Entry) int { return compareNames(a.Name, b.Name) })
	if !slices.Equal(h.entries, entries) || !slices.Equal(h.names, names) {
		t.Errorf("told of %+v on %v, want %+v on %v", h.entries, h.names, entries, names)
	}
	if h.since.After(time.Now()) {
		t.Errorf("all that was there ever since %s", h.since)
	}
}

func compareNames(a, b fencing.Name) int { return slices.Compare([]byte(a), []byte(b)) }

// A heartbeat tells of the streams that leases hang on at a majority of all nodes.
func TestHeartbeatTellsOfStreams(t *testing.T) {
	play(t, func(s *scene) {
		h, names := &hearer{}, []fencing.Name{"a", "b", "c"}
		s.Listen(h)
		first, plain, other := stream("a"), request("b"), stream("c")
		first.TTL, other.TTL = time.Hour, time.Hour
		s.acquire(first)
		s.acquire(plain)
		s.acquire(other)
		synctest.Wait()
		h.tells(t, s.Store, names, first, other)

		s.reach(false, 2)
		second := newer(first)
		s.acquire(second)
		synctest.Wait()
		h.tells(t, s.Store, names, second, other)
		s.reach(true, 2)
		h.tells(t, s.Store, names, second, other)
		s.reach(false, 0) // nor do the two that answer agree
		h.tells(t, s.Store, names, other)
		s.reach(true, 0)

		s.reach(false, 1, 2)
		_, err := s.Do(bg, newer(second))
		s.refused(err, fencing.CodeUnavailable)
		s.reach(true, 1, 2)
		if _, err := s.Do(bg, renewal(second, 1)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		h.tells(t, s.Store, names, second, other)

		if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "c", Lease: other.Lease, Stamp: other.Stamp, Linger: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		s.acquire(func() fencing.AcquireRequest { r := newer(second); r.Attach = false; return r }())
		synctest.Wait()
		h.tells(t, s.Store, names)
		if h.granted != 0 {
			t.Errorf("told of %d grants", h.granted)
		}
	})
}

// A node that does not answer holds nobody up for longer than NodeTimeout, and not at all once it is
// known. A majority has to answer, and tells nothing of a heartbeat that it did not.
func TestHeartbeatWithoutNodes(t *testing.T) {
	play(t, func(s *scene) {
		h, names := &hearer{}, []fencing.Name{"a"}
		s.Listen(h)
		r := stream("a")
		s.acquire(r)
		synctest.Wait()
		takes := func(longest time.Duration) {
			t.Helper()
			began := time.Now()
			h.tells(t, s.Store, names, r)
			if took := time.Since(began); took > longest {
				t.Errorf("took %s", took)
			}
		}
		s.nodes[2].set(func(n *node) { n.silent = true })
		takes(s.options.NodeTimeout)
		s.pass(2 * time.Second)
		takes(0)
		s.nodes[1].set(func(n *node) { n.cut = true })
		h.names, h.entries = nil, nil
		s.refused(s.Heartbeat(bg, names), fencing.CodeUnavailable)
		if h.names != nil || h.entries != nil {
			t.Errorf("one node has told of %+v on %v", h.entries, h.names)
		}
		s.nodes[1].set(func(n *node) { n.cut = false })
		takes(0)
	})
}

// Nodes that are slow are waited for: one of them may be what makes a majority.
func TestHeartbeatWaitsForSlowNodes(t *testing.T) {
	play(t, func(s *scene) {
		h := &hearer{}
		s.Listen(h)
		r := stream("a")
		r.TTL = time.Hour
		s.reach(false, 0)
		s.acquire(r)
		s.reach(true, 0)
		slowly("heartbeat", s.options.NodeTimeout/2, s.nodes[2])
		h.tells(t, s.Store, []fencing.Name{"a"}, r)
	})
}

// A node that owes the answer to a heartbeat is not asked by another one meanwhile, and what it tells
// at last does not count once it is too old.
func TestHeartbeatsDoNotOverlap(t *testing.T) {
	play(t, func(s *scene) {
		h, names := &hearer{}, []fencing.Name{"a"}
		s.Listen(h)
		r := stream("a")
		s.acquire(r)
		synctest.Wait()
		var mu sync.Mutex
		beats := 0
		s.nodes[2].set(func(n *node) {
			n.before = func(op string) {
				if op == "heartbeat" {
					mu.Lock()
					beats++
					mu.Unlock()
					advance(10 * time.Second)
				}
			}
		})
		for range 4 {
			h.tells(t, s.Store, names, r)
		}
		mu.Lock()
		if beats != 1 {
			t.Errorf("it was asked %d times", beats)
		}
		mu.Unlock()
		s.pass(20 * time.Second)
	})
}

// That a stream was replaced is told once a majority says so, in whatever order, and once.
func TestReplacedIsCounted(t *testing.T) {
	play(t, func(s *scene) {
		h := &hearer{}
		s.Listen(h)
		first := stream("a")
		s.acquire(first)
		second := newer(first)
		s.acquire(second)
		s.pass(time.Millisecond)
		if got := h.takeReplaced(); !reflect.DeepEqual(got, []fencing.Stamp{first.Stamp}) {
			t.Errorf("replaced: %v, want %s", got, first.Stamp)
		}
		s.reach(false, 1, 2)
		_, err := s.Do(bg, newer(first))
		s.refused(err, fencing.CodeUnavailable)
		s.reach(true, 1, 2)
		if got := h.takeReplaced(); got != nil {
			t.Errorf("one node has told that %v was replaced", got)
		}
		of := func(i int) nodeListener { return nodeListener{&s.streams, i} }
		of(0).Replaced("b", "old")
		s.pass(tellTime + time.Millisecond)
		of(1).Replaced("b", "old")
		if got := h.takeReplaced(); got != nil {
			t.Errorf("two nodes have told long after each other that %v was replaced", got)
		}
		gaps := h.gaps
		of(2).Gap()
		if h.gaps != gaps+1 {
			t.Errorf("%d gaps", h.gaps-gaps)
		}
		for n := range maxReplaced + 1 {
			of(0).Replaced(fencing.Name(rune('a'+n%26)), fencing.Stamp(rune('0'+n)))
		}
		if n := len(s.streams.replaced); n > maxReplaced {
			t.Errorf("%d are followed", n)
		}
	})
}

// A stream that nodes know by the stamp of a later try is told of by its own, and is not told that
// the later one has replaced the one before it.
func TestStreamOfASecondTryIsTold(t *testing.T) {
	play(t, func(s *scene) {
		h := &hearer{}
		s.Listen(h)
		r := stream("a")
		key := requestOf(r.Name, r.Lease, r.Stamp)
		s.acquire(r)
		s.beginUndo(key)
		s.acquire(r)
		s.endUndo(key)
		if s.stampAt(key) == r.Stamp {
			t.Fatal("the second try has the stamp of the first")
		}
		s.pass(time.Millisecond)
		if got := h.takeReplaced(); got != nil {
			t.Errorf("it is told that %v was replaced", got)
		}
		h.tells(t, s.Store, []fencing.Name{"a"}, r)
		s.acquire(newer(r))
		s.pass(time.Millisecond)
		if got := h.takeReplaced(); !reflect.DeepEqual(got, []fencing.Stamp{r.Stamp}) {
			t.Errorf("replaced: %v, want %s", got, r.Stamp)
		}
	})
}

// Nodes may come to the end of what they tell in different heartbeats. Nothing counts of one that was
// begun anew.
func TestHeartbeatsInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodes(t, 3).open()
		h := &hearer{}
		s.Listen(h)
		of := func(i int) nodeListener { return nodeListener{&s.streams, i} }
		entry := func(stamp fencing.Stamp) []fencing.Entry {
			return []fencing.Entry{{Name: "a", Lease: "l", Stamp: stamp, Attached: true}}
		}
		names := []fencing.Name{"a"}
		told := func(want []fencing.Entry, complete []fencing.Name, since time.Time) {
			t.Helper()
			h.names, h.entries, h.since = nil, nil, time.Time{}
			s.streams.tell(names)
			if !slices.Equal(h.entries, want) || !slices.Equal(h.names, complete) || !h.since.Equal(since) {
				t.Errorf("told of %+v on %v since %s, want %+v on %v since %s", h.entries, h.names, h.since, want, complete, since)
			}
		}
		start := time.Now()
		of(0).Has(nil, start, entry("s"))
		advance(time.Second)
		of(1).Has(names, start.Add(time.Second), entry("s"))
		told(nil, nil, time.Time{})
		advance(time.Second)
		of(0).Has(names, start, []fencing.Entry{{Name: "a", Lease: "p", Stamp: "p"}})
		told(entry("s"), names, start)
		told(nil, nil, time.Time{})

		of(0).Has(nil, time.Now(), entry("gone"))
		of(1).Has(nil, time.Now(), entry("gone"))
		advance(time.Second)
		begun := time.Now()
		of(0).Has(names, begun, entry("t"))
		of(1).Has(names, begun, entry("t"))
		told(entry("t"), names, begun)

		of(0).Has(names, time.Now(), entry("u"))
		advance(staleTelling + time.Second)
		of(1).Has(names, time.Now(), entry("u"))
		told(nil, nil, time.Time{})

		of(2).Has(names, time.Now(), entry("late")) // what a slow node tells makes nothing old of what a majority tells later
		advance(time.Second)
		begun = time.Now()
		of(0).Has(names, begun, entry("v"))
		of(1).Has(names, begun, entry("v"))
		told(entry("v"), names, begun)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// On Redis a stream at one gateway hears that one at another has its lease, and heartbeats tell each
// of its own.
func TestStreamsAtTwoGateways(t *testing.T) {
	c := &clock{}
	c.now.Store(int64(fencing.InstantOf(time.Now())))
	var servers []*redistest.Server
	for range 3 {
		servers = append(servers, redistest.Start(t))
	}
	var gateways []*backend
	var heard []*hearer
	for range 2 {
		var nodes []fencing.Node
		for _, server := range servers {
			nodes = append(nodes, nodeAt(t, c, server, 0))
		}
		gateways = append(gateways, openBackend(t, c, nodes))
		h := &hearer{}
		gateways[len(gateways)-1].store.Listen(h)
		heard = append(heard, h)
		until(t, func() (is bool) { h.note(func() { is = h.gaps == 3 }); return is })
	}
	near, far, names := gateways[0].store, gateways[1].store, []fencing.Name{"a"}
	first := stream("a")
	if _, err := near.Do(bg, first); err != nil {
		t.Fatal(err)
	}
	heard[0].tells(t, near.Store, names, first)
	heard[1].tells(t, far.Store, names)
	second := newer(first)
	if _, err := far.Do(bg, second); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return slices.Equal(heard[0].takeReplaced(), []fencing.Stamp{first.Stamp}) })
	heard[0].tells(t, near.Store, names)
	heard[1].tells(t, far.Store, names, second)
}

// until waits until is.
func until(t *testing.T, is func() bool) {
	t.Helper()
	look, late := time.NewTicker(time.Millisecond), time.After(time.Minute)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-late:
			t.Fatal("it has not come about in a minute")
		}
	}
}
