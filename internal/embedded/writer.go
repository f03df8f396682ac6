package embedded

import (
	"time"

	"fencepost/internal/fencing"
)

// decideAll decides calls until the store is closed: the only goroutine that
// changes state and index. While one flush is under way, what comes is decided
// already and gathers for the next.
func (s *Store) decideAll() {
	defer close(s.ended)
	jobs, flushed := make(chan *job), make(chan error, 1)
	go s.flushAll(jobs, flushed)
	defer close(jobs)

	next := &job{}    // gathers
	var flushing *job // is under way
	gathered := time.NewTimer(time.Hour)
	defer gathered.Stop()
	gathering, closing := false, false
	ready := make(chan struct{})
	close(ready)
	for {
		switch {
		case flushing != nil:
		case next.changed.empty() || s.cause != nil:
			s.tell(next, s.cause)
			*next = job{late: next.late[:0], told: next.told[:0]}
		case next.urgent() || closing:
			next.writes = next.changed.encode(s.state, next.now)
			s.flushed = next.now
			gathering = false
			jobs <- next
			next, flushing = &job{}, next
		case !gathering:
			gathering = true
			gathered.Reset(gatherPause)
		}
		unfinished := ready
		if len(s.unfinished) == 0 || s.cause != nil {
			unfinished = nil
		}
		closed := s.closed
		if flushing != nil {
			closed = nil // what is under way is to end first
		}
		select {
		case c := <-s.queue:
			s.decide(c, next, flushing)
		case <-unfinished:
			s.goOn(next)
		case err := <-flushed:
			flushing = nil
			if err != nil {
				s.fail(err)
			}
		case <-gathered.C:
			next.due = true
		case <-closed:
			if closing && len(s.queue) == 0 {
				s.finish()
				return
			}
			closing = true
		}
		if len(s.putOff) > 0 {
			s.askAgain(next, flushing)
		}
	}
}

// flushAll makes jobs durable, one after the other, and tells whom they concern.
func (s *Store) flushAll(jobs <-chan *job, flushed chan<- error) {
	for j := range jobs {
		err := s.disk.flush(&j.writes)
		s.tell(j, err)
		flushed <- err
	}
}

// job is what one flush makes durable, and what is told when it has.
type job struct {
	changed changes
	writes  writes // as changed is encoded when the flush begins
	now     fencing.Instant
	due     bool // has gathered for long enough

	late   []*call
	told   []told
	events []fencing.Event
}

// told is a message to the Listener.
type told struct {
	grant    fencing.Grant
	replaced *fencing.Parked // or this, on the name of grant
	now      fencing.Instant
	asked    time.Time
}

// urgent reports whether somebody waits for the flush.
func (j *job) urgent() bool { return j.due || len(j.late) > 0 || len(j.told) > 0 }

// has reports whether a job, nil for none, has to make a lease durable.
func (j *job) has(key fencing.EndedLease) bool {
	if j == nil {
		return false
	}
	_, has := j.changed.holders[key]
	return has
}

// tell delivers what came of a job. Only one job is told at a time: that which
// was decided first.
func (s *Store) tell(j *job, err error) {
	if listener := s.listener.Load(); listener != nil && err == nil {
		for i := range j.told {
			if t := &j.told[i]; t.replaced != nil {
				(*listener).Replaced(t.grant.Name, t.replaced.Stamp)
			} else {
				(*listener).Granted(t.grant, t.now, t.asked)
			}
		}
	}
	for _, c := range j.late {
		c.answer(err)
	}
	if err == nil {
		s.watchers.tell(j.events)
	}
}

// finish makes a clean end: the file has everything, and its time.
func (s *Store) finish() {
	if s.cause != nil {
		return
	}
	last := changes{clock: true}
	w := last.encode(s.state, s.now())
	if err := s.disk.finish(&w); err != nil {
		s.fail(err)
	}
}

// fail makes the store refuse everything from now on.
func (s *Store) fail(err error) {
	s.log.Error("a flush failed; the store stops", "error", err)
	s.cause = err
	close(s.failed)
}
