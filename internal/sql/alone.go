package sql

import (
	"context"
	"errors"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

const (
	// aloneAfter is how long no other gateway must have been seen to do anything before a turn is tried without asking.
	aloneAfter = 100 * time.Millisecond

	// mostAlone is how many items such a turn has at most: with more it costs more to carry them out twice than to ask.
	mostAlone = 64

	// mostLate is how much earlier than the database's clock the instant of such a turn may be.
	mostLate = 50 * time.Millisecond
)

// lone is a connection that can make a turn of one message.
type lone interface {
	// alone commits an entry behind another one, and returns the database's clock. It does nothing and returns false if that other one is not
	// the last, another server answers than before, its clock is not between now and late after now, or a transaction guards one of the
	// leases tried.
	alone(ctx context.Context, e *entry, behind mark, now fencing.Instant, late time.Duration, tried []fencing.Token) (at fencing.Instant, done bool, err error)
}

// alone carries out the items without having asked, if no other gateway does anything: what they come to is found out on a copy of
// the names that they are about, and counts when the database has said that nobody else has written. It reports whether that
// is done; if not, nothing has happened.
func (t *turn) alone(ctx context.Context) (done bool, err error) {
	conn, able := t.conn.(lone)
	skew, now := t.options.MaxSkew, t.clock()
	switch {
	case !able, !t.writes, t.tells, t.arrives, len(t.items) > mostAlone,
		t.options.aloneAfter < 0, time.Since(t.lastOther) < t.options.aloneAfter,
		now < t.memory.Now(), t.memory.last == 0, t.memory.sure != mark{t.memory.Applied(), t.memory.last}, len(t.memory.Left(1)) > 0,
		t.lastSkewed, skew > 0 && now.Sub(fencing.InstantOf(t.options.clock())).Abs() > skew:
		return false, nil
	}
	t.now, t.batch, t.asked = now, t.Store.batch, time.Now()
	carried, ops, tried := t.plan()
	e, d, err := t.entry()
	if err != nil {
		return false, err
	}
	if len(t.ops) == 0 {
		return false, nil
	}
	ok, err := t.rehearse(e, d, ops)
	if err != nil {
		t.refuse(err, carried)
		return false, err
	}
	if !ok {
		t.ops = nil
		return false, nil
	}
	late := mostLate
	if t.options.now != nil {
		late = -time.Second
	}
	var at fencing.Instant
	done, err = awaitTurn(t.Store, func() (done bool, err error) {
		at, done, err = conn.alone(ctx, e, t.memory.sure, now, late, tried)
		return done, err
	})
	switch {
	case errors.Is(err, errUndecided):
	case isUnclear(err) && refusedFor(err) == ofAll: // which of its statements is refused, and whether for what it writes, a turn shows that has them one by one
		t.ops, t.wrote = nil, nil
		return false, t.conn.abandon(ctx)
	case err != nil:
		return false, err
	case !done:
		t.ops, t.wrote, t.lastOther = nil, nil, time.Now()
		return false, nil
	default:
		t.lastNow, t.lastSeen = at, time.Now()
		late = min(late, at.Sub(now))
	}
	t.asked = t.asked.Add(-max(0, late)) // by so much the database's clock was ahead of the turn's instant then, at most
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.tell()
	results, err := t.rehearsed(e, d, err)
	if err != nil {
		return false, err
	}
	t.answer(carried, results)
	t.look()
	return true, nil
}

// rehearse finds out, on a copy of the names that its operations are about, what the rows of leases have to follow of an entry. Memory stays
// as it is: see rehearsed. ok is false if there is too much to copy.
func (t *turn) rehearse(e *entry, d *machine.Decoded, ops []fencing.Op) (ok bool, err error) {
	part, ok := t.memory.Part(ops)
	if !ok {
		return false, nil
	}
	leases := map[fencing.EndedLease]fencing.Token{}
	if _, err := part.Apply(e.seq, d, &machine.Telling{Quiet: true, Leases: leases}, false); err != nil {
		return false, err
	}
	t.noteRows(e, part.State(), leases)
	return true, nil
}

// plan puts together what the items have done, and returns which leases may yield something by that.
func (t *turn) plan() (all []carried, ops []fencing.Op, tried []fencing.Token) {
	t.mu.Lock() // what is found due too early is corrected
	defer t.mu.Unlock()
	for _, it := range t.items {
		from := len(t.ops)
		for _, op := range it.operations(t.memory.Machine, t.now, nil) {
			t.ops = append(t.ops, op.encoded)
			if op.op != nil {
				ops = append(ops, op.op)
			}
			tried = append(tried, op.mayYield(t.memory.Machine, t.now)...)
		}
		all = append(all, carried{it, from, len(t.ops), nil})
	}
	return all, ops, tried
}

// rehearsed carries out an entry in memory whose commit came to err, and returns its results when it is in the log. Unless it may be there,
// memory stays as it is.
func (t *turn) rehearsed(e *entry, d *machine.Decoded, err error) ([]machine.Result, error) {
	if err != nil && !errors.Is(err, errUndecided) {
		return nil, err
	}
	results, failure := t.apply(e, d, &machine.Telling{})
	if failure == nil {
		failure = t.decided(err)
	}
	if failure != nil {
		return nil, t.restored(failure)
	}
	return results, nil
}
