package raft

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// verifier makes sure that this node still leads: one round answers all who came before it
// began.
type verifier struct {
	mu      sync.Mutex
	next    *verification // nil if nobody waits
	running bool
}

type verification struct {
	done chan struct{}
	of   *leadership // that was confirmed, if err is nil
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
	if mine.err == nil && mine.of != l {
		return errRefused
	}
	return mine.err
}

// verifyAll makes rounds until nobody waits for one.
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
		this.of = s.leading.Load()
		if this.err = s.confirm(this.of); this.err == nil {
			s.fsm.await(committed, s.ctx.Done())
		}
		close(this.done)
	}
}

// confirm asks all voters whether they are still in the term of a leadership, and returns
// nil once a majority has said so: at the call nobody had been elected since. hashicorp/raft's
// VerifyLeader does not promise that: it also counts answers to what it had sent before, and
// those of nodes without a vote.
func (s *Store) confirm(l *leadership) error {
	if l == nil {
		return errRefused
	}
	changed := s.nextChange()
	configuration := s.raft.GetConfiguration()
	if err := s.settled(configuration); err != nil {
		return err
	}
	if s.raft.CurrentTerm() != l.term || s.leading.Load() != l {
		return errRefused
	}
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	nonce := rand.Uint64()
	voters, confirmed := 0, 0
	answers := make(chan error, len(configuration.Configuration().Servers))
	for _, voter := range configuration.Configuration().Servers {
		switch {
		case voter.Suffrage != raft.Voter:
			continue
		case voter.ID == raft.ServerID(s.self.ID):
			confirmed++
		default:
			s.work.Go(func() { answers <- s.askStill(ctx, string(voter.Address), l.term, nonce) })
		}
		voters++
	}
	failed := errRefused
	for open := voters - confirmed; confirmed <= voters/2; open-- {
		if confirmed+open <= voters/2 {
			return failed
		}
		select {
		case err := <-answers:
			if err == nil {
				confirmed++
			} else {
				failed = err
			}
		case <-changed:
			if s.leading.Load() != l {
				return errRefused
			}
			changed, open = s.nextChange(), open+1
		case <-ctx.Done():
			return ctx.Err()
		case <-s.failed:
			return s.cause
		}
	}
	return nil
}

// askStill returns nil if a voter is still in a term.
func (s *Store) askStill(ctx context.Context, address string, term, nonce uint64) error {
	a, err := s.call(ctx, address, &message{Errand: errandStill, Term: term, Nonce: nonce})
	switch {
	case err != nil:
		return err
	case a.Verdict != done:
		return errRefused
	case a.Nonce != nonce:
		return errors.New("an answer is to another question than was asked")
	}
	return nil
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
	var op fencing.Op
	if m.Errand == errandLook {
		if op, err = machine.DecodeOp(m.Op); err != nil {
			return nil, err
		}
	}
	a := &answer{}
	if p := machine.Caught(func() { s.read(a, m, op, now) }); p != nil { // nothing is changed by it, and another leader would panic as well
		s.notePanic(p, false)
		return nil, p
	}
	return a, nil
}

// read fills in the answer to what only looks, at an instant.
func (s *Store) read(a *answer, m *message, op fencing.Op, now fencing.Instant) {
	switch m.Errand {
	case errandStats:
		a.Stats = look(s.fsm, func(of *machine.Machine) fencing.Stats { return of.Stats(now) })
	case errandList:
		a.Page = s.fsm.list(*m.List, now, m.Batch.Guard())
	default:
		a.Outcomes = []fencing.Outcome{look(s.fsm, func(of *machine.Machine) fencing.Outcome { return of.Look(op, now, m.Batch.Guard()) })}
	}
}

// readingTime returns the instant by which a read is answered. What has come due by it has
// so for every later leader: else a lease could be shown as over that the next leader, whose
// clock is behind, still has. So has the wall clock, by which times are shown.
func (s *Store) readingTime(ctx context.Context, l *leadership) (fencing.Instant, error) {
	now, wall := l.time()
	written, due := s.fsm.times()
	if (due > now || written >= now) && !s.fsm.wall.steps().Differs(now, wall) {
		return max(now, written), nil
	}
	tick := s.batch
	tick.Ops = []cbor.RawMessage{machine.Tick()}
	if _, err := s.request(ctx, tick, nil); err != nil {
		return 0, err
	}
	written, _ = s.fsm.times()
	return written, nil
}

// times returns the greatest instant in the log, and when the first name has something due.
func (m *fsm) times() (written, due fencing.Instant) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.machine.Now(), m.machine.NextAt()
}
