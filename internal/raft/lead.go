package raft

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// entriesInFlight is how many entries may be on their way into the log at once: while one
// is written the next gathers.
const entriesInFlight = 2

// leadership is this node's, in one term, from when it has carried out all of the log
// before. Its clock goes on from the greatest instant in that.
type leadership struct {
	term   uint64
	base   fencing.Instant
	from   time.Duration // what the monotonic clock was at base
	clocks func() (wall time.Time, monotonic time.Duration)
	told   atomic.Bool // the log says which version writes
}

// clock returns the instant that it is now.
func (l *leadership) clock() fencing.Instant {
	now, _ := l.time()
	return now
}

// time returns the instant that it is now, and what the wall clock is then.
func (l *leadership) time() (now, wall fencing.Instant) {
	at, monotonic := l.clocks()
	return l.base.Add(monotonic - l.from), fencing.InstantOf(at)
}

// lead begins to lead when hashicorp/raft says so, and ceases to.
func (s *Store) lead() {
	for {
		select {
		case leads := <-s.notify:
			s.leading.Store(nil)
			if leads {
				s.beginToLead()
			}
			s.changed()
		case <-s.ctx.Done():
			s.leading.Store(nil)
			return
		}
	}
}

// beginToLead carries out all of the log and starts the clock.
func (s *Store) beginToLead() {
	for pause := minPause; s.raft.State() == raft.Leader && s.ctx.Err() == nil; pause = min(2*pause, maxPause) {
		term := s.raft.CurrentTerm()
		barrier := s.raft.Barrier(0)
		err := s.settled(barrier)
		if err == nil && s.raft.CurrentTerm() == term { // so it was committed in it, by this node
			s.fsm.reached(barrier.(raft.IndexFuture).Index())
			doubt := s.settleDoubt(term)
			if doubt == nil {
				doubt = s.goOnAlone(term)
			}
			if doubt == nil {
				doubt = s.startClock(term)
			}
			if doubt == nil {
				return
			}
			if pause == minPause {
				s.log.Warn("this node was elected leader but does not serve yet", "error", doubt)
			}
		} else if err != nil && !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			return // it has lost the lead, and is told so
		}
		s.pause(pause)
	}
}

// goOnAlone has the log say that the gateway of a store without peers, from which this cluster goes on, is there no more:
// what waited at it goes, and all leases get their TTL anew. Its time goes on as at a start of that gateway, which fails where the
// wall clock can't be right: then this node does not serve until that is corrected.
func (s *Store) goOnAlone(term uint64) error {
	if !look(s.fsm, (*machine.Machine).Lone) {
		return nil
	}
	at, _ := s.clocks()
	wall := fencing.InstantOf(at)
	last := look(s.fsm, (*machine.Machine).Last)
	if s.founded.Now == last.Now { // it is more exact
		last = s.founded
	}
	now, err := last.GoOnAt(wall)
	if err != nil {
		return err
	}
	e := machine.Entry{
		Term: term, Now: int64(now), Wall: int64(wall), Writer: s.version,
		Batches: []machine.Batch{{Ops: []machine.Op{machine.Restart()}}},
	}
	e.Behind, e.Digest = s.fsm.lastDigest()
	data, err := e.Encode()
	if err != nil {
		return err
	}
	return s.settled(s.raft.Apply(data, 0))
}

// startClock begins to serve. In a new cluster time begins with the wall clock, so that tokens follow those of another store: it fails where
// that can't be right.
func (s *Store) startClock(term uint64) error {
	base := look(s.fsm, (*machine.Machine).Now)
	wall, from := s.clocks()
	if base == 0 {
		var err error
		if base, err = (machine.Last{}).GoOnAt(fencing.InstantOf(wall)); err != nil {
			return err
		}
	}
	s.leading.Store(&leadership{term: term, base: base, from: from, clocks: s.clocks})
	s.log.Info("this node leads the cluster", "term", term, "locks", look(s.fsm, func(m *machine.Machine) int { return m.Stats(base).Held }))
	return nil
}

// leads reports whether this node leads in a term.
func (s *Store) leads(term uint64) bool {
	l := s.leading.Load()
	return l != nil && l.term == term
}

// proposal is an entry on its way into the log.
type proposal struct {
	future   raft.ApplyFuture
	err      error // it was not made
	requests []*request
}

// propose appends an entry with what was asked for.
func (s *Store) propose(l *leadership, requests []*request) {
	p := &proposal{requests: requests}
	now, wall := l.time()
	e := machine.Entry{Term: l.term, Now: int64(now), Wall: int64(wall), Batches: make([]machine.Batch, len(requests))}
	e.Behind, e.Digest = s.fsm.lastDigest()
	if l.told.CompareAndSwap(false, true) {
		e.Writer = s.version
	}
	for i, r := range requests {
		e.Batches[i] = r.batch
	}
	data, err := e.Encode()
	if err != nil {
		p.err = err
	} else {
		p.future = s.raft.Apply(data, 0)
	}
	s.proposals <- p
}

// await tells those who asked what came of entries, in order.
func (s *Store) await() {
	for p := range s.proposals {
		a, err := s.outcome(p)
		<-s.slots
		for i, r := range p.requests {
			if err != nil {
				r.done(nil, err)
			} else {
				r.done(a.results[i], nil)
			}
		}
		if err == nil {
			s.finish()
		}
		s.wakeUp()
	}
}

// outcome waits until an entry is in the log and carried out. errRefused: it is not, and
// will not be.
func (s *Store) outcome(p *proposal) (*applied, error) {
	if p.err != nil {
		return nil, errors.Join(errRefused, p.err)
	}
	switch err := s.settled(p.future); {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return nil, errRefused
	case err != nil:
		return nil, err
	}
	a, ok := p.future.Response().(*applied)
	if !ok || a.stale {
		return nil, errRefused
	}
	if len(a.results) != len(p.requests) {
		return nil, errors.New("this node is no longer the leader")
	}
	return a, nil
}

// finish has what steps left to do done by another entry.
func (s *Store) finish() {
	b := machine.Batch{Gateway: string(s.fsm.self), MaxHolders: s.maxHolders}
	s.fsm.mu.RLock()
	left := s.fsm.machine.Left(machine.GoOn)
	s.fsm.mu.RUnlock()
	for _, name := range left {
		b.Ops = append(b.Ops, machine.EncodeOp(fencing.ExpireRequest{Name: name}))
	}
	if len(b.Ops) > 0 {
		s.enqueue(&request{batch: b, done: func([]machine.Result, error) {}}, nil)
	}
}
