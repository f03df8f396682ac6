package raft

import (
	"context"
	"sync"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/index"
)

// verifier asks the others whether this node still leads: one question answers all who
// came before it was asked.
type verifier struct {
	mu      sync.Mutex
	next    *verification // nil if nobody waits
	running bool
}

type verification struct {
	done chan struct{}
	err  error
}

// verify returns when it is certain that this node led in a term after the call, and has
// carried out all that was in the log by then.
func (s *Store) verify(ctx context.Context, l *leadership) error {
	v := &s.verifier
	v.mu.Lock()
	if v.next == nil {
		v.next = &verification{done: make(chan struct{})}
	}
	mine := v.next
	if !v.running {
		v.running = true
		s.work.Go(s.verifyAll)
	}
	v.mu.Unlock()
	select {
	case <-mine.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if mine.err == nil && s.leading.Load() != l {
		return errRefused
	}
	return mine.err
}

// verifyAll asks until nobody waits for an answer.
func (s *Store) verifyAll() {
	v := &s.verifier
	for {
		v.mu.Lock()
		this := v.next
		v.next = nil
		if v.running = this != nil; !v.running {
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		committed := s.raft.CommitIndex()
		if this.err = s.settled(s.raft.VerifyLeader()); this.err == nil {
			s.machine.await(committed, s.ctx.Done())
		}
		close(this.done)
	}
}

// serveRead answers what only looks, by this node, which leads.
func (s *Store) serveRead(ctx context.Context, l *leadership, m *message) (*answer, error) {
	if err := s.verify(ctx, l); err != nil {
		return nil, err
	}
	if m.Errand == errandCheck {
		return &answer{}, nil
	}
	now, err := s.readingTime(ctx, l)
	if err != nil {
		return nil, err
	}
	switch m.Errand {
	case errandStats:
		return &answer{Stats: fencing.Stats{Held: s.machine.held()}}, nil
	case errandList:
		return &answer{Page: s.machine.list(*m.List, now, m.Batch.guard())}, nil
	}
	o, err := decodeOperation(m.Op)
	if err != nil {
		return nil, err
	}
	op, err := o.op()
	if err != nil {
		return nil, err
	}
	return &answer{Outcomes: []fencing.Outcome{s.machine.look(op, now, m.Batch.guard())}}, nil
}

// readingTime returns the instant by which a read is answered. What has come due by it has
// so for every later leader: else a lease could be shown as over that the next leader, whose
// clock is behind, still has.
func (s *Store) readingTime(ctx context.Context, l *leadership) (fencing.Instant, error) {
	now := l.clock()
	written, due := s.machine.times()
	if due > now || written >= now {
		return max(now, written), nil
	}
	tick := s.batch
	tick.Ops = []cbor.RawMessage{plain(kindTick)}
	if _, err := s.request(ctx, tick, nil); err != nil {
		return 0, err
	}
	written, _ = s.machine.times()
	return written, nil
}

// times returns the greatest instant in the log, and when the first name has something due.
func (m *machine) times() (written, due fencing.Instant) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	due, ok := m.index.Next()
	if !ok {
		due = fencing.Instant(fencing.MaxToken)
	}
	return m.now, due
}

// look answers an operation that only looks.
func (m *machine) look(op fencing.Op, now fencing.Instant, guard fencing.Guard) fencing.Outcome {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return fencing.Step(m.state, max(now, m.now), guard, op)
}

func (m *machine) held() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.index.Held()
}

// list returns a page: see index.Page.
func (m *machine) list(r fencing.ListRequest, now fencing.Instant, guard fencing.Guard) fencing.ListPage {
	total := 0
	if r.Count {
		total = m.heldBelow(r.Prefix)
	}
	page := index.Page(r, func(v index.View, after fencing.Name) ([]*fencing.Lock, bool) {
		m.mu.RLock()
		defer m.mu.RUnlock()
		v.Now, v.Guard = max(now, m.now), guard
		return m.index.Views(v, after)
	})
	page.Total = total
	return page
}

func (m *machine) heldBelow(prefix string) int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.index.HeldBelow(prefix)
}
