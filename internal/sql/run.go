package sql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

const (
	// askEvery is how often the end of the log is asked for while somebody waits here or hears events, hintedEvery where the gateway
	// hears hints as well, and idleEvery while nobody waits or hears: a gateway that lags much has a snapshot to read.
	askEvery    = 25 * time.Millisecond
	hintedEvery = 250 * time.Millisecond
	idleEvery   = time.Second

	// guardedEvery is how often it is looked whether a transaction that guards a lease which is to end is over.
	guardedEvery = 20 * time.Millisecond

	// mostRefusals is how often the database may refuse a turn before its operations are given up. Where a connection is lost, they are
	// tried again while their callers wait.
	mostRefusals = 3

	// mostPadding bounds with how many bytes it is tried whether the database can be written to again.
	mostPadding = 64 << 10

	// joinAfter is for how long nothing joins a turn that was waited for when one was refused for what one item asks for.
	joinAfter = 10 * time.Second

	minPause = 20 * time.Millisecond
	maxPause = time.Second
)

// run makes one turn after the other, until the store is closed. It alone speaks with the database in turns, and changes memory.
func (s *Store) run() {
	defer close(s.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := minPause; ; {
		select {
		case <-s.queue.wake:
		case <-timer.C:
		}
		items := s.queue.take()
		var err error
		if s.Cause() == nil {
			err = s.turns(append(s.takeGuarded(), items...))
		} else {
			refuse(items, s.errFailed())
		}
		if s.queue.over() {
			refuse(s.guarded, errClosed)
			s.leave()
			return
		}
		if err == nil {
			pause = minPause
		} else {
			s.pause(pause)
			pause = min(2*pause, maxPause)
		}
		timer.Reset(s.nextLook())
	}
}

// pause waits, unless the store is closed meanwhile: then it returns false.
func (s *Store) pause(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.closing:
		return false
	}
}

// nextLook returns how long run may wait for something to do.
func (s *Store) nextLook() time.Duration {
	switch {
	case len(s.guarded) > 0:
		return guardedEvery
	case !s.watchers.Any() && time.Now().UnixNano() >= s.waitsUntil.Load():
		return idleEvery
	case s.hinted.Load():
		return s.options.hinted
	}
	return askEvery
}

// takeGuarded returns what waits for transactions that guard leases, as much as goes into a turn beside others.
func (s *Store) takeGuarded() (items []*item) {
	var left []*item
	for _, it := range s.guarded {
		switch {
		case it.gone():
			it.finish(guardedError)
		case len(items) < machine.MostOps/2:
			items = append(items, it)
		default:
			left = append(left, it)
		}
	}
	s.guarded = left
	return items
}

// refuse ends items.
func refuse(items []*item, err error) {
	for _, it := range items {
		it.finish(fencing.Unavailable(err))
	}
}

// turns carries items out, in one turn if all is well. After a turn that has failed, and until one that writes has gone through, looks have a
// turn of their own, for what can't be written can still be looked at. The other turn then writes as many bytes besides as the one had
// that failed, which shows whether the database takes as much again.
func (s *Store) turns(items []*item) error {
	if !s.failing && s.unwritten == 0 {
		return s.turn(items)
	}
	var looks, writes []*item
	for _, it := range items {
		if it.ops == nil && it.due == nil && !it.locks {
			looks = append(looks, it)
		} else {
			writes = append(writes, it)
		}
	}
	if len(looks) > 0 {
		if err := s.turn(looks); err != nil {
			refuse(writes, err)
			return err
		}
	}
	if s.unwritten == 0 {
		return s.turn(writes)
	}
	if len(looks) == 0 { // events go on, and what others have written shows what the database takes
		if err := s.turn(nil); err != nil {
			s.tryLater(writes, err)
			return err
		}
	}
	// What was refused may have been the rows of leases, which no padding has. Where it is not clear why, they find out.
	refusal := s.tries()
	if refusal != nil && !(isUnclear(refusal) && mayChange(writes)) {
		s.outage(refusal)
		s.tryLater(writes, refusal)
		return refusal
	}
	if refusal == nil {
		gone, cancel := context.WithCancel(s.ctx)
		cancel() // it is not tried again for its own sake
		writes = append(writes, &item{ops: []operation{{encoded: machine.Padded(s.unwritten)}}, ctx: gone, done: make(chan struct{})})
	}
	err := s.turn(writes)
	if wroteRow := s.taken.Token != 0; err == nil && s.Cause() == nil && (refusal == nil || wroteRow) {
		s.unwritten = 0
		s.outage(nil)
	}
	return err
}

