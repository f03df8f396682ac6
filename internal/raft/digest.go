package raft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"

	"fencepost/internal/machine"
)

// compareEvery is how often the leader compares what the nodes have come to.
const compareEvery = time.Second

// compare has nodes that have come to something else stop, and the rules be raised, while this node leads.
func (s *Store) compare() {
	ticker := time.NewTicker(compareEvery)
	defer ticker.Stop()
	var agreed uint64 // the entry after which all had the same
	for {
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return
		}
		l := s.leading.Load()
		if l == nil {
			continue
		}
		if index, digest := s.fsm.lastDigest(); index != agreed && s.compareAt(l.term, index, digest) == allAgree {
			agreed = index
		}
		_ = s.raiseRules(l) // else the next time
	}
}

// cameTo is what this node has come to after an entry.
type cameTo struct{ index, digest uint64 }

// lastDigest returns what this node has come to after the last entry, and the index of that.
func (m *fsm) lastDigest() (index, digest uint64) {
	last := m.last.Load()
	return last.index, last.digest
}

// noteDigest has lastDigest return what it has come to now. The caller holds the mutex, or is alone.
func (m *fsm) noteDigest() {
	index, digest := m.machine.LastDigest()
	m.last.Store(&cameTo{index, digest})
}

// agreement says who has come to the same as this node.
type agreement int

const (
	unsettled agreement = iota
	mostAgree           // a majority has
	allAgree            // all have answered, and have
)

// settleDoubt returns nil once a majority has come to the same as this node, if an earlier leader had come to something
// else: until then it must not lead.
func (s *Store) settleDoubt(term uint64) error {
	if look(s.fsm, func(*machine.Machine) error { return s.fsm.differs }) == nil {
		return nil
	}
	if config := s.raft.GetConfiguration(); config.Error() == nil && voters(config.Configuration()) == 1 {
		err := fmt.Errorf("%w; this gateway has that version, so the machine is faulty, or was: put back a backup of the directory, and run gateway restored",
			look(s.fsm, func(*machine.Machine) error { return s.fsm.differs })) // there is nobody else who would know
		s.fsm.stop(err)
		return err
	}
	index, digest := s.fsm.lastDigest()
	if s.compareAt(term, index, digest) == unsettled {
		return errors.New("it is unknown whether this node or the leader before it has the state that the log describes")
	}
	s.fsm.mu.Lock()
	s.fsm.differs = nil
	s.fsm.mu.Unlock()
	return nil
}

func voters(c raft.Configuration) (n int) {
	for _, server := range c.Servers {
		if server.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}

// compareAt compares what the nodes have come to after an entry, for this node, which was elected in a term. Who differs from a majority stops. The
// leader does if a majority differs from it, or if all voters have answered and no majority
// has the same. While too few have answered nobody stops: who is right is not known. A node of another version of the gateway that differs has no say in
// that: the log has the word of who writes it, so it is told by an entry, and stops by itself.
func (s *Store) compareAt(term, index, own uint64) agreement {
	config := s.raft.GetConfiguration()
	if config.Error() != nil {
		return unsettled
	}
	votes, same, other := voters(config.Configuration()), 0, 0
	for _, server := range config.Configuration().Servers {
		if server.ID == raft.ServerID(s.self.ID) && server.Suffrage == raft.Voter {
			same++
		}
	}
	all, another := true, false
	var differ []member
	for _, o := range s.askOthers(s.ctx, config.Configuration(), message{Errand: errandDigest, Term: term, Index: index}) {
		switch {
		case o.answer == nil:
			all = false
		case o.answer.Digest != own && o.answer.Of != s.version:
			another = true
		case o.answer.Digest != own:
			if differ = append(differ, o); o.Suffrage == raft.Voter {
				other++
			}
		case o.Suffrage == raft.Voter:
			same++
		}
	}
	if another {
		s.seal(s.ctx)
	}
	switch {
	case len(differ) == 0 && all && !another:
		return allAgree
	case same > votes/2:
		for _, o := range differ {
			s.log.Error("the state of a node differs from the majority's; it is told to stop", "node", o.ID, "entry", index)
			telling, cancel := context.WithTimeout(s.ctx, patience)
			_, _ = s.call(telling, string(o.Address), &message{Errand: errandDiffers, Term: term, Index: index}) // else the next time
			cancel()
		}
		return mostAgree
	case (other > votes/2 || len(differ) > 0 && same+other == votes) && s.raft.CurrentTerm() == term && s.raft.State() == raft.Leader:
		s.fsm.stop(errDiffers(index))
	}
	return unsettled
}

// Seal has the log say what has come of it, and what the time is by both clocks, if this node leads: who comes to something else by another
// version stops before it may lead.
func (s *Store) Seal(ctx context.Context) { s.seal(ctx) }

func (s *Store) seal(ctx context.Context) {
	if s.leading.Load() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.election, DefaultElection))
	defer cancel()
	tick := s.batch
	tick.Ops = []cbor.RawMessage{machine.Tick()}
	_, _ = s.request(ctx, tick, nil) // it hands over all the same
}

// errDiffers says that this node has another state than the others.
func errDiffers(index uint64) error {
	return fmt.Errorf("entry %d of the log gave another result here than at the other nodes, so their states differ: "+
		"the machine is faulty, or was. Start it with an empty data directory and the version of the others", index)
}

// serveDigest says what this node has come to after an entry, once it has carried it out.
func (s *Store) serveDigest(ctx context.Context, m *message) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	leaves := s.queue.isClosed()
	if s.left.Load() { // who asks is not to wait
		return &answer{Verdict: refused}, nil
	}
	s.fsm.await(m.Index, ctx.Done())
	s.fsm.mu.RLock()
	is, ok := s.fsm.machine.DigestAt(m.Index)
	s.fsm.mu.RUnlock()
	if !ok {
		return &answer{Verdict: refused}, nil
	}
	return &answer{Verdict: done, Digest: is, Of: s.version, Leaves: leaves}, nil
}

// serveDiffers stops this node, if it is the leader of its term that says so.
func (s *Store) serveDiffers(m *message) (*answer, error) {
	if s.raft.CurrentTerm() == m.Term {
		err := errDiffers(m.Index)
		s.fsm.mu.RLock()
		if s.fsm.byAnother() { // who says so is of an earlier version, which does not know that
			writer := s.fsm.machine.Writer()
			err = fmt.Errorf("%w version %s, which wrote the log up to entry %d; %s", machine.ErrDiffers, writer, m.Index, wayOut(writer))
		}
		s.fsm.mu.RUnlock()
		s.fsm.stop(err)
	}
	return &answer{Verdict: done}, nil
}
