package sql

import (
	"errors"
	"fmt"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// errNotThere says that a commit has not happened, and will not.
var errNotThere = errors.New("the connection to the database was lost, and a commit with it")

// commit carries out and commits an entry, and returns its results when it is in the log. After an error memory is what was committed before. To
// read that anew is dear, so once a turn was refused each entry is carried out on a copy first, unless it has something of the store's own.
func (t *turn) commit(e *entry, d *machine.Decoded, all []carried, ops []fencing.Op) ([]machine.Result, error) {
	if !t.owns && t.batch.Sent == 0 && !t.lastApart.IsZero() {
		ok, err := t.rehearse(e, d, ops)
		if err != nil {
			t.refuse(err, all)
			return nil, err
		}
		if ok {
			return t.rehearsed(e, d, t.send(e))
		}
	}
	telling := &machine.Telling{Leases: map[fencing.EndedLease]fencing.Token{}}
	results, err := t.apply(e, d, telling)
	if err != nil {
		t.refuse(err, all)
		return nil, t.restored(err)
	}
	t.noteRows(e, t.memory.State(), telling.Leases)
	if err := t.decided(t.send(e)); err != nil {
		return nil, t.restored(err)
	}
	return results, nil
}

// send ends the turn with an entry. If that takes long it is looked for who keeps it waiting.
func (t *turn) send(e *entry) error {
	_, err := awaitTurn(t.Store, func() (struct{}, error) { return struct{}{}, t.conn.commit(t.ctx, e) })
	return err
}

// decided returns what became of the commit of the entry that was carried out last, which came to err. The database is asked until it has
// said. After an error the entry is not in the log, and will not be; or the log was cut, so that it can't be known, and the items are
// told so. The caller holds the mutex.
//
// A commit that waits for a standby, and is cut off meanwhile, is there, but perhaps not at the standby. So an entry that is found
// after a lost answer counts only when another one behind it is committed, which has waited for the standby as well.
func (t *turn) decided(err error) error {
	found := false
	for pause := minPause; errors.Is(err, errUndecided); pause = min(2*pause, maxPause) {
		t.outage(err)
		switch there, cause := t.find(); {
		case isUnreadable(cause):
			return cause
		case errors.Is(cause, errCut): // it is not carried out again: perhaps it was
			refuse(t.items, cause)
			t.items = nil
			return cause
		case cause != nil:
			err = fmt.Errorf("%w: %w", errUndecided, cause)
			select {
			case <-t.closing:
				return fmt.Errorf("the store is closed, and the database did not report the outcome of a commit: %w", cause)
			default:
				t.pause(pause)
			}
		case !there && found:
			return errOther
		case !there:
			return errNotThere
		default:
			found = true
			err = t.confirm()
		}
	}
	return err
}

// find begins another turn, and reports whether what was carried out is in the log. If so, what others have done since is carried out
// as well, as far as it can be before the turn.
func (t *turn) find() (there bool, err error) {
	if t.conn != nil {
		t.conn.close()
	}
	if t.conn, err = t.connect(t.ctx); err != nil {
		t.conn = nil
		return false, err
	}
	b, err := t.conn.read(t.ctx, t.memory.Applied())
	if err == nil {
		err = t.follow(b)
	}
	if err == nil || errors.Is(err, errGap) { // it may come yet
		b, err = awaitTurn(t.Store, func() (*begun, error) { return t.conn.begin(t.ctx, t.memory.Applied(), nil) })
	} else if !errors.Is(err, errOther) {
		return true, err
	}
	if err == nil {
		if t.options.server != nil {
			b.server = t.options.server(b.server)
		}
		t.lastFound = b.now
		t.noteServer(b.server)
		err = t.follow(b)
	}
	if errors.Is(err, errOther) || errors.Is(err, errGap) && !errors.Is(err, errCut) {
		return false, nil
	}
	return true, err
}

// confirm commits an entry that says nothing.
func (t *turn) confirm() error {
	m := t.memory.Machine
	tick := machine.Entry{Now: int64(t.lastFound), Batches: []machine.Batch{{Gateway: string(t.gateway), Ops: []machine.Op{machine.Tick()}}}}
	tick.Behind, tick.Digest = m.LastDigest()
	e, d, err := encoded(&tick, m.Applied()+1)
	if err != nil {
		return err
	}
	if err := t.conn.commit(t.ctx, e); err != nil {
		return fmt.Errorf("%w: %w", errUndecided, err) // and what was found is perhaps not at a standby
	}
	if err := t.applied(e.seq, d); err != nil {
		return err
	}
	t.memory.grew(&e.logged)
	return nil
}

// newArrival returns what the log is to say of who serves, nil if it says that already. While the clocks differ it waits: nothing is
// granted then.
func (t *turn) newArrival(server string) *fencing.Arrival {
	q := &t.memory.State().Quarantine
	if server == "" {
		server = q.Server
	}
	if t.batch.Sent != 0 || !t.arrives && q.Server == server {
		return nil
	}
	a := fencing.Arrival{
		Server: server, Longest: t.longest, Floor: t.floor, Lost: t.forgot,
		Lossless: q.Server == "" || q.Server == server, Late: q.Server != "" && q.Server != server && t.served == q.Server,
	}
	a.Least, a.Most = t.options.Quarantine.bounds()
	return &a
}

// noteServer has the log say who serves, if it does not.
func (t *turn) noteServer(server string) {
	if server != "" && t.memory.State().Quarantine.Server != server && t.batch.Sent == 0 && !t.arrives {
		t.arrives = true
		if !t.writes {
			t.queue.stir()
		}
	}
}

// lost notes that the database has forgotten something that it had confirmed.
func (s *Store) lost() {
	s.losses.Add(1)
	s.forgot = true
	if s.options.Quarantine.Off {
		s.log.Error("the database has lost confirmed writes; FENCEPOST_QUARANTINE is off, so new leases are granted at once")
		return
	}
	s.log.Error("the database has lost confirmed writes; no new leases are granted until lost ones have expired")
}

// outage notes why the database can't be asked; nil: it can.
func (s *Store) outage(err error) {
	was := s.out.Load()
	switch {
	case err == nil && was != nil:
		s.out.Store(nil)
		s.log.Info("the database answers again")
	case err != nil:
		s.out.Store(&err)
		if was == nil || told(*was) != told(err) {
			attrs := []any{"error", err}
			if o := fencing.OutageOf(err); o != nil {
				attrs = append(attrs, "cause", o.Detail)
			}
			s.log.Warn("the database can't be used", attrs...)
		}
	}
}
