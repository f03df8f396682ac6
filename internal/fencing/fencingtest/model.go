package fencingtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// idleNext is when Model.Expire wants to be called again with nothing to wait for.
const idleNext = time.Minute

// Model is a fencing.Store that is nothing but fencing.Step behind a mutex. It
// is what stores are compared with, and a store for tests that need none.
type Model struct {
	memory *memory
	clock  func() fencing.Instant

	gateway  fencing.Gateway
	listener fencing.Listener

	guarded bool
	limit   int           // of a step: see fencing.Guard; only Expire and Heartbeat go on then
	holders int           // most of a name: see fencing.Guard
	skew    time.Duration // the gateway's clock is ahead of the store's by this
	floor   fencing.Token // the highest token this handle has seen
	heeds   bool          // it refuses to be granted by a store that has forgotten
}

// memory is what the handles of one model share.
type memory struct {
	mu      sync.Mutex
	state   *fencing.State
	step    stepFunc
	arrive  arriveFunc
	server  string // which run of which server it stands for
	handles []*Model
	sinks   map[*watcher]bool
	events  int // told so far
}

// watcher is a sink that watches.
type watcher struct{ sink fencing.EventSink }

// stepFunc is fencing.Step, or a broken copy of it in the tests of this package.
type stepFunc func(*fencing.State, fencing.Instant, fencing.Guard, fencing.Op) fencing.Outcome

// arriveFunc is fencing.Arrive, or a broken copy of it.
type arriveFunc func(*fencing.State, fencing.Instant, fencing.Arrival) fencing.Quarantine

// NewModel returns an empty store that reads the time from clock and checks no
// guard.
func NewModel(clock func() fencing.Instant) *Model {
	m := &Model{
		memory:  &memory{state: fencing.NewState(), step: fencing.Step, arrive: fencing.Arrive, server: string(fencing.NewStamp()), sinks: map[*watcher]bool{}},
		clock:   clock,
		gateway: "0000000000000001",
	}
	m.memory.handles = []*Model{m}
	return m
}

// second returns another handle on the same memory.
func (m *Model) second() *Model {
	c := *m
	c.gateway = fencing.Gateway(fmt.Sprintf("%016x", len(m.memory.handles)+1))
	m.memory.handles = append(m.memory.handles, &c)
	return &c
}

// Examine finds nothing.
func (m *Model) Examine(context.Context) ([]fencing.Finding, error) { return nil, nil }

// Second returns another handle on the same memory, as a second gateway has it; called again, a third.
// It is called before the model is used.
func (m *Model) Second() *Model { return m.second() }

// Snapshot returns a copy of all that the model remembers.
func (m *Model) Snapshot() *fencing.State {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	return m.memory.state.Clone()
}

// Capabilities says that the model has a queue, and may forget: see Arrive.
func (m *Model) Capabilities() fencing.Capabilities {
	return fencing.Capabilities{Queue: true, LosesMessages: true, LosesGrants: true, Tells: true}
}

// Listen says who hears of this handle's waiters.
func (m *Model) Listen(listener fencing.Listener) {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	m.listener = listener
}

// Heartbeat says that this handle lives, and attends to what is due on names.
func (m *Model) Heartbeat(ctx context.Context, names []fencing.Name) error {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return err
	}
	began, now := time.Now(), m.clock()
	entries, refusal := fencing.Beat(m.memory.state, now, m.guard(now))
	if refusal != nil {
		return refusal
	}
	if m.listener != nil {
		m.listener.Has(names, began, entries)
	}
	for _, name := range names {
		if m.memory.state.Records[name] != nil && m.memory.state.Due(name) <= now {
			m.attend(name)
		}
	}
	return nil
}

// Watch tells sink of every event.
func (m *Model) Watch(sink fencing.EventSink) (stop func()) {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	w := &watcher{sink}
	m.memory.sinks[w] = true
	return func() {
		m.memory.mu.Lock()
		defer m.memory.mu.Unlock()
		delete(m.memory.sinks, w)
	}
}

// Do carries out an operation, also a claim.
func (m *Model) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	switch r := op.(type) {
	case fencing.AcquireRequest:
		if r.Metadata != nil {
			r.Metadata = maps.Clone(r.Metadata)
			op = r
		}
	case fencing.ClaimRequest:
	default:
		if !fencing.Served(op) {
			return fencing.Outcome{}, fencing.UnservedError(op)
		}
	}
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return fencing.Outcome{}, err
	}
	out := m.decide(op)
	for more := out.More && m.limit == 0; more; {
		more = m.attend(op.LockName()).More
	}
	if _, acquires := op.(fencing.AcquireRequest); acquires && m.limit == 0 && out.AskAgain() {
		out = m.decide(op)
	}
	return out.Result()
}

// decide runs one step, and tells of it. It is called with the mutex held.
func (m *Model) decide(op fencing.Op) fencing.Outcome {
	asked, now := time.Now(), m.clock()
	out := m.memory.step(m.memory.state, now, m.guard(now), op)
	out.Asked = asked
	m.see(&out)
	m.announce(op.LockName(), &out)
	return out
}

