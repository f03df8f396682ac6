package raft

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/hashicorp/raft"

	"fencepost/internal/machine"
)

// errPanicked says that this node can't carry out the log.
var errPanicked = errors.New("the log can't be carried out by this version of the gateway; put back the version that was there before, and report it")

// carryOut has the machine carry out an entry. An operation of it that panics, and may have changed half of what it changes, is refused:
// the machine is made anew, as it was before the entry, and carries that out without it; or it finds that out by a copy. So do all nodes, at each
// start as well. anew says that one was refused: once it is known that others have come to the same, a snapshot spares the next time the log. errPanicked is wrapped where it is no operation that panics. The caller holds the mutex.
func (m *fsm) carryOut(index uint64, e *machine.Decoded, t *machine.Telling, leads bool) (results [][]machine.Result, anew bool, err error) {
	for {
		results, err = m.machine.Apply(index, e, t, leads)
		for _, p := range t.Panics {
			m.panicked(p, index <= m.quiet.Load())
			anew = true
		}
		t.Panics = nil
		p, panicked := errors.AsType[*machine.Panic](err)
		if !panicked {
			return results, anew, err
		}
		anew, t.Told, t.Events = true, nil, nil
		if err := m.refuse(p, index-1); err != nil {
			return nil, anew, err
		}
	}
}

// refuse has an operation be refused that panics, and makes the machine anew as it is after an entry.
func (m *fsm) refuse(p *machine.Panic, upTo uint64) error {
	m.machine.Abandon()
	for {
		m.panicked(p, upTo < m.quiet.Load())
		if !m.refused.Add(p) {
			return fmt.Errorf("%w: entry %d: %w", errPanicked, upTo+1, p)
		}
		made, err := m.anew(upTo, m.refused)
		again, panicked := errors.AsType[*machine.Panic](err)
		switch {
		case panicked:
			p = again
		case err != nil:
			return fmt.Errorf("%w (%w), and the state before it could not be read: start the gateway again: %w", errPanicked, p, err)
		default:
			m.machine = made
			return nil
		}
	}
}

// errOutdated is of files that a newer snapshot has taken the place of while they were read.
var errOutdated = errors.New("a newer snapshot has taken the place of what was read")

// machineAt returns what the files come to up to an entry. An error is a *machine.Panic where an operation panics that is not among those
// refused. alive is called again and again meanwhile. A snapshot that was begun before may be finished meanwhile, after which older ones and what
// it has of the log are removed: then it is read.
func (d *directory) machineAt(upTo uint64, refused machine.Refused, alive func()) (*machine.Machine, error) {
	for tries := 1; ; tries++ {
		m, err := d.readUpTo(upTo, refused, alive)
		if tries == 5 || !errors.Is(err, errOutdated) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, raft.ErrLogNotFound) {
			return m, err
		}
	}
}

func (d *directory) readUpTo(upTo uint64, refused machine.Refused, alive func()) (*machine.Machine, error) {
	m := machine.New()
	m.Refuse(refused)
	covered, err := d.restoreBefore(m, upTo)
	if err != nil {
		return nil, err
	}
	alive()
	first, err := d.log.FirstIndex()
	if err != nil {
		return nil, err
	}
	if first > covered+1 {
		return nil, fmt.Errorf("%w: the log begins with entry %d, and no snapshot has those between %d and that", errOutdated, first, covered)
	}
	for at := covered + 1; at <= upTo; at++ {
		var l raft.Log
		if err := d.log.GetLog(at, &l); err != nil {
			return nil, err
		}
		if err := replay(m, &l); err != nil {
			return nil, err
		}
		alive()
	}
	m.Reached(upTo)
	m.Ready()
	return m, nil
}

// restoreBefore makes the newest snapshot that has no entry behind one the state of a machine, and returns up to which entry that is.
func (d *directory) restoreBefore(m *machine.Machine, upTo uint64) (covered uint64, err error) {
	all, err := d.snapshots.List()
	if err != nil {
		return 0, err
	}
	var newest *raft.SnapshotMeta
	for _, meta := range all {
		if meta.Index <= upTo && (newest == nil || meta.Index > newest.Index) {
			newest = meta
		}
	}
	if newest == nil {
		return 0, nil
	}
	_, from, err := d.snapshots.Open(newest.ID)
	if err != nil {
		return 0, err
	}
	is, err := machine.Read(from)
	if err = errors.Join(err, from.Close()); err != nil {
		return 0, err
	}
	return newest.Index, m.Restore(is)
}

// replay carries out an entry of the log that was carried out before.
func replay(m *machine.Machine, l *raft.Log) error {
	if l.Type != raft.LogCommand {
		return nil
	}
	e, err := machine.Decode(l.Data)
	if err != nil || e.Term != l.Term {
		return err
	}
	_, err = m.Apply(l.Index, e, &machine.Telling{Quiet: true}, false)
	if errors.Is(err, machine.ErrDiffers) {
		return nil // known already
	}
	return err
}
