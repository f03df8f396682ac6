package quorum

import (
	"context"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// staleTelling is how old what a node has told on a name may be when others tell of it too. Where
	// there is very much to tell, nodes come to the end of it in different heartbeats.
	staleTelling = 5 * time.Second

	// maxReplaced is how many requests are followed of which fewer nodes than a majority have
	// told that they were replaced.
	maxReplaced = 1 << 12
)

// streams is what nodes tell this gateway of its streams. A lease hangs on the stream that a majority
// of all nodes says.
type streams struct {
	store *Store

	mu       sync.Mutex // guards what follows
	listener fencing.Listener
	nodes    [maxNodes]nodeStreams
	replaced map[nameStamp]*counted // requests that nodes said were replaced
}

// nodeStreams is what one node has told in heartbeats.
type nodeStreams struct {
	underWay bool                         // a heartbeat is
	pending  []fencing.Entry              // of those that have not come to an end
	heard    []time.Time                  // when each of pending was told
	complete map[fencing.Name]nameStreams // that was not passed on
}

// nameStreams is what one node has told of all that there is on a name.
type nameStreams struct {
	since   time.Time // all that was there ever since
	entries []fencing.Entry
}

type nameStamp struct {
	name  fencing.Name
	stamp fencing.Stamp
}

// counted is who has said something, and when the first one did.
type counted struct {
	by    nodeSet
	since time.Time
}

// Listen implements fencing.Store. Of the messages of nodes only those are passed on that are about
// streams, for nothing waits there: that one was replaced, once a majority has said so at about the
// same time, and gaps, of which one node's is enough. What is lost is found by heartbeats.
func (s *Store) Listen(l fencing.Listener) {
	s.streams.mu.Lock()
	s.streams.listener = l
	s.streams.mu.Unlock()
	for i, node := range s.nodes {
		node.Listen(nodeListener{&s.streams, i})
	}
}

// Heartbeat implements fencing.Store. It tells of leases that hang on streams of this gateway, by
// the stamps of their requests: an entry that a majority of all nodes has, of names of which a
// majority has told all. So a stream that finds no entry, though all was told of its name, has
// no majority, or one only with a node that could not be reached: its renewal says which, and
// brings it to the others. When a majority has answered, the others have what is left of NodeTimeout, and
// those that have not answered lately nothing: what they tell counts for a later heartbeat, until it is
// too old. It fails if no majority answers.
func (s *Store) Heartbeat(ctx context.Context, names []fencing.Name) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	answers := make(chan answer[struct{}], len(s.nodes))
	for i, node := range s.nodes {
		if !s.streams.begin(i) {
			answers <- answer[struct{}]{node: i, err: unavailable("the node owes an answer to the heartbeat before")}
			continue
		}
		if !s.spawn(func() {
			call, cancel := s.longCall()
			defer cancel()
			err := node.Heartbeat(call, names)
			s.streams.end(i)
			answers <- answer[struct{}]{node: i, err: asError(err)}
		}) {
			return fencing.Unavailable(errClosed)
		}
	}
	votes, answered, away, late := make([]vote, len(s.nodes)), 0, s.suspects(), false
	patience := time.NewTimer(s.options.NodeTimeout)
	defer patience.Stop()
	for left := allNodes(len(s.nodes)); left != 0; {
		if answered >= majorityOf(len(s.nodes)) && (late || left&^away == 0) {
			break
		}
		select {
		case a := <-answers:
			if left &^= 1 << a.node; a.err == nil {
				answered++
			} else {
				votes[a.node] = vote{standing: against, err: a.err}
			}
		case <-patience.C:
			late = true
		case <-ctx.Done():
			s.streams.tell(names)
			return fencing.Unavailable(context.Cause(ctx))
		}
	}
	s.streams.tell(names)
	if answered < majorityOf(len(s.nodes)) {
		return commonest(votes)
	}
	return nil
}

// begin notes that a heartbeat is under way at a node, until end, unless one is.
func (t *streams) begin(node int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	began := !t.nodes[node].underWay
	t.nodes[node].underWay = true
	return began
}

func (t *streams) end(node int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes[node].underWay = false
}

// nodeListener hears one node.
type nodeListener struct {
	*streams
	node int
}

// Granted implements fencing.Listener: nothing waits at a node.
func (n nodeListener) Granted(fencing.Grant, fencing.Instant, time.Time) {}

// Ask implements fencing.Listener: nothing waits at a node.
func (n nodeListener) Ask(fencing.Name, fencing.Stamp) {}

