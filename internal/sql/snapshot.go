package sql

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"fencepost/internal/machine"
)

const (
	// snapshotAfter is how many bytes of entries are carried out before a snapshot takes their place: a gateway reads as much at its
	// start, in a second or two.
	snapshotAfter = 32 << 20

	// claimFor is for how long nobody else writes a snapshot. Who does claims it again meanwhile.
	claimFor = 30 * time.Second

	// chunkSize is how many bytes a chunk of a snapshot has: less than the smallest message that a server must take.
	chunkSize = 512 << 10

	// keptBehind is how many entries a snapshot leaves in the log, for gateways that have not carried them out yet, or know the last one
	// of theirs by it.
	keptBehind = 256

	// cutAtOnce is how many entries one statement removes: some milliseconds.
	cutAtOnce = 1000

	// closeTimeout bounds the snapshot at the end.
	closeTimeout = 10 * time.Second
)

// errOvertaken says that another gateway has written a snapshot meanwhile.
var errOvertaken = errors.New("another gateway has written a snapshot meanwhile")

// head is part 0 of a snapshot.
func head(chunks int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(chunks)) }

func readHead(b []byte) (int, error) {
	if len(b) != 4 {
		return 0, fmt.Errorf("part 0 has %d bytes: %w", len(b), machine.ErrDamaged)
	}
	return int(binary.BigEndian.Uint32(b)), nil
}

// considerSnapshot has a snapshot take the place of the log where that has grown. The caller holds the mutex, and memory is
// committed.
func (s *Store) considerSnapshot() {
	after := s.options.snapshotAt
	if after == 0 {
		after = snapshotAfter
	}
	if s.memory.grown < after || !s.saving.CompareAndSwap(false, true) {
		return
	}
	s.memory.grown = 0 // another gateway may do it
	s.work.Go(func() {
		defer s.saving.Store(false)
		if err := s.save(s.ctx); err != nil && s.ctx.Err() == nil {
			s.log.Warn("a snapshot could not be written; the log grows until the next one", "error", err)
		}
	})
}

// save writes a snapshot while turns go on, unless another gateway does, and removes what it takes the place of.
func (s *Store) save(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.close()
	claimed, err := conn.claim(ctx, s.gateway)
	if err != nil || !claimed {
		return err
	}
	newest, _, err := conn.newest(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	of, last := s.memory.Machine, s.memory.sure
	if of.Applied() == newest || s.memory.ahead || s.Cause() != nil {
		s.mu.Unlock()
		return nil
	}
	snapshot, err := of.Snapshot()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		snapshot.Release()
		s.mu.Unlock()
	}()
	w := &chunkWriter{ctx: ctx, conn: conn, of: s, seq: snapshot.Applied(), claimed: time.Now()}
	buffered := bufio.NewWriterSize(w, chunkSize)
	if err := snapshot.Write(buffered, &s.mu); err != nil {
		return err
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	if err := machine.Skim(&chunkReader{ctx: ctx, conn: conn, seq: w.seq, chunks: w.no}); err != nil {
		return fmt.Errorf("what was written can't be read: %w", err)
	}
	if err := conn.finish(ctx, s.gateway, last, w.no); err != nil {
		return err
	}
	upTo := max(w.seq, keptBehind) - keptBehind
	for more := true; more; {
		if more, err = conn.cut(ctx, upTo, w.seq, cutAtOnce); err != nil {
			return fmt.Errorf("what a snapshot took the place of could not be removed: %w", err)
		}
	}
	return nil
}

// end writes a snapshot at a clean end, so that the next start need not carry out the log, also by a version with other rules.
func (s *Store) end() {
	defer func() {
		if s.conn != nil {
			s.conn.close()
		}
	}()
	if s.Cause() != nil || s.out.Load() != nil || s.memory.Applied() == s.memory.from {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, closeTimeout)
	defer cancel()
	if err := s.save(ctx); err != nil {
		s.log.Warn("no snapshot could be written at shutdown; the next start replays the log", "error", err)
	}
}

// chunkWriter writes a snapshot.
type chunkWriter struct {
	ctx     context.Context
	conn    connection
	of      *Store
	seq     uint64
	no      int
	claimed time.Time
}

// Write implements io.Writer.
func (w *chunkWriter) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		if time.Since(w.claimed) > claimFor/3 {
			w.claimed = time.Now()
			if claimed, err := w.conn.claim(w.ctx, w.of.gateway); err != nil || !claimed {
				return n, errors.Join(errOvertaken, err)
			}
		}
		chunk := p[n:min(len(p), n+chunkSize)]
		w.no++
		err = w.conn.put(w.ctx, w.seq, w.no, chunk)
		n += len(chunk)
	}
	return n, err
}