// attend does what time has brought about on a name. It is called with the mutex
// held.
func (m *Model) attend(name fencing.Name) fencing.Outcome {
	now := m.clock()
	out := m.memory.step(m.memory.state, now, m.guard(now), fencing.ExpireRequest{Name: name})
	m.announce(name, &out)
	return out
}

// announce tells whom a step concerns. It is called with the mutex held.
func (m *Model) announce(name fencing.Name, out *fencing.Outcome) {
	for i := range out.Granted {
		if g := &out.Granted[i]; g.Holder.Token != out.Holder.Token {
			m.tell(g, out.Now)
		}
	}
	if r := out.Replaced; r != nil {
		for _, h := range m.memory.handles {
			if h.gateway == r.Gateway && h.listener != nil {
				h.listener.Replaced(name, r.Stamp)
			}
		}
	}
	if e := out.Evicted; e != nil && e.Request != nil {
		for _, h := range m.memory.handles {
			if h.gateway == e.Request.Gateway && h.listener != nil {
				h.listener.Ask(name, e.Request.Stamp)
			}
		}
	}
	if len(m.memory.sinks) == 0 {
		return
	}
	for _, event := range out.Events(name) {
		m.memory.events++
		event.ID = strconv.Itoa(m.memory.events)
		for w := range m.memory.sinks {
			w.sink.Event(event)
		}
	}
}

func (m *Model) tell(g *fencing.Grant, now fencing.Instant) {
	for _, h := range m.memory.handles {
		if h.gateway == g.Gateway && h.listener != nil {
			h.listener.Granted(*g, now, time.Now())
		}
	}
}

// usable is called with the mutex held.
func (m *Model) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fencing.Unavailable(err)
	}
	if m.clock == nil {
		return fencing.Unavailable(errors.New("the store is closed"))
	}
	return nil
}

func (m *Model) guard(now fencing.Instant) fencing.Guard {
	if !m.guarded {
		return fencing.Guard{Gateway: m.gateway, StepLimit: m.limit, MaxHolders: m.holders}
	}
	return fencing.Guard{Gateway: m.gateway, StepLimit: m.limit, MaxHolders: m.holders, Sent: now.Add(m.skew), MaxSkew: MaxSkew, Floor: m.floor, HeedLoss: m.heeds}
}

func (m *Model) see(out *fencing.Outcome) {
	m.floor = max(m.floor, out.Holder.Token)
	if out.Lock != nil {
		m.floor = max(m.floor, out.Lock.LastToken)
	}
	if out.Err != nil {
		m.floor = max(m.floor, out.Err.CurrentToken)
		if out.Err.Lock != nil {
			m.floor = max(m.floor, out.Err.Lock.LastToken)
		}
	}
}

// List returns live locks in the byte order of their names.
func (m *Model) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return fencing.ListPage{}, err
	}
	now := m.clock()
	var page fencing.ListPage
	for _, name := range slices.Sorted(maps.Keys(m.memory.state.Records)) {
		if r.Count && m.memory.state.Records[name].Holders.Len() > 0 && strings.HasPrefix(string(name), r.Prefix) {
			page.Total++
		}
		if name <= r.After || page.Next != "" {
			continue
		}
		lock := m.memory.step(m.memory.state, now, m.guard(now), fencing.InspectRequest{Name: name}).Lock
		if !lock.Held() || !r.Match(lock) {
			continue
		}
		if len(page.Locks) == r.Limit {
			page.Next = page.Locks[r.Limit-1].Name
			continue
		}
		r.Trim(lock)
		page.Locks = append(page.Locks, *lock)
	}
	return page, nil
}

// Expire ends leases whose time has run out, those first that ran out first.
func (m *Model) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return fencing.Expiry{}, err
	}
	state, now := m.memory.state, m.clock()
	guard := m.guard(now)
	if guard.Sent != 0 && now.Sub(guard.Sent).Abs() > guard.MaxSkew {
		return fencing.Expiry{}, fencing.SkewError(guard, now)
	}
	byDue := func(a, b fencing.Name) int { return cmp.Or(cmp.Compare(state.Due(a), state.Due(b)), cmp.Compare(a, b)) }
	var expiry fencing.Expiry
	for i, name := range slices.SortedFunc(maps.Keys(state.Records), byDue) {
		if i == limit || state.Due(name) > now {
			break
		}
		out := m.attend(name)
		expiry.Ended = append(expiry.Ended, out.Ended...)
	}
	expiry.Next = idleNext
	for name := range state.Records { // what was handed on runs out as well
		expiry.Next = min(expiry.Next, max(0, state.Due(name).Sub(now)))
	}
	state.PruneTombstones(now)
	return expiry, nil
}

// Stats counts what the model holds.
func (m *Model) Stats(ctx context.Context) (fencing.Stats, error) {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return fencing.Stats{}, err
	}
	stats := fencing.Stats{Quarantine: max(0, m.memory.state.Quarantine.Until.Sub(m.clock()))}
	for _, r := range m.memory.state.Records {
		if r.Holders.Len() > 0 {
			stats.Held++
		}
	}
	return stats, nil
}

// Check fails when the model is closed.
func (m *Model) Check(ctx context.Context) error {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	return m.usable(ctx)
}

// Close makes this handle refuse to serve; what it remembers stays.
func (m *Model) Close() error {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	m.clock = nil
	return nil
}
