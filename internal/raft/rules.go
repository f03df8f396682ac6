package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/disk"
	"fencepost/internal/machine"
)

// Rules returns which version of the rules is in force, as far as this node has carried out the log, and the newest that it knows.
func (s *Store) Rules() (inForce, known int) {
	return look(s.fsm, (*machine.Machine).Rules), look(s.fsm, (*machine.Machine).Known)
}

// followsRules returns why this node can't carry out its snapshot, or what its log has behind that, as far as the rules go: machine.ErrRules is
// wrapped then. A node asks before it takes part, for it carries out its log only once it has a vote.
func (s *Store) followsRules() error {
	return followsRules(s.fsm.machine, s.dir.newest, s.dir.covered(), s.dir.log.disk)
}

// followsRules is that of a machine that has carried out nothing, a snapshot that has the log up to an entry, nil if there is none, and that log.
func followsRules(m *machine.Machine, newest *machine.Restored, covered uint64, log disk.Log) error {
	if newest != nil {
		if err := m.Follows(newest); err != nil {
			return err
		}
	}
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err != nil {
		return err
	}
	for at := max(first, covered+1); at <= last && first > 0; at++ {
		var entry raft.Log
		if err := log.GetLog(at, &entry); err != nil {
			return err
		}
		if entry.Type == raft.LogCommand {
			if err := m.KnowsAll(entry.Data); err != nil {
				return err
			}
		}
	}
	return nil
}

// member is a member that was asked something.
type member struct {
	raft.Server
	answer *answer // nil: it has not done what it was asked for
}

// askOthers asks all members but this node at once, with a vote or without.
func (s *Store) askOthers(ctx context.Context, c raft.Configuration, m message) []member {
	var others []member
	for _, server := range c.Servers {
		if server.ID != raft.ServerID(s.self.ID) {
			others = append(others, member{Server: server})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var asking sync.WaitGroup
	for i := range others {
		asking.Go(func() {
			m := m
			if a, err := s.call(ctx, string(others[i].Address), &m); err == nil && a.Verdict == done {
				others[i].answer = a
			}
		})
	}
	asking.Wait()
	return others
}

// raiseRules has the log raise the rules to the newest that all members know, for this node, which leads. Who does not answer holds that back,
// as does one of a version that does not know what it is asked.
func (s *Store) raiseRules(l *leadership) error {
	before, to := s.Rules()
	if before >= to {
		return nil
	}
	config := s.raft.GetConfiguration()
	if err := s.settled(config); err != nil {
		return err
	}
	for _, o := range s.askOthers(s.ctx, config.Configuration(), message{Errand: errandRules}) {
		if o.answer == nil || o.answer.Rules <= before {
			return nil
		}
		to = min(to, o.answer.Rules)
	}
	now, wall := l.time()
	e := machine.Entry{Term: l.term, Now: int64(now), Wall: int64(wall), Writer: s.version, Rules: to}
	e.Behind, e.Digest = s.fsm.lastDigest()
	data, err := e.Encode()
	if err != nil {
		return err
	}
	return s.settled(s.raft.Apply(data, 0))
}

// raised says that an entry has raised the rules.
func (s *Store) raised(before, to int) {
	s.log.Info("the rules of the cluster are raised: a version of the gateway that does not know them can't take part any more", "rules", to, "before", before)
}

// covered returns up to which entry the newest snapshot has the log; 0 without one.
func (d *directory) covered() uint64 {
	if d.head == nil {
		return 0
	}
	return d.head.Index
}

// dropOthers drops what the log has before the last entry of the newest snapshot where another version has carried that out: a member that is behind
// gets the snapshot then, and does not carry out by this version what the other one has decided, or refused. That entry stays, for a leader that goes on
// behind it asks whether it is there.
func (d *directory) dropOthers(version string) error {
	if d.newest == nil || d.ofOne() {
		return nil
	}
	if by := cmp.Or(d.head.By, d.newest.Writer()); by == "" || by == version {
		return nil
	}
	first, err := d.log.FirstIndex()
	if err != nil || first == 0 || first >= d.covered() {
		return err
	}
	return d.log.DeleteRange(first, d.covered()-1)
}

// defaultCloseTime bounds how long a node writes its last snapshot: the service manager has little patience, and without it only the next start
// takes longer, unless that is by another version.
const defaultCloseTime = 20 * time.Second

// lastSnapshot has a snapshot take the place of the log when the node stops, so that another version goes on from what this one has decided. It returns in time
// also if what carries out the log, or the disk, stands still.
func (s *Store) lastSnapshot() {
	if s.Cause() != nil {
		return
	}
	done := make(chan error, 1)
	go func() {
		var err error
		if s.fsm.finish(time.Now().Add(s.closeTime)) {
			err = s.settled(s.raft.Snapshot())
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(s.closeTime + time.Second):
		err = fmt.Errorf("it was not written within %s", s.closeTime)
	}
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		s.log.Warn("the last snapshot was not written: nothing is lost, and the next start takes longer; start this version again before another one", "error", err)
	}
}

// finish has the snapshots from now on be written until a time, and reports whether one is needed.
func (m *fsm) finish(until time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.until, m.check = until, machine.Skim // who ends it waits
	return m.machine.Applied() > m.saved && m.differs == nil && !m.stopped
}

// timed writes until a time.
type timed struct {
	raft.SnapshotSink
	until time.Time // none: for ever
}

// Write implements io.Writer.
func (t timed) Write(b []byte) (int, error) {
	if !t.until.IsZero() && time.Now().After(t.until) {
		return 0, errors.New("it took too long")
	}
	return t.SnapshotSink.Write(b)
}
