package fencingtest

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// modelBackend is a Backend of two handles on one Model.
type modelBackend struct {
	now     fencing.Instant
	handles [2]*Model
	wrap    func(fencing.Store) fencing.Store // nil, or a defect planted above Step
}

// openModel returns an Open of models that can do what caps say.
func openModel(caps Capabilities) Open {
	return func(testing.TB) Backend { return newModelBackend(caps) }
}

func newModelBackend(caps Capabilities) *modelBackend {
	b := &modelBackend{now: Epoch}
	first := NewModel(func() fencing.Instant { return b.now })
	first.guarded = caps.OwnClock || caps.Flush
	first.limit, first.holders = caps.StepLimit, caps.MaxHolders
	b.handles = [2]*Model{first, first}
	if caps.Gateways {
		b.handles[1] = first.second()
	}
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

// Arrive notes who serves.
func (b *modelBackend) Arrive(handle int, _ fencing.Name, a fencing.Arrival) (fencing.Quarantine, error) {
	return b.handles[handle].Arrive(a), nil
}

// Heed has a handle heed losses.
func (b *modelBackend) Heed(handle int) { b.handles[handle].heeds = true }

// Flush forgets everything but what the handles have seen.
func (b *modelBackend) Flush() {
	b.memory().mu.Lock()
	defer b.memory().mu.Unlock()
	b.memory().state = fencing.NewState()
}
