package raft

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/machine"
)

// compareEvery is how often the leader compares what the nodes have come to.
const compareEvery = time.Second

// compare has nodes that have come to something else stop, while this node leads.
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
		index, digest := s.fsm.lastDigest()
		if l := s.leading.Load(); l != nil && index != agreed && s.compareAt(l.term, index, digest) == allAgree {
			agreed = index
		}
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
		err := look(s.fsm, func(*machine.Machine) error { return s.fsm.differs }) // there is nobody else who would know
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

// compareAt compares what the nodes have come to after an entry, for this node, which was elected in a term. Who differs from a majority stops. The leader does if a majority differs from it, or if all voters have answered and no majority
// has the same. While too few have answered nobody stops: who is right is not known.
func (s *Store) compareAt(term, index, own uint64) agreement {
	config := s.raft.GetConfiguration()
	if config.Error() != nil {
		return unsettled
	}
	type member struct {
		raft.Server
		answer *answer
	}
	var others []member
	voters, same, other := 0, 0, 0
	for _, server := range config.Configuration().Servers {
		if server.Suffrage == raft.Voter {
			voters++
		}
		if server.ID != raft.ServerID(s.self.ID) {
			others = append(others, member{Server: server})
		} else if server.Suffrage == raft.Voter {
			same++
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	var asking sync.WaitGroup
	for i := range others {
		asking.Go(func() {
			a, err := s.call(ctx, string(others[i].Address), &message{Errand: errandDigest, Term: term, Index: index})
			if err == nil && a.Verdict == done {
				others[i].answer = a
			}
		})
	}
	asking.Wait()
	all := true
	var differ []member
	for _, o := range others {
		switch {
		case o.answer == nil:
			all = false
		case o.answer.Digest != own:
			if differ = append(differ, o); o.Suffrage == raft.Voter {
				other++
			}
		case o.Suffrage == raft.Voter:
			same++
		}
	}
	switch {
	case len(differ) == 0 && all:
		return allAgree
	case same > voters/2:
		for _, o := range differ {
			s.log.Error("the state of a node differs from the majority's; it is told to stop", "node", o.ID, "entry", index)
			telling, cancel := context.WithTimeout(s.ctx, patience)
			_, _ = s.call(telling, string(o.Address), &message{Errand: errandDiffers, Term: term, Index: index}) // else the next time
			cancel()
		}
		return mostAgree
	case (other > voters/2 || len(differ) > 0 && same+other == voters) && s.raft.CurrentTerm() == term && s.raft.State() == raft.Leader:
		s.fsm.stop(errDiffers(index))
	}
	return unsettled
}

// errDiffers says that this node has another state than the others.
func errDiffers(index uint64) error {
	return fmt.Errorf("entry %d of the log gave another result here than at the other nodes, so their states differ: "+
		"it has another version of the gateway, or the machine is faulty. Start it with an empty data directory and the version of the others", index)
}

// serveDigest says what this node has come to after an entry, once it has carried it out.
func (s *Store) serveDigest(ctx context.Context, m *message) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	s.fsm.await(m.Index, ctx.Done())
	s.fsm.mu.RLock()
	is, ok := s.fsm.machine.DigestAt(m.Index)
	s.fsm.mu.RUnlock()
	if !ok {
		return &answer{Verdict: refused}, nil
	}
	return &answer{Verdict: done, Digest: is}, nil
}

// serveDiffers stops this node, if it is the leader of its term that says so.
func (s *Store) serveDiffers(m *message) (*answer, error) {
	if s.raft.CurrentTerm() == m.Term {
		s.fsm.stop(errDiffers(m.Index))
	}
	return &answer{Verdict: done}, nil
}
