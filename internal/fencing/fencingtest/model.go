package fencingtest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
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

	guarded bool
	skew    time.Duration // the gateway's clock is ahead of the store's by this
	floor   fencing.Token // the highest token this handle has seen
}

// memory is what the handles of one model share.
type memory struct {
	mu    sync.Mutex
	state *fencing.State
	step  stepFunc
}

// stepFunc is fencing.Step, or a broken copy of it in the tests of this package.
type stepFunc func(*fencing.State, fencing.Instant, fencing.Guard, fencing.Op) fencing.Outcome

var _ fencing.Store = (*Model)(nil)

// NewModel returns an empty store that reads the time from clock and checks no
// guard.
func NewModel(clock func() fencing.Instant) *Model {
	return &Model{memory: &memory{state: fencing.NewState(), step: fencing.Step}, clock: clock}
}

// Snapshot returns a copy of all that the model remembers.
func (m *Model) Snapshot() *fencing.State {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	return m.memory.state.Clone()
}

// Acquire asks for a lease.
func (m *Model) Acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	r.Metadata = maps.Clone(r.Metadata)
	return m.do(ctx, r)
}

// Renew sets the remaining time of a lease.
func (m *Model) Renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, error) {
	return m.do(ctx, r)
}

// Release ends a lease.
func (m *Model) Release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	return m.do(ctx, r)
}

// TakeBack undoes a grant that could not be delivered.
func (m *Model) TakeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, error) {
	return m.do(ctx, r)
}

// Break ends the live lease with a token.
func (m *Model) Break(ctx context.Context, r fencing.BreakRequest) (fencing.Outcome, error) {
	return m.do(ctx, r)
}

// Inspect returns the public view of a name.
func (m *Model) Inspect(ctx context.Context, r fencing.InspectRequest) (fencing.Outcome, error) {
	return m.do(ctx, r)
}

func (m *Model) do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return fencing.Outcome{}, err
	}
	now := m.clock()
	out := m.memory.step(m.memory.state, now, m.guard(now), op)
	m.see(&out)
	return out.Result()
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
		return fencing.Guard{}
	}
	return fencing.Guard{Sent: now.Add(m.skew), MaxSkew: MaxSkew, Floor: m.floor}
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
		if name <= r.After {
			continue
		}
		lock := m.memory.step(m.memory.state, now, m.guard(now), fencing.InspectRequest{Name: name}).Lock
		if !lock.Held() || !r.Match(lock) {
			continue
		}
		if len(page.Locks) == r.Limit {
			page.Next = page.Locks[r.Limit-1].Name
			break
		}
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
	names := slices.SortedFunc(maps.Keys(state.Records), func(a, b fencing.Name) int {
		return cmp.Or(cmp.Compare(state.Records[a].Due(), state.Records[b].Due()), cmp.Compare(a, b))
	})
	expiry := fencing.Expiry{Next: idleNext}
	for _, name := range names {
		if due := state.Records[name].Due(); due > now {
			expiry.Next = due.Sub(now)
			break
		}
		if len(expiry.Ended) == limit {
			expiry.Next = 0
			break
		}
		out := m.memory.step(state, now, guard, fencing.ExpireRequest{Name: name})
		expiry.Ended = append(expiry.Ended, out.Ended...)
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
	var stats fencing.Stats
	for _, r := range m.memory.state.Records {
		if len(r.Holders) > 0 {
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

// modelBackend is a Backend of two handles on one Model.
type modelBackend struct {
	now     fencing.Instant
	handles [2]*Model
	wrap    func(fencing.Store) fencing.Store // nil, or a defect planted above Step
}

// openModel returns an Open of models. A guarded model behaves as a store with a
// clock of its own.
func openModel(guarded bool) Open {
	return func(testing.TB) Backend { return newModelBackend(guarded) }
}

func newModelBackend(guarded bool) *modelBackend {
	b := &modelBackend{now: Epoch}
	first := NewModel(func() fencing.Instant { return b.now })
	first.guarded = guarded
	second := *first
	b.handles = [2]*Model{first, &second}
	return b
}

func (b *modelBackend) Store(handle int) fencing.Store {
	if b.wrap != nil {
		return b.wrap(b.handles[handle])
	}
	return b.handles[handle]
}

func (b *modelBackend) memory() *memory { return b.handles[0].memory }

func (b *modelBackend) SetTime(now fencing.Instant) {
	b.memory().mu.Lock()
	defer b.memory().mu.Unlock()
	b.now = now
}

func (b *modelBackend) SetSkew(handle int, skew time.Duration) { b.handles[handle].skew = skew }

// Flush forgets everything but what the handles have seen.
func (b *modelBackend) Flush() {
	b.memory().mu.Lock()
	defer b.memory().mu.Unlock()
	b.memory().state = fencing.NewState()
}