// Gap implements fencing.Listener: what one node did not tell may be what makes a majority.
func (n nodeListener) Gap() {
	n.mu.Lock()
	listener := n.listener
	n.mu.Unlock()
	listener.Gap()
}

// Replaced counts the nodes that say so of a request.
func (n nodeListener) Replaced(name fencing.Name, stamp fencing.Stamp) {
	stamp, counts := n.store.requestBy(name, stamp)
	if !counts {
		return
	}
	n.mu.Lock()
	is, now := nameStamp{name, stamp}, time.Now()
	c := n.replaced[is]
	if c == nil || now.Sub(c.since) > tellTime {
		if len(n.replaced) >= maxReplaced {
			clear(n.replaced)
		}
		c = &counted{since: now}
		n.replaced[is] = c
	}
	c.by |= 1 << n.node
	told := c.by.count() >= majorityOf(len(n.store.nodes))
	if told {
		delete(n.replaced, is)
	}
	listener := n.listener
	n.mu.Unlock()
	if told {
		listener.Replaced(name, stamp)
	}
}

// Has notes what a node tells in a heartbeat.
func (n nodeListener) Has(names []fencing.Name, since time.Time, entries []fencing.Entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t, now := &n.nodes[n.node], time.Now()
	if len(t.heard) > 0 && now.Sub(t.heard[0]) > staleTelling { // it has begun anew since
		t.pending, t.heard = nil, nil
	}
	for _, e := range entries {
		if e.Attached {
			t.pending, t.heard = append(t.pending, e), append(t.heard, now)
		}
	}
	if names == nil {
		return
	}
	if t.complete == nil {
		t.complete = map[fencing.Name]nameStreams{}
	}
	for _, name := range names {
		t.complete[name] = nameStreams{since: since}
	}
	for i, e := range t.pending {
		if !t.heard[i].Before(since) { // else it is of a heartbeat that has not come to its end
			c := t.complete[e.Name]
			c.since, c.entries = since, append(c.entries, e)
			t.complete[e.Name] = c
		}
	}
	t.pending, t.heard = nil, nil
}

// dropLate forgets what nodes have told on names of which a majority has told later, by half a heartbeat or more: it would make
// all of it old. The caller holds mu.
func (t *streams) dropLate(majority int) {
	told := map[fencing.Name][]time.Time{}
	for i := range t.nodes {
		for name, c := range t.nodes[i].complete {
			told[name] = append(told[name], c.since)
		}
	}
	for name, times := range told {
		if len(times) <= majority {
			continue
		}
		slices.SortFunc(times, func(a, b time.Time) int { return b.Compare(a) })
		for i := range t.nodes {
			if c, is := t.nodes[i].complete[name]; is && times[majority-1].Sub(c.since) >= fencing.HeartbeatInterval/2 {
				delete(t.nodes[i].complete, name)
			}
		}
	}
}

// tell passes on what a majority has told.
func (t *streams) tell(names []fencing.Name) {
	own := t.store.ownStamps()
	t.mu.Lock()
	listener, now, majority := t.listener, time.Now(), majorityOf(len(t.store.nodes))
	asked := make(map[fencing.Name]bool, len(names))
	for _, name := range names {
		asked[name] = true
	}
	t.dropLate(majority)
	told, times, since := map[fencing.Name]int{}, map[fencing.Entry]int{}, now
	for i := range t.nodes {
		for name, c := range t.nodes[i].complete {
			if now.Sub(c.since) > staleTelling {
				delete(t.nodes[i].complete, name)
				continue
			}
			told[name]++
			for _, e := range c.entries {
				if stamp, renamed := own[requestKey{leaseKey{e.Name, e.Lease}, e.Stamp}]; renamed {
					e.Stamp = stamp
				}
				times[e]++
			}
		}
	}
	var complete []fencing.Name
	for name, n := range told {
		if n < majority && asked[name] {
			continue // others are to come to the end of it
		}
		for i := range t.nodes {
			c, is := t.nodes[i].complete[name]
			if is && n >= majority && c.since.Before(since) {
				since = c.since
			}
			delete(t.nodes[i].complete, name)
		}
		if n >= majority && asked[name] {
			complete = append(complete, name)
		}
	}
	t.mu.Unlock()
	var entries []fencing.Entry
	for e, n := range times {
		if n >= majority {
			entries = append(entries, e)
		}
	}
	slices.Sort(complete)
	if listener != nil && (complete != nil || entries != nil) {
		listener.Has(complete, since, entries)
	}
}
