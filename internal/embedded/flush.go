package embedded

import (
	"errors"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// batch is an entry of the log, and what is told when it is durable. While it gathers,
// the mutex guards it; from take on it is flushAll's.
type batch struct {
	index    uint64
	entry    machine.Entry
	telling  machine.Telling
	promised map[fencing.EndedLease]struct{} // leases of which it promises more than what is durable
	now      fencing.Instant                 // of the last decision
	asked    time.Time                       // the gateway's clock then
	due      bool                            // has gathered for long enough
	late     bool                            // an answer waits for it
	size     int                             // bytes of what it asks for
	taken    chan struct{}                   // closed when it gathers no more

	done chan struct{} // closed when it is durable, or err says why it is not
	err  error
}

const (
	// mostGathered bounds the operations that gather for a flush, in bytes: of more each waits for that.
	mostGathered = 4 << 20

	// batchOverhead is about how much is needed for an operation beside its bytes.
	batchOverhead = 64
)

func newBatch() *batch { return &batch{taken: make(chan struct{}), done: make(chan struct{})} }

func (b *batch) empty() bool { return len(b.entry.Batches) == 0 }

// urgent reports whether somebody waits for the batch.
func (b *batch) urgent() bool {
	return !b.empty() && (b.due || b.late || len(b.telling.Told) > 0)
}

// promises notes that a batch promises more of a lease.
func (b *batch) promises(lease fencing.EndedLease) {
	if b.promised == nil {
		b.promised = map[fencing.EndedLease]struct{}{}
	}
	b.promised[lease] = struct{}{}
}

// has reports whether a batch, nil for none, promises more of a lease than what is durable.
func (b *batch) has(lease fencing.EndedLease) bool {
	if b == nil {
		return false
	}
	_, has := b.promised[lease]
	return has
}

// scheduleFlush sees to it that what has gathered is flushed: now if somebody waits for it, else
// with what comes within gatherPause. The caller holds the mutex.
func (s *Store) scheduleFlush() {
	switch {
	case s.flushing != nil: // flushAll looks when it has done that
	case s.next.urgent() || s.ending || s.left():
		select {
		case s.wake <- struct{}{}:
		default:
		}
	case !s.gathering && !s.next.empty():
		s.gathering = true
		s.gathered.Reset(gatherPause)
	}
}

// left reports whether a step has left something to do.
func (s *Store) left() bool { return s.guard.StepLimit == 0 && len(s.machine.Left(1)) > 0 }

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
			err := caught(func() error { return s.flush(b) })
			if err != nil {
				s.fail("a flush failed", err)
			}
			s.deliver(b, err)
		}
		if s.finished() {
			return
		}
	}
}

// take returns the next batch, nil if there is none for now, and goes on with what steps
// have left to do. A panic ends the store: see condemn.
func (s *Store) take() (b *batch) {
	s.mu.Lock()
	s.flushing = nil
	if s.cause != nil {
		s.mu.Unlock()
		return nil
	}
	panicked := machine.Caught(func() { b = s.takeNext() })
	if panicked == nil {
		s.mu.Unlock()
		return b
	}
	gathered := s.condemn(panicked)
	s.mu.Unlock()
	s.end(gathered, errPanicked, panicked)
	return nil
}

// takeNext is take. The caller holds the mutex.
func (s *Store) takeNext() *batch {
	if s.left() {
		s.next.asked, s.next.now = time.Now(), s.now()
		for _, name := range s.machine.Left(machine.GoOn) {
			s.attend(name)
		}
	}
	if !s.next.urgent() && !(s.ending && !s.next.empty()) {
		s.scheduleFlush()
		return nil
	}
	b := s.next
	s.machine.EndEntry(b.index)
	b.entry.Behind, b.entry.Digest = s.machine.LastDigest()
	s.noteWalls()
	s.compact(b)
	close(b.taken) // nothing panics from here on
	s.flushing, s.next, s.gathering = b, newBatch(), false
	return b
}

// flush makes a batch durable.
func (s *Store) flush(b *batch) error {
	if s.hooks.beforeFlush != nil {
		if err := s.hooks.beforeFlush(); err != nil {
			return err
		}
	}
	s.awaitSnapshot(b.index)
	_, data, err := s.disk.append(b.index, &b.entry)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.grown += len(data)
	s.mu.Unlock()
	if s.hooks.afterFlush != nil {
		s.hooks.afterFlush()
	}
	return nil
}

// deliver tells what came of a batch.
func (s *Store) deliver(b *batch, err error) {
	if listener := s.listener.Load(); listener != nil && err == nil {
		for i := range b.telling.Told {
			b.telling.Told[i].Tell(*listener)
		}
	}
	b.err = err
	close(b.done)
	if err == nil {
		for i := range b.telling.Events {
			b.telling.Events[i].ID = s.run + b.telling.Events[i].ID
		}
		s.watchers.Tell(b.telling.Events)
	}
}

// finished reports whether the store is closed and all is flushed. It makes a clean end
// then: a snapshot has everything.
func (s *Store) finished() bool {
	s.mu.Lock()
	ending, cause := s.ending, s.cause
	s.mu.Unlock()
	if ending && cause == nil {
		s.snapshots.Wait()
		if s.unclean = s.disk.held(); s.unclean == nil {
			s.unclean = caught(s.lastSnapshot)
		}
		if s.unclean != nil {
			s.fail("the shutdown was not clean", s.unclean)
		}
	} else if ending {
		s.snapshots.Wait()
	}
	return ending
}

// fail makes the store refuse everything from now on, and what has been decided since
// the flush began.
func (s *Store) fail(what string, err error) {
	err = datadir.Explained(s.disk.dir, err)
	s.mu.Lock()
	gathered := s.condemn(err)
	s.mu.Unlock()
	s.end(gathered, what, err)
}

// errPanicked says what has failed where it was a decision.
const errPanicked = "an operation could not be carried out"

// condemn has nothing be decided any more, and no snapshot be written, and returns what has gathered, which never gets into the log: the caller is
// to call end for it without the mutex, which it holds now. It returns nil if the store has failed before.
func (s *Store) condemn(cause error) (gathered *batch) {
	if s.cause != nil {
		return nil
	}
	s.cause = cause
	s.machine.Abandon()
	gathered = s.next
	close(gathered.taken)
	s.next = newBatch()
	return gathered
}

// end tells everybody that the store has failed, unless it had failed before: those who wait for what had gathered, people and the
// owner.
func (s *Store) end(gathered *batch, what string, err error) {
	attrs := []any{"error", err}
	if p, panicked := errors.AsType[*machine.Panic](err); panicked {
		attrs = append(attrs, "asked", p.Asked(), "stack", p.Stack)
	}
	s.log.Error(what+"; the store stops", attrs...)
	if gathered != nil {
		s.deliver(gathered, err)
		close(s.failed)
	}
}

// caught is f, and the panic that ended it as an error.
func caught(f func() error) (err error) {
	if p := machine.Caught(func() { err = f() }); p != nil {
		return p
	}
	return err
}