// turn carries items out. After an error it is to be waited before the next one.
func (s *Store) turn(items []*item) error {
	if err := s.connected(); err != nil {
		s.outage(err)
		refuse(items, err)
		return err
	}
	t := &turn{Store: s, items: s.resting.refuse(items)}
	t.estimate()
	var err error
	if slices.ContainsFunc(t.items, func(it *item) bool { return it.locks }) {
		if err = s.tries(); isUnclear(err) && mayChange(t.items) {
			refusal := fencing.Unavailable(err)
			t.items = slices.DeleteFunc(slices.Clone(t.items), func(it *item) bool {
				if it.locks {
					it.finish(refusal)
				}
				return it.locks
			})
			err = s.connected()
		}
	}
	if err == nil {
		conn := s.conn
		if err = t.carryOut(); err != nil {
			s.drop(conn)
		}
	}
	if panicIn(err) != nil && s.Cause() == nil { // what is at fault rests now, and memory is as it was
		s.queue.putBack(t.items)
		return nil
	}
	if s.Cause() == nil && t.isToPart(err) {
		return s.apart(t, err)
	}
	if s.failing = err != nil; !s.failing {
		if s.unwritten == 0 {
			s.outage(nil)
		}
		return nil
	}
	if t.writes {
		s.unwritten = max(s.unwritten, min(t.size(), mostPadding))
	}
	s.tryLater(t.items, err)
	s.outage(err)
	return err
}

// mayChange reports whether some of items may change something.
func mayChange(items []*item) bool {
	return slices.ContainsFunc(items, func(it *item) bool { return it.ops != nil || it.due != nil })
}

// connected opens the connection for turns, unless there is one.
func (s *Store) connected() error {
	if s.conn != nil {
		return nil
	}
	conn, err := s.connect(s.ctx)
	if err == nil {
		s.conn = conn
	}
	return err
}

// drop closes the connection of a turn that has failed, unless memory was read anew by a new one since.
func (s *Store) drop(conn connection) {
	if s.conn == conn {
		s.conn.close()
		s.conn = nil
	}
}

// tryLater has items wait for the next turn after one that has failed, but for those that wait no longer or were refused too often. After
// the last turn none waits.
func (s *Store) tryLater(items []*item, err error) {
	closing := false
	select {
	case <-s.closing:
		closing = true
	default:
	}
	var refusal refused
	isRefused := errors.As(err, &refusal)
	var again []*item
	for _, it := range items {
		if isRefused {
			it.refusals++
		}
		if it.gone() || it.refusals == mostRefusals || s.Cause() != nil || closing {
			it.finish(fencing.Unavailable(err))
			continue
		}
		again = append(again, it)
	}
	s.queue.putBack(again)
}

// noteWaits notes that somebody waits here, or has a stream.
func (s *Store) noteWaits(it *item) {
	for i := range it.results {
		if out := &it.results[i].Out; out.Err == nil && (out.Waits() || out.Holder.Attached != "" || out.Holder.Provisional) {
			s.wait()
			return
		}
	}
}

// wait has the end of the log be asked for often until the heartbeat after next.
func (s *Store) wait() {
	s.waitsUntil.Store(time.Now().Add(3 * fencing.HeartbeatInterval).UnixNano())
}

// slow says why a caller had no answer in time.
func (s *Store) slow() error {
	if err := s.out.Load(); err != nil {
		return *err
	}
	return away(fmt.Errorf("the database has not answered: %w", context.DeadlineExceeded))
}
