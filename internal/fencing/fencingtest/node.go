package fencingtest

import (
	"context"
	"errors"
	"time"

	"fencepost/internal/fencing"
)

var _ fencing.Node = (*Model)(nil)

// Arrive notes who serves: see fencing.Arrive. The floor is at least that of this
// handle.
func (m *Model) Arrive(a fencing.Arrival) fencing.Quarantine {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	a.Floor = max(a.Floor, m.floor)
	return m.memory.arrive(m.memory.state, m.clock(), a)
}

// Memory says what the model remembers. One that is not blank is in service.
func (m *Model) Memory(ctx context.Context) (fencing.Memory, error) {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return fencing.Memory{}, err
	}
	now, blank, q := m.clock(), m.memory.blank(), m.memory.state.Quarantine
	return fencing.Memory{
		Server: m.memory.server, Blank: blank, InService: !blank,
		Quarantine: max(q.Until.Sub(now), 0), Longest: q.Longest(now),
	}, nil
}

func (m *memory) blank() bool { return m.state.Quarantine.Server == "" && m.state.Counter == 0 }

// Enroll takes a blank model into service.
func (m *Model) Enroll(ctx context.Context, server string, isNew bool, longest time.Duration) (time.Duration, error) {
	m.memory.mu.Lock()
	defer m.memory.mu.Unlock()
	err := m.usable(ctx)
	switch {
	case err != nil:
		return 0, err
	case server != m.memory.server:
		return 0, fencing.Unavailable(errAnotherServer)
	}
	now := m.clock()
	q := m.memory.arrive(m.memory.state, now, fencing.Arrival{
		Server: server, Longest: longest, Most: longest, Lossless: isNew || !m.memory.blank(),
	})
	return max(q.Until.Sub(now), 0), nil
}

var errAnotherServer = errors.New("another server is there by now")
