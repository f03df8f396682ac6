package quorum

import (
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// lookBack is how old a change may be that a name not seen lately is told of.
	lookBack = 10 * time.Second

	// maxFollowed is how many names are followed at about 300 bytes each. Beyond it
	// names that nobody holds are forgotten, and beyond mostFollowed those too that
	// nothing happened to lately.
	maxFollowed  = 1 << 14
	mostFollowed = 4 * maxFollowed

	// lookers is how many names are looked at at once: one look takes a NodeTimeout
	// where a node is silent and the others differ.
	lookers = 64

	// maxDirty is how many names wait for one looker, and maxLag for how long. What is
	// beyond is not told: a gap is.
	maxDirty = 256
	maxLag   = 2 * time.Second

	// gapPause is the least time between two gaps that are told.
	gapPause = time.Second
)

// watch tells sinks what happens to locks. No node's event is passed on as it is, for
// one node is not the quorum: it is a hint to look at the name, and what a majority
// remembers of it is compared with what was told before. So an event comes a little
// later than it happened, by maxLag and one look at most, and has the token that counts.
// What can't be told so soon, or may be more than is remembered, is told as a gap.
// Waiters of other gateways are not heard of. A look asks every node, so only names are
// looked at that a sink wants.
type watch struct {
	store *Store

	mu       sync.Mutex // guards what follows, and the lookers
	sinks    []*fencing.EventSink
	stops    []func() // of the nodes
	began    fencing.Instant
	lookers  [lookers]looker
	followed map[fencing.Name]*story
	pruneAt  int // as many are followed when some are forgotten
	run      string
	count    uint64
	gapAt    time.Time // when the last gap was told
	gapDue   bool      // another one will be
}

// looker looks at the names that fall to it, one after the other.
type looker struct {
	dirty   []hint // in order of time
	isDirty map[fencing.Name]bool
	working bool
	looking fencing.Name    // at which one it looks
	ends    []fencing.Event // there meanwhile, at some node
}

// hint is a name to look at, and since when.
type hint struct {
	name fencing.Name
	at   time.Time
}

// story is what was told of a name.
type story struct {
	highest fencing.Token // of a grant that was told
	live    map[leaseToken]fencing.Holder
	ended   map[leaseToken]fencing.Event // of them, at some node
	since   fencing.Instant              // nothing older is told
	looked  fencing.Instant              // when it was looked at last
	missed  fencing.Instant              // what happened before is covered by a gap, or nobody wanted it
}

// Watch implements fencing.Store.
func (s *Store) Watch(sink fencing.EventSink) (stop func()) {
	w := &s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	added := &sink
	if len(w.sinks) == 0 {
		w.began, w.run = fencing.InstantOf(s.options.Clock()), string(fencing.NewStamp())[:8]+"-"
		w.followed, w.pruneAt = map[fencing.Name]*story{}, 0
		for _, node := range s.nodes {
			w.stops = append(w.stops, node.Watch(nodeSink{w}))
		}
	}
	w.sinks = append(slices.Clone(w.sinks), added)
	return sync.OnceFunc(func() { w.remove(added) })
}

func (w *watch) remove(added *fencing.EventSink) {
	w.mu.Lock()
	w.sinks = slices.DeleteFunc(slices.Clone(w.sinks), func(s *fencing.EventSink) bool { return s == added })
	var stops []func()
	if len(w.sinks) == 0 {
		stops, w.stops = w.stops, nil
	}
	w.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// nodeSink hears one node.
type nodeSink struct{ *watch }

// Event is a hint.
func (n nodeSink) Event(e fencing.Event) {
	switch e.Kind {
	case fencing.EventGranted:
		n.hint(e.Name)
	case fencing.EventReleased, fencing.EventExpired, fencing.EventBroken:
		n.ending(e)
		n.hint(e.Name)
	case fencing.EventLeft: // most often that is a try that came to nothing
		if n.ending(e) {
			n.hint(e.Name)
		}
	}
}

// ending notes how a lease that was told, or is being found out about, has ended at a
// node: it may be all that is known of it when the name is looked at next. It reports
// whether there may be such a lease.
func (w *watch) ending(e fencing.Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.looker(e.Name); e.Name == l.looking {
		l.ends = append(l.ends, e)
		return true
	}
	return w.followed[e.Name].ending(e)
}

func (at *story) ending(e fencing.Event) bool {
	if at == nil {
		return false
	}
	for k := range at.live {
		if k.lease == e.Lease && (k.token == e.Token || e.Kind == fencing.EventLeft) {
			at.ended[k] = e
			return true
		}
	}
	return false
}

// Gap passes a gap on: what one node did not tell may be what made the majority.
func (n nodeSink) Gap() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.miss()
}

