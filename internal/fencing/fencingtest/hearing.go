package fencingtest

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// patience is how long a message may take: it bounds how long a failing test
// lasts, and is never waited for otherwise. Tests of the suite shorten it.
var patience = 5 * time.Second

// message is what a gateway was told.
type message struct {
	name     fencing.Name
	holder   fencing.Holder // of a grant
	replaced fencing.Stamp  // or the request that was replaced
	asks     fencing.Stamp  // or the request that is to ask again
	untimed  bool           // a firm grant without the time at which it was asked for
}

// same reports whether two messages, of whatever side, are about the same.
func (m *message) same(n *message) bool {
	return m.name == n.name && m.replaced == n.replaced && m.asks == n.asks && m.holder.Lease == n.holder.Lease && m.holder.Provisional == n.holder.Provisional
}

// recorder is the listener of a gateway.
type recorder struct {
	mu       sync.Mutex
	messages []message
	entries  []fencing.Entry // of the last heartbeat
	changed  chan struct{}
}

func newRecorder() *recorder {
	return &recorder{changed: make(chan struct{}, 1)}
}

func (r *recorder) Granted(g fencing.Grant, _ fencing.Instant, asked time.Time) {
	r.record(func() {
		r.messages = append(r.messages, message{name: g.Name, holder: g.Holder, untimed: !g.Holder.Provisional && asked.IsZero()})
	})
}

func (r *recorder) Replaced(name fencing.Name, stamp fencing.Stamp) {
	r.record(func() { r.messages = append(r.messages, message{name: name, replaced: stamp}) })
}

func (r *recorder) Ask(name fencing.Name, stamp fencing.Stamp) {
	r.record(func() { r.messages = append(r.messages, message{name: name, asks: stamp}) })
}

func (r *recorder) Has(_ []fencing.Name, _ time.Time, entries []fencing.Entry) {
	r.record(func() { r.entries = append(r.entries, entries...) })
}

func (r *recorder) Gap() {}

// had returns the entries of the heartbeat that was made since the last call.
func (r *recorder) had() []fencing.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.entries
	r.entries = nil
	slices.SortFunc(all, func(a, b fencing.Entry) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Lease, b.Lease))
	})
	return all
}

func (r *recorder) record(what func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// await waits until done, which is called with the mutex held.
func (r *recorder) await(done func() bool) bool {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		r.mu.Lock()
		ok := done()
		r.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-r.changed:
		case <-deadline.C:
			return false
		}
	}
}

// take returns what was heard since the last call, each message once, the grants
// by name and token.
func (r *recorder) take() []message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var once []message
	for i := range r.messages {
		m := &r.messages[i]
		if !slices.ContainsFunc(once, func(n message) bool { return m.same(&n) && m.holder.Token == n.holder.Token }) {
			once = append(once, *m)
		}
	}
	r.messages = nil
	slices.SortStableFunc(once, func(a, b message) int {
		return compareGrants(a.name, a.holder.Token, b.name, b.holder.Token)
	})
	return once
}

// listen installs a listener at every gateway of both sides.
func (d *comparison) listen() {
	for of, side := range []Backend{d.store, d.model} {
		for handle := range 2 {
			if handle == 1 && !d.caps.Gateways {
				d.recorders[of][1] = d.recorders[of][0]
				continue
			}
			d.recorders[of][handle] = newRecorder()
			side.Store(handle).Listen(d.recorders[of][handle])
		}
	}
}

// hear returns what the gateways of both sides were told, and waits until that of
// the store was told as much: messages may be on their way.
func (d *comparison) hear(handle int) (r, want result) {
	want = result{now: d.now, heard: d.recorders[ofModel][handle].take()}
	told := d.recorders[ofStore][handle]
	told.await(func() bool {
		for i := range want.heard {
			w := &want.heard[i]
			if !slices.ContainsFunc(told.messages, func(m message) bool {
				return m.same(w) && d.compareToken("", w.name, m.holder.Token, w.holder.Token) == nil
			}) {
				return false
			}
		}
		return true
	})
	return result{now: d.now, heard: told.take()}, want
}
