package quorum

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// maxLifetimes is how many grants are followed, at about 400 bytes each. Beyond it the
	// oldest are forgotten.
	maxLifetimes = 1 << 14

	// tellTime is how long after the first node the last one may tell what a majority has
	// done at about the same time.
	tellTime = 2 * time.Second

	// keepTime is how long what is over is remembered where a node has not told of it: it
	// may end what it still has later than the others.
	keepTime = fencing.TombstoneTTL

	// gapPause is the least time between two gaps that are told.
	gapPause = time.Second
)

// events tells sinks what happens to locks. What one node tells counts for that node
// alone: an event is told once a majority of the nodes has told it, so that what a
// minority did, or a try that came to nothing, is not heard of, and nobody is asked. What
// nodes did not tell that could not be heard, or have not been heard since, is a gap.
type events struct {
	store *Store

	switching sync.Mutex // held while the nodes' watches start or stop, and before mu: nodes call back
	stops     []func()   // of the nodes

	mu        sync.Mutex // guards what follows, and is held while sinks are told: events stay in order
	sinks     []fencing.EventSink
	lifetimes map[leaseKey][]*lifetime            // by the tokens of a lease id, which are few
	order     []*lifetime                         // oldest first; those that are forgotten are at most as many again
	count     int                                 // of lifetimes
	live      map[fencing.Name]map[*lifetime]bool // the grants that were told, and not how they ended
	heard     [maxNodes]time.Time                 // when a node has told anything last
	sent      uint64                              // events so far
	gapAt     time.Time                           // when the last gap was told
	gapDue    bool                                // another one will be
}

// lifetime is what nodes have told of a grant.
type lifetime struct {
	leaseKey
	token     fencing.Token
	granted   nodeSet       // who has granted it
	undone    nodeSet       // and taken it back
	ended     nodeSet       // or ended it
	end       fencing.Event // the most telling
	notices   [maxNodes]int // that each node has given
	noticed   int           // how many were told
	told      bool          // that it was granted
	over      bool          // how it ended was told
	forgotten bool
	doubted   bool      // a gap covers what was not told
	since     time.Time // when the first node told what is not told yet
}

// Watch implements fencing.Store.
func (s *Store) Watch(sink fencing.EventSink) (stop func()) {
	w := &s.events
	w.switching.Lock()
	defer w.switching.Unlock()
	added := &watcher{sink}
	w.mu.Lock()
	w.sinks = append(slices.Clone(w.sinks), added)
	first := len(w.sinks) == 1
	if first {
		w.lifetimes, w.live = map[leaseKey][]*lifetime{}, map[fencing.Name]map[*lifetime]bool{}
		w.order, w.count = nil, 0
	}
	w.mu.Unlock()
	if first {
		for i, node := range s.nodes {
			w.stops = append(w.stops, node.Watch(nodeSink{w, i}))
		}
	}
	return sync.OnceFunc(func() { w.remove(added) })
}

// watcher is one call of Watch.
type watcher struct{ fencing.EventSink }

func (w *events) remove(added *watcher) {
	w.switching.Lock()
	defer w.switching.Unlock()
	w.mu.Lock()
	w.sinks = slices.DeleteFunc(slices.Clone(w.sinks), func(s fencing.EventSink) bool { return s == added })
	last := len(w.sinks) == 0
	w.mu.Unlock()
	if last {
		for _, stop := range w.stops {
			stop()
		}
		w.stops = nil
	}
}

// nodeSink hears one node.
type nodeSink struct {
	*events
	node int
}

// Event counts what a node has told.
func (n nodeSink) Event(e fencing.Event) {
	w, at, key := n.events, nodeSet(1)<<n.node, leaseKey{e.Name, e.Lease}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard[n.node] = w.store.options.Clock()
	switch {
	case len(w.sinks) == 0:
	case e.Kind == fencing.EventLeft:
		for _, r := range slices.Clone(w.lifetimes[key]) {
			w.undone(r, at, e)
		}
	case !e.Claimed: // the node has issued a token by itself: it counts for nothing
	case e.Kind == fencing.EventGranted:
		w.granted(w.lifetime(key, e.Token), at, e)
	case e.Kind == fencing.EventNotice:
		w.noticed(w.lifetime(key, e.Token), n.node, e)
	default:
		w.ended(w.lifetime(key, e.Token), at, e)
	}
}

// Gap passes a gap on: what one node did not tell may be what makes a majority.
func (n nodeSink) Gap() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.miss()
}

func (w *events) majority(of nodeSet) bool { return of.count() >= majorityOf(len(w.store.nodes)) }

// granted notes that nodes have granted a lease. An exclusive one can't be before all
// others are over, even if that was not told by a majority yet.
func (w *events) granted(r *lifetime, at nodeSet, e fencing.Event) {
	if r.granted |= at; r.told || r.over || !w.majority(r.granted&^r.undone) {
		return
	}
	if e.Mode == fencing.ModeExclusive {
		for _, other := range slices.SortedFunc(maps.Keys(w.live[r.name]), func(a, b *lifetime) int { return cmp.Compare(a.token, b.token) }) {
			if other.ended == 0 {
				w.miss() // nobody knows what became of it
				w.unlive(other)
				continue
			}
			w.tellEnd(other)
		}
	}
	r.told, r.doubted = true, false
	if w.live[r.name] == nil {
		w.live[r.name] = map[*lifetime]bool{}
	}
	w.live[r.name][r] = true
	w.tell(e)
}

