package embedded

import (
	"errors"
	"fmt"
	"time"

	"fencepost/internal/machine"
)

const (
	// snapshotAfter is how much of the log is written before a snapshot takes its place, in bytes of entries: so much is
	// carried out at a start after a crash in about two seconds. Where the snapshot is so large that it takes longer to read, it is a
	// quarter of that.
	snapshotAfter = 16 << 20

	// snapshotAfterFiles is the same in files, in which each entry takes whole blocks: with more of them a snapshot is taken. Where
	// the newest one is larger, they may be as large.
	snapshotAfterFiles = 4

	// mostBehind is how many times that the log may be while a snapshot is written: then what is written waits for it.
	mostBehind = 4
)

// compact begins a snapshot as of a batch that was taken, if the log has grown enough. The caller holds the mutex.
func (s *Store) compact(b *batch) {
	if s.saving != nil || !s.disk.large(s.grown) {
		return
	}
	snapshot, err := s.machine.Snapshot()
	if err != nil {
		s.log.Error("a snapshot can't be started", "error", err)
		return
	}
	s.saving = &saving{b.index, make(chan struct{})}
	s.grown = 0
	s.snapshots.Go(func() {
		<-b.done // until then it has more than was acknowledged
		err := b.err
		if err == nil {
			err = caught(func() error { return s.disk.save(snapshot, &s.mu, machine.Check, s.goesOn) })
		}
		if p, panicked := errors.AsType[*machine.Panic](err); panicked {
			s.fail("a snapshot could not be written", p)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		snapshot.Release()
		close(s.saving.done)
		s.saving = nil
		if s.disk.tried = 0; err != nil { // until there is another file
			s.disk.tried = s.disk.log.Bytes()
		}
		if err != nil && s.cause == nil && !errors.Is(err, errCloses) {
			s.log.Warn("a snapshot could not be taken; the log grows until the next one", "error", err)
		}
	})
}

// errCloses is of a snapshot in whose place Close takes one.
var errCloses = errors.New("the store is being closed, and takes another snapshot")

// goesOn returns errCloses from Close on.
func (s *Store) goesOn() error {
	if s.closing.Load() {
		return errCloses
	}
	return nil
}

// saving is a snapshot that is being written.
type saving struct {
	index uint64 // of the log
	done  chan struct{}
}

// awaitSnapshot waits, before an entry is written, for a snapshot beside which the log has become too large.
func (s *Store) awaitSnapshot(index uint64) {
	s.mu.Lock()
	under := s.saving
	s.mu.Unlock()
	if under != nil && under.index < index && s.disk.log.Bytes() > mostBehind*s.disk.mostFiles() {
		<-under.done
	}
}

// lastSnapshot has a snapshot take the place of all of the log.
func (s *Store) lastSnapshot() error {
	began := time.Now()
	snapshot, err := s.beginSnapshot()
	if err != nil {
		return err
	}
	telling := time.AfterFunc(tellAfter, func() { s.log.Info("writing the final snapshot") })
	defer telling.Stop()
	if err := s.disk.save(snapshot, &s.mu, machine.Skim, func() error { return nil }); err != nil { // who ends it waits
		return fmt.Errorf("the last snapshot was not written: nothing is lost, and the next start takes longer: %w", err)
	}
	if took := time.Since(began); took > tellAfter {
		s.log.Info("the final snapshot was written", "took", took.Round(time.Millisecond))
	}
	return nil
}

func (s *Store) beginSnapshot() (*machine.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine.Snapshot()
}

// tellAfter is how long something takes at a start or an end before the log says so.
const tellAfter = 5 * time.Second