// miss has a gap told: at once, or soon after the last one. The caller holds mu.
func (w *watch) miss() {
	if len(w.sinks) > 0 && !w.gapDue {
		w.gapDue = w.store.spawn(w.tellGap)
	}
}

func (w *watch) tellGap() {
	w.mu.Lock()
	rest := gapPause - w.store.options.Clock().Sub(w.gapAt)
	w.mu.Unlock()
	if rest > 0 && !w.store.idle(rest) {
		return
	}
	w.mu.Lock()
	w.gapDue, w.gapAt = false, w.store.options.Clock() // what is missed from now on is the next one's
	sinks := w.sinks
	w.mu.Unlock()
	for _, sink := range sinks {
		(*sink).Gap()
	}
}

// Wants implements fencing.EventSink.
func (n nodeSink) Wants(name fencing.Name) bool { return n.wanted(name) }

// wanted reports whether a sink wants a name.
func (w *watch) wanted(name fencing.Name) bool {
	w.mu.Lock()
	sinks := w.sinks
	w.mu.Unlock()
	return slices.ContainsFunc(sinks, func(sink *fencing.EventSink) bool { return (*sink).Wants(name) })
}

var lookerSeed = maphash.MakeSeed()

// looker returns who looks at a name: events of one name stay in order.
func (w *watch) looker(name fencing.Name) *looker {
	return &w.lookers[maphash.String(lookerSeed, string(name))%lookers]
}

// hint has a name looked at soon, if anybody wants to hear of it.
func (w *watch) hint(name fencing.Name) {
	wanted := w.wanted(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !wanted {
		w.leaveOut(name)
		return
	}
	l := w.looker(name)
	if len(w.sinks) == 0 || l.isDirty[name] {
		return
	}
	if len(l.dirty) >= maxDirty {
		w.drop(l, l.dirty)
		l.dirty = nil
	}
	if l.isDirty == nil {
		l.isDirty = map[fencing.Name]bool{}
	}
	l.isDirty[name] = true
	l.dirty = append(l.dirty, hint{name, w.store.options.Clock()})
	if !l.working {
		l.working = w.store.spawn(func() { w.look(l) })
	}
}

// drop leaves out names that can't be looked at in time. The caller holds mu.
func (w *watch) drop(l *looker, hints []hint) {
	for _, h := range hints {
		delete(l.isDirty, h.name)
		w.leaveOut(h.name)
	}
	w.miss()
}

// leaveOut has what happened to a name until now not told any more. The caller holds mu.
func (w *watch) leaveOut(name fencing.Name) {
	if at := w.followed[name]; at != nil {
		at.missed = fencing.InstantOf(w.store.options.Clock())
	}
}

// look looks at the names that are dirty, until none is.
func (w *watch) look(l *looker) {
	for {
		open := w.store.pause(w.store.options.settle)
		w.mu.Lock()
		hints := l.dirty
		l.dirty = nil
		if len(hints) == 0 || !open {
			l.working = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		for i, h := range hints {
			w.mu.Lock()
			late := w.store.options.Clock().Sub(h.at) > maxLag
			if late {
				w.drop(l, hints[i:])
			} else {
				delete(l.isDirty, h.name)
				l.looking, l.ends = h.name, nil
			}
			w.mu.Unlock()
			if late {
				break
			}
			w.lookAt(l, h.name)
		}
	}
}

func (w *watch) lookAt(l *looker, name fencing.Name) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*w.store.options.NodeTimeout)
	out, err := w.store.History(ctx, fencing.HistoryRequest{Name: name, Holders: allHolders})
	cancel()
	w.mu.Lock()
	l.looking = ""
	if err != nil {
		w.miss()
		w.mu.Unlock()
		return
	}
	sinks := w.sinks
	for _, e := range l.ends {
		w.followed[name].ending(e)
	}
	events := w.compare(name, &out)
	for _, e := range l.ends {
		w.followed[name].ending(e)
	}
	for i := range events {
		w.count++
		events[i].ID = w.run + strconv.FormatUint(w.count, 10)
	}
	w.mu.Unlock()
	for i := range events {
		for _, sink := range sinks {
			(*sink).Event(events[i])
		}
	}
}

