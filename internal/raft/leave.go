package raft

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/machine"
)

// A node that stops leaves no command behind its last snapshot that somebody may have had an answer to: another version of the gateway, which
// the cluster may be started with, would decide it anew. A follower hears that an entry is committed only with what the leader sends next, so it
// waits for that, and its log takes in no more once all that it has is carried out; the leader is there until all others have got so far.

// errLeaves is why the log of a node that stops takes in no more.
var errLeaves = errors.New("this node is about to stop")

// leavePause is how long a node that stops waits before it looks again how far it, or the others, are.
const leavePause = 2 * time.Millisecond

// depart has the node leave the others. This and awaitOthers take at most leaveTime each, however the others and the disk are. Nothing is
// proposed by the node after that.
func (s *Store) depart() {
	leads := s.leading.Load() != nil
	if leads {
		s.seal(s.ctx)
	}
	s.queue.close()
	if leads {
		if next := s.awaitOthers(); next != nil {
			s.handOver(next)
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.leaveTime)
	defer cancel()
	done := make(chan struct{})
	go func() { // the disk, and what carries out the log, may stand still
		defer close(done)
		for !s.dir.log.leave(s.commands) && ctx.Err() == nil && s.Cause() == nil {
			s.pause(leavePause)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// commands returns behind which entry of a log that ends with last, and up to which, there are commands that this node is yet to carry out, or to
// hear of that they are dropped.
func (s *Store) commands(last uint64) (after, upTo uint64) {
	after = look(s.fsm, (*machine.Machine).Applied)
	alone := look(s.fsm, func(*machine.Machine) bool { return !s.fsm.peers })
	if !alone && (s.leading.Load() != nil || s.raft.State() == raft.Candidate) { // it has no leader that would tell it of more
		last = min(last, s.raft.CommitIndex())
	}
	return after, last
}

// awaitOthers returns when each other member that this node, which leads, can reach has carried out all that this node answered, or has left.
// It returns a voter that may lead, and is not about to stop; nil if there is none.
func (s *Store) awaitOthers() *raft.Server {
	ctx, cancel := context.WithTimeout(s.ctx, s.leaveTime)
	defer cancel()
	config := s.raft.GetConfiguration()
	if config.Error() != nil {
		return nil
	}
	var next *raft.Server
	for waits := true; waits && ctx.Err() == nil && s.Cause() == nil; {
		answering := s.queue.any() || len(s.slots) > 0 // in this order: what is taken from the queue has a slot
		index, _ := s.fsm.lastDigest()
		next, waits = nil, false
		for _, o := range s.askOthers(ctx, config.Configuration(), message{Errand: errandDigest, Index: index}) {
			if o.answer == nil {
				continue
			}
			if waits = answering; o.Suffrage == raft.Voter && !o.answer.Leaves {
				next = &o.Server
			}
		}
		if waits {
			s.pause(leavePause)
		}
	}
	return next
}

// leave has the log take in no more entries, if there is no command between those that commands returns, and no write under way. It reports
// whether it does.
func (l *diskLog) leave(commands func(last uint64) (after, upTo uint64)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, err := l.disk.LastIndex()
	if err != nil || len(l.writes) > 0 {
		return false
	}
	after, upTo := commands(last)
	for at := upTo; at > after; at-- {
		var entry raft.Log
		if err := l.disk.GetLog(at, &entry); err != nil || entry.Type == raft.LogCommand {
			return false
		}
	}
	l.leaves = true
	return true
}

// left reports whether the log takes in no more.
func (l *diskLog) left() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaves
}
