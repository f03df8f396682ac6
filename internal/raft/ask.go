package raft

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
)

var (
	errClosed   = errors.New("the store is closed")
	errNoLeader = errors.New("there is no leader: less than a majority can reach each other, or an election is under way")
	errRemoved  = errors.New("the leader does not list this node as a member: it was removed")
)

// removed is what clients of a node are told that is no member any more. An earlier try may have been carried out before
// it was removed.
func removed() *fencing.Error {
	return &fencing.Error{
		Code: fencing.CodeUnavailable, Detail: "this gateway was removed from its cluster and serves nobody; ask another one", Err: errRemoved,
	}
}

// leader returns where the leader is, as far as this node knows, and in which term.
func (s *Store) leader() (address string, term uint64, ok bool) {
	term = s.raft.CurrentTerm()
	at, _ := s.raft.LeaderWithID()
	return string(at), term, at != "" && s.raft.CurrentTerm() == term
}

// changed tells all who wait that there is another leader, or none. Calls to the one before
// another are given up: it may be a machine that stands still.
func (s *Store) changed() {
	address, term, ok := s.leader()
	c := &s.change
	c.mu.Lock()
	close(c.ch)
	c.ch = make(chan struct{})
	if ok && (address != c.leader || term != c.term) {
		c.end()
		c.era, c.end = context.WithCancel(s.ctx)
		c.leader, c.term = address, term
	}
	c.mu.Unlock()
	s.wakeUp()
}

// callLeader asks the leader of a term, as long as there is no other one.
func (s *Store) callLeader(ctx context.Context, address string, m *message) (*answer, error) {
	s.change.mu.Lock()
	era, of := s.change.era, s.change.term
	s.change.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if of == m.Term {
		defer context.AfterFunc(era, cancel)()
	}
	return s.call(ctx, address, m)
}

// nextChange is closed when there is another leader.
func (s *Store) nextChange() <-chan struct{} {
	s.change.mu.Lock()
	defer s.change.mu.Unlock()
	return s.change.ch
}

// wakeLater has route try again in a moment.
func (s *Store) wakeLater() {
	s.work.Go(func() {
		s.pause(minPause)
		s.wakeUp()
	})
}

// pause waits, unless the store is closed.
func (s *Store) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

// ask has the leader, whoever it is, do what a message asks for: it may be done more than
// once.
func (s *Store) ask(ctx context.Context, m message) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var cause error = errNoLeader
	m.Batch = s.batch
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		if ctx.Err() != nil || s.Cause() != nil {
			return nil, s.unavailable(cause)
		}
		changed := s.nextChange()
		a, err := s.askLeader(ctx, m)
		switch {
		case err != nil:
			cause = err
		case a.Verdict == done:
			return a, nil
		case a.Removed:
			return nil, removed()
		case a.Verdict == unknown && len(a.Outcomes) == 1 && a.Outcomes[0].Err != nil:
			return nil, a.Outcomes[0].Err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		case <-s.failed:
		case <-s.ctx.Done():
			timer.Stop()
			return nil, s.unavailable(errClosed)
		}
		timer.Stop()
	}
}

// askLeader asks once.
func (s *Store) askLeader(ctx context.Context, m message) (*answer, error) {
	if m.Errand == errandHeartbeat || m.Errand == errandExpire {
		s.queue.mu.Lock()
		m.Batch.Number = s.queue.next(time.Now())
		s.queue.mu.Unlock()
	}
	if l := s.leading.Load(); l != nil {
		m.Term = l.term
		return s.serve(ctx, &m)
	}
	address, term, ok := s.leader()
	if !ok || address == s.self.Address {
		return nil, errNoLeader
	}
	m.Term, m.Address = term, s.self.Address
	asked := time.Now()
	a, err := s.callLeader(ctx, address, &m)
	if err == nil {
		s.hear(a, asked)
	}
	return a, err
}

// unavailable says that nothing is known, and why.
func (s *Store) unavailable(cause error) error {
	if failed := s.Cause(); failed != nil {
		return fencing.Unavailable(failed)
	}
	if _, _, ok := s.leader(); !ok && !errors.Is(cause, errClosed) && !errors.Is(cause, context.Canceled) {
		return fencing.Unavailable(&fencing.Outage{
			Detail: "the cluster has no leader: a majority of its members can't be reached, or an election is under way", Err: errors.Join(errNoLeader, cause),
		})
	}
	return fencing.Unavailable(cause)
}

// observe hears from hashicorp/raft of leaders.
func (s *Store) observe(observations <-chan raft.Observation) {
	for {
		select {
		case <-observations:
			s.changed()
		case <-s.ctx.Done():
			return
		}
	}
}
