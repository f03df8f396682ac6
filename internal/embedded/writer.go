package embedded

import (
	"time"

	"fencepost/internal/fencing"
)

// batch is what one flush makes durable, and what is told when it has. While it gathers,
// the mutex guards it; from take on it is flushAll's.
type batch struct {
	changed changes
	writes  writes          // as changed is encoded when the flush begins
	now     fencing.Instant // of the last decision
	asked   time.Time       // the gateway's clock then
	due     bool            // has gathered for long enough
	late    bool            // an answer waits for it
	told    []told
	events  []fencing.Event

	done chan struct{} // closed when it is durable, or err says why it is not
	err  error
}

// told is a message to the Listener.
type told struct {
	grant    fencing.Grant
	replaced *fencing.Parked // or this, on the name of grant
	asks     *fencing.Parked // or this
	now      fencing.Instant
	asked    time.Time
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

func (b *batch) empty() bool { return b.changed.empty() && len(b.told) == 0 && len(b.events) == 0 }

// urgent reports whether somebody waits for the batch. What changes nothing is told at
// once.
func (b *batch) urgent() bool {
	return !b.empty() && (b.due || b.late || len(b.told) > 0 || b.changed.empty())
}

// has reports whether a batch, nil for none, has to make a lease durable.
func (b *batch) has(key fencing.EndedLease) bool {
	if b == nil {
		return false
	}
	_, has := b.changed.holders[key]
	return has
}

// scheduleFlush sees to it that what has gathered is flushed: now if somebody waits for it, else
// with what comes within gatherPause. The caller holds the mutex.
func (s *Store) scheduleFlush() {
	switch {
	case s.flushing != nil: // flushAll looks when it has done that
	case s.next.urgent() || len(s.unfinished) > 0 || s.ending:
		select {
		case s.wake <- struct{}{}:
		default:
		}
	case !s.gathering && !s.next.empty():
		s.gathering = true
		s.gathered.Reset(gatherPause)
	}
}

// gatheredEnough is what follows gatherPause.
func (s *Store) gatheredEnough() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next.due = true
	s.scheduleFlush()
}

// flushAll makes one batch after the other durable, and tells whom it concerns, until the
// store is closed. While one flush is under way, what comes is decided already and
// gathers for the next.
func (s *Store) flushAll() {
	defer close(s.ended)
	for range s.wake {
		b := s.take()
		for ; b != nil; b = s.take() {
			var err error
			if !b.changed.empty() {
				err = s.disk.flush(&b.writes)
			}
			if err != nil {
				s.fail(err)
			}
			s.deliver(b, err)
		}
		if s.finished() {
			return
		}
	}
}

// take returns the next batch, nil if there is none for now, and goes on with what steps
// have left to do.
func (s *Store) take() *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushing = nil
	if s.cause != nil {
		return nil
	}
	if len(s.unfinished) > 0 {
		s.next.asked, s.next.now = time.Now(), s.now()
	}
	for name := range s.unfinished {
		s.attend(name)
	}
	if !s.next.urgent() && !(s.ending && !s.next.empty()) {
		s.scheduleFlush()
		return nil
	}
	b := s.next
	if !b.changed.empty() {
		b.writes = b.changed.encode(s.state, b.now)
		s.flushed = b.now
	}
	s.flushing, s.next, s.gathering = b, newBatch(), false
	return b
}

// deliver tells what came of a batch.
func (s *Store) deliver(b *batch, err error) {
	if listener := s.listener.Load(); listener != nil && err == nil {
		for i := range b.told {
			switch t := &b.told[i]; {
			case t.replaced != nil:
				(*listener).Replaced(t.grant.Name, t.replaced.Stamp)
			case t.asks != nil:
				(*listener).Ask(t.grant.Name, t.asks.Stamp)
			default:
				(*listener).Granted(t.grant, t.now, t.asked)
			}
		}
	}
	b.err = err
	close(b.done)
	if err == nil {
		s.watchers.tell(b.events)
	}
}

// finished reports whether the store is closed and all is flushed. It makes a clean end
// then: the file has everything, and its time.
func (s *Store) finished() bool {
	s.mu.Lock()
	ending, cause := s.ending, s.cause
	s.mu.Unlock()
	if ending && cause == nil {
		last := changes{clock: true}
		w := last.encode(s.state, s.now())
		if s.unclean = s.disk.finish(&w); s.unclean != nil {
			s.fail(s.unclean)
		}
	}
	return ending
}

// fail makes the store refuse everything from now on, and what has been decided since
// the flush began.
func (s *Store) fail(err error) {
	s.log.Error("a flush failed; the store stops", "error", err)
	s.mu.Lock()
	s.cause = err
	gathered := s.next
	s.next = newBatch()
	s.mu.Unlock()
	close(s.failed)
	s.deliver(gathered, err)
}