// noticed notes that a node has given notice to a lease, once more if it has done so before. It
// is told when a majority has as often. One that a silent node may have given is no gap: whom
// it concerns hears of it when the lease is renewed, and the end of the lease is told.
func (w *events) noticed(r *lifetime, node int, e fencing.Event) {
	r.notices[node]++
	counts := r.notices
	slices.Sort(counts[:])
	if often := counts[len(counts)-majorityOf(len(w.store.nodes))]; !r.over && often > r.noticed {
		r.noticed = often
		w.tell(e)
	}
}

// ended notes that nodes have ended a lease, which they need not have told of before.
func (w *events) ended(r *lifetime, at nodeSet, e fencing.Event) {
	if r.ended == 0 || weight(fencing.Reason(e.Kind)) > weight(fencing.Reason(r.end.Kind)) {
		r.end = e
	}
	if r.ended|r.undone == 0 {
		r.since = w.store.options.Clock()
	}
	if r.ended |= at; !r.over && w.majority(r.ended) {
		w.tellEnd(r)
	}
	if r.ended == allNodes(len(w.store.nodes)) {
		w.forget(r)
	}
}

func (w *events) tellEnd(r *lifetime) {
	r.over = true
	w.unlive(r)
	w.tell(r.end)
}

// undone notes that nodes have taken a grant back, if they had granted it.
func (w *events) undone(r *lifetime, at nodeSet, e fencing.Event) {
	if r.granted&at == 0 || r.ended&at != 0 {
		return
	}
	if r.told && r.ended|r.undone == 0 {
		r.since = w.store.options.Clock()
	}
	r.undone |= at
	if r.told && !r.over && w.majority(r.undone) {
		r.over = true
		w.unlive(r)
		w.tell(e)
	}
	if r.granted == r.undone && (!r.told || r.over) {
		w.forget(r)
	}
}

// tell passes an event on, under an id of this gateway's own: others may tell it in another order.
func (w *events) tell(e fencing.Event) {
	w.sent++
	e.ID, e.Claimed = string(w.store.self)+"-"+strconv.FormatUint(w.sent, 10), false
	for _, sink := range w.sinks {
		sink.Event(e)
	}
}

// lifetime returns what is known of a grant.
func (w *events) lifetime(key leaseKey, token fencing.Token) *lifetime {
	for _, r := range w.lifetimes[key] {
		if r.token == token {
			return r
		}
	}
	r := &lifetime{leaseKey: key, token: token, since: w.store.options.Clock()}
	w.lifetimes[key] = append(w.lifetimes[key], r)
	w.order = append(w.order, r)
	w.count++
	for w.count > maxLifetimes {
		oldest := w.order[0]
		w.order = w.order[1:]
		if oldest.forgotten {
			continue
		}
		if r.since.Sub(oldest.since) < tellTime && w.mayBeMore(oldest, allNodes(len(w.store.nodes))) {
			w.miss()
		}
		w.forget(oldest)
	}
	if len(w.order) > 2*w.count {
		w.order = slices.DeleteFunc(w.order, func(r *lifetime) bool { return r.forgotten })
	}
	return r
}

// mayBeMore reports whether a majority has done what is not told yet, if nodes that have
// not told it did so.
func (w *events) mayBeMore(r *lifetime, silent nodeSet) bool {
	told := r.granted &^ r.undone
	if r.told || r.ended != 0 {
		told = r.ended | r.undone
	}
	return !r.over && !r.doubted && told != 0 && w.majority(told|silent)
}

// tellPossibleGap has a gap told where nodes that have not been heard since may have made a
// majority, and forgets what comes to nothing more.
func (w *events) tellPossibleGap() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.store.options.Clock()
	for _, r := range w.order {
		age := now.Sub(r.since)
		if r.forgotten || age < tellTime {
			continue
		}
		if age >= keepTime && !w.live[r.name][r] {
			w.forget(r)
			continue
		}
		silent := nodeSet(0)
		for i := range w.store.nodes {
			if w.heard[i].Before(r.since.Add(tellTime / 2)) {
				silent |= 1 << i
			}
		}
		if w.mayBeMore(r, silent) {
			r.doubted = true
			w.miss()
		}
	}
}

func (w *events) unlive(r *lifetime) {
	if delete(w.live[r.name], r); len(w.live[r.name]) == 0 {
		delete(w.live, r.name)
	}
}

func (w *events) forget(r *lifetime) {
	if r.forgotten {
		return
	}
	r.forgotten = true
	w.count--
	w.unlive(r)
	rest := slices.DeleteFunc(w.lifetimes[r.leaseKey], func(other *lifetime) bool { return other == r })
	if w.lifetimes[r.leaseKey] = rest; len(rest) == 0 {
		delete(w.lifetimes, r.leaseKey)
	}
}

// miss has a gap told: at once, or soon after the last one. The caller holds mu.
func (w *events) miss() {
	if len(w.sinks) > 0 && !w.gapDue {
		w.gapDue = w.store.spawn(w.tellGap)
	}
}

func (w *events) tellGap() {
	w.mu.Lock()
	rest := gapPause - w.store.options.Clock().Sub(w.gapAt)
	w.mu.Unlock()
	if rest > 0 && !w.store.idle(rest) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gapDue, w.gapAt = false, w.store.options.Clock() // what is missed from now on is the next one's
	for _, sink := range w.sinks {
		sink.Gap()
	}
}