// shows reports whether a lease is live or past.
func shows(out *fencing.Outcome, k leaseToken) bool {
	is := func(h *fencing.Holder) bool { return h.Lease == k.lease && h.Token == k.token }
	return slices.ContainsFunc(out.Lock.Holders, func(h fencing.Holder) bool { return is(&h) }) ||
		slices.ContainsFunc(out.Past, func(e fencing.Ended) bool { return is(&e.Holder) })
}

func (at *story) forget(k leaseToken) {
	delete(at.live, k)
	delete(at.ended, k)
}

// compare returns what has happened to a name since it was looked at last. The
// caller holds mu.
func (w *watch) compare(name fencing.Name, out *fencing.Outcome) []fencing.Event {
	at := w.followed[name]
	if at == nil {
		at = &story{live: map[leaseToken]fencing.Holder{}, ended: map[leaseToken]fencing.Event{}, since: max(w.began, out.Now.Add(-lookBack))}
		w.followed[name] = at
	}
	if n := len(out.Past); n >= fencing.MaxHistory {
		if e := &out.Past[n-1]; e.Holder.Token > at.highest && e.At >= max(at.since, at.missed) {
			w.miss() // of what was before nobody knows
		}
	}
	var events []fencing.Event
	add := func(kind fencing.EventKind, h *fencing.Holder, when fencing.Instant) {
		if when < at.missed {
			return
		}
		events = append(events, fencing.Event{
			Kind: kind, Name: name, Lease: h.Lease, Owner: h.Owner, Mode: h.Mode, Token: h.Token, At: when,
		})
	}
	grant := func(h *fencing.Holder) {
		k := leaseToken{h.Lease, h.Token}
		if _, known := at.live[k]; !known && h.Token > at.highest && h.AcquiredAt >= at.since {
			add(fencing.EventGranted, h, h.AcquiredAt)
		}
		at.live[k] = *h
	}
	var left []fencing.Holder // grants that were taken back: nobody remembers those
	for _, k := range slices.SortedFunc(maps.Keys(at.live), func(a, b leaseToken) int { return cmp.Compare(a.token, b.token) }) {
		if shows(out, k) {
			continue
		}
		h := at.live[k]
		switch e := at.ended[k]; {
		case e.Kind == fencing.EventLeft:
			h.Token = 0
			left = append(left, h)
		case e.Kind != "": // nobody remembers it any more
			h.Mode = e.Mode // it may have been downgraded
			add(e.Kind, &h, e.At)
		case !h.Live(out.Now):
			add(fencing.EventExpired, &h, h.ExpiresAt)
		default: // a node has forgotten it: it may be brought back there, or end
			continue
		}
		at.forget(k)
	}
	highest := at.highest
	for i := len(out.Past) - 1; i >= 0; i-- {
		e := &out.Past[i]
		k := leaseToken{e.Holder.Lease, e.Holder.Token}
		_, known := at.live[k]
		if !known && (e.Holder.Token <= at.highest || e.At < at.since) {
			continue
		}
		grant(&e.Holder)
		add(fencing.EventKind(e.Reason), &e.Holder, e.At)
		at.forget(k)
		highest = max(highest, e.Holder.Token)
	}
	for i := range left {
		add(fencing.EventLeft, &left[i], out.Now)
	}
	for i := range out.Lock.Holders {
		grant(&out.Lock.Holders[i])
		delete(at.ended, leaseToken{out.Lock.Holders[i].Lease, out.Lock.Holders[i].Token}) // at one node only
		highest = max(highest, out.Lock.Holders[i].Token)
	}
	at.highest, at.missed = highest, 0
	if at.looked = out.Now; len(w.followed) > max(w.pruneAt, maxFollowed) {
		w.prune(out.Now)
	}
	return events
}

// prune forgets names that nobody holds, if all that would be told of them again is too
// old for that. The caller holds mu.
func (w *watch) prune(now fencing.Instant) {
	maps.DeleteFunc(w.followed, func(_ fencing.Name, at *story) bool {
		if now < at.looked.Add(lookBack) {
			return false
		}
		for _, h := range at.live {
			if h.Live(now) {
				return false
			}
		}
		return true
	})
	if len(w.followed) > mostFollowed { // what is told of them later is less, but true
		maps.DeleteFunc(w.followed, func(_ fencing.Name, at *story) bool { return now >= at.looked.Add(lookBack) })
	}
	w.pruneAt = 2 * len(w.followed)
}
