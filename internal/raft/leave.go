package raft

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/machine"
)

// A node that stops leaves no command behind its last snapshot that somebody may have had an answer to: another version of the gateway, which
// the cluster may be started with, would decide it anew. A follower hears that an entry is committed only with what the leader sends next. So its log
// takes in no more, and it carries out what that has as it hears so; the leader is there until all others have got so far.

// errLeaves is why the log of a node that stops takes in no more.
var errLeaves = errors.New("this node is about to stop")

// leavePause is how long a node that stops waits before it looks again how far it, or the others, are.
const leavePause = 2 * time.Millisecond

// depart has the node leave the others. The two parts, awaitOthers and what carries out its log, take at most leaveTime each, however the others and
// the disk are. The node takes in no request after that.
func (s *Store) depart() {
	s.seal(s.ctx)
	s.queue.close()
	to, any := s.awaitOthers() // also if it led until now: who leads next may need it to learn what is committed
	if s.leading.Load() != nil && (to != nil || any) {
		s.handOver(to)
	}
	s.dir.log.leaves.Store(true)
	ctx, cancel := context.WithTimeout(s.ctx, s.leaveTime)
	defer cancel()
	done := make(chan struct{})
	go func() { // the disk, and what carries out the log, may stand still
		defer close(done)
		for !s.carriedOutLog() && ctx.Err() == nil && s.Cause() == nil {
			s.pause(leavePause)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.left.Store(true)
}

// carriedOutLog reports whether the node, whose log takes in no more, has carried out the commands in it that may be committed, as far as it can
// learn that.
func (s *Store) carriedOutLog() bool {
	l := s.dir.log
	if l.writing() { // it may add entries
		return false
	}
	upTo, err := l.disk.LastIndex()
	config := s.raft.GetConfiguration()
	if err != nil || config.Error() != nil {
		return false
	}
	if others := len(config.Configuration().Servers) > 1; others && (s.leading.Load() != nil || s.raft.State() == raft.Candidate) { // nobody would tell it of more
		upTo = min(upTo, s.raft.CommitIndex())
	}
	for at := upTo; at > look(s.fsm, (*machine.Machine).Applied); at-- {
		var entry raft.Log
		if err := l.disk.GetLog(at, &entry); err != nil || entry.Type == raft.LogCommand {
			return false
		}
	}
	return true
}

// awaitOthers returns when each other member that this node can reach has carried out all that this node has, and none of that is yet to be
// answered; or it has left. It returns a voter that may lead next, and is not about to stop; nil if none is known: any says that there may be one all
// the same.
func (s *Store) awaitOthers() (next *raft.Server, any bool) {
	ctx, cancel := context.WithTimeout(s.ctx, s.leaveTime)
	defer cancel()
	config := s.raft.GetConfiguration()
	if config.Error() != nil {
		return nil, true
	}
	for ctx.Err() == nil && s.Cause() == nil {
		answering := s.queue.any() || len(s.slots) > 0 // in this order: what is taken from the queue has a slot
		index, _ := s.fsm.lastDigest()
		waits := false
		for _, o := range s.askOthers(ctx, config.Configuration(), message{Errand: errandDigest, Index: index}) {
			switch {
			case o.answer == nil:
				continue
			case o.Suffrage == raft.Voter && !o.answer.Leaves:
				next = &o.Server
			case next != nil && next.ID == o.ID:
				next = nil
			}
			waits = waits || answering
		}
		if !waits && ctx.Err() == nil {
			return next, false
		}
		s.pause(leavePause)
	}
	return next, true
}

// leaving is a transport whose node takes in no more entries once it leaves, but hears which of those it has are committed.
type leaving struct {
	*silent
	rpcs   chan raft.RPC // what hashicorp/raft is to answer
	closed chan struct{}
	close  sync.Once
}

// newLeaving returns a transport that is to be closed.
func newLeaving(of *silent) *leaving {
	t := &leaving{silent: of, rpcs: make(chan raft.RPC), closed: make(chan struct{})}
	go t.pass()
	return t
}

// Consumer implements raft.Transport.
func (t *leaving) Consumer() <-chan raft.RPC { return t.rpcs }

// Close implements raft.WithClose. It may be called twice.
func (t *leaving) Close() error {
	t.close.Do(func() { close(t.closed) })
	return t.silent.Close()
}

// pass passes on what other nodes send, until the transport is closed.
func (t *leaving) pass() {
	for {
		select {
		case rpc := <-t.silent.Consumer():
			if t.log.leaves.Load() {
				t.answer(rpc)
			} else {
				t.hand(rpc)
			}
		case <-t.closed:
			return
		}
	}
}

// answer answers for a node that leaves: it does not stand for election at once, and takes in no entries.
func (t *leaving) answer(rpc raft.RPC) {
	switch request := rpc.Command.(type) {
	case *raft.TimeoutNowRequest:
		rpc.Respond(nil, errLeaves)
		return
	case *raft.AppendEntriesRequest:
		if len(request.Entries) > 0 {
			t.refuse(rpc, *request)
			return
		}
	}
	t.hand(rpc)
}

// hand has hashicorp/raft answer.
func (t *leaving) hand(rpc raft.RPC) {
	select {
	case t.rpcs <- rpc:
	case <-t.closed:
	}
}

// refuse has hashicorp/raft hear which entries are committed of those that the log has. The leader gets its answer only where it says that the log ends
// before what was sent: the leader goes back then. Else it gets an error: whatever the answer, it would take entries for stored that are not, or
// go back behind what both have.
func (t *leaving) refuse(rpc raft.RPC, request raft.AppendEntriesRequest) {
	last, err := t.log.disk.LastIndex()
	if err != nil {
		rpc.Respond(nil, err)
		return
	}
	has := 0
	for has < len(request.Entries) && request.Entries[has].Index <= last {
		has++
	}
	request.Entries = request.Entries[:has]
	request.LeaderCommitIndex = min(request.LeaderCommitIndex, request.PrevLogEntry+uint64(has))
	answered := make(chan raft.RPCResponse, 1)
	t.hand(raft.RPC{Command: &request, RespChan: answered})
	select {
	case a := <-answered:
		if request.PrevLogEntry <= last {
			a = raft.RPCResponse{Error: errLeaves}
		}
		rpc.RespChan <- a
	case <-t.closed:
	}
}
