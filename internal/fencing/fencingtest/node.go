package fencingtest

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

var _ fencing.Node = (*Model)(nil)

// firstServer is who serves a model that was admitted.
const firstServer = "model"

// Claim sets the token of a live lease.
func (m *Model) Claim(ctx context.Context, r fencing.ClaimRequest) (fencing.Outcome, error) {
	return m.do(ctx, r)
}

// Arrive notes who serves: see fencing.Arrive. The floor is at least that of this
// handle.
func (m *Model) Arrive(a fencing.Arrival) fencing.Quarantine {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	a.Floor = max(a.Floor, m.floor)
	return m.memory.arrive(m.memory.state, m.clock(), a)
}

// Blank reports whether the model remembers nothing at all.
func (m *Model) Blank(ctx context.Context) (bool, error) {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return false, err
	}
	return m.memory.blank(), nil
}

func (m *memory) blank() bool { return m.state.Quarantine.Server == "" && m.state.Counter == 0 }

// Enroll takes a blank model into service.
func (m *Model) Enroll(ctx context.Context, isNew bool, longest time.Duration) error {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return err
	}
	if m.memory.blank() {
		m.memory.arrive(m.memory.state, m.clock(), fencing.Arrival{Server: firstServer, Longest: longest, Most: longest, Lossless: isNew})
	}
	return nil
}
