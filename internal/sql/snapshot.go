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
	// start, in two to three seconds where it and the database have a core each, beside the snapshot (200,000 held locks: three more).
	snapshotAfter = 32 << 20

	// claimFor is for how long nobody else writes a snapshot. Who does claims it again meanwhile.
	claimFor = 30 * time.Second

	// claimPause is how often who stops last asks whether another one has written its snapshot.
	claimPause = 100 * time.Millisecond

	// chunkSize is how many bytes a chunk of a snapshot has: less than the smallest message that a server must take.
	chunkSize = 512 << 10

	// keptBehind is how many entries a snapshot leaves in the log, for gateways that have not carried them out yet, or know the last one
	// of theirs by it.
	keptBehind = 256

	// cutAtOnce is how many entries one statement removes: some milliseconds.
	cutAtOnce = 1000

	// keptFor is for how long at least entries stay that a snapshot has taken the place of: a gateway that asks every idleEvery has them by then.
	keptFor = 5 * time.Second

	// smallState is how many names and tombstones a state has at most, and smallChunks how many chunks its snapshot, for a gateway that stops to
	// write one though others may serve: some 100 ms, and at most a second or two.
	smallState  = 10_000
	smallChunks = 16

	// closeTimeout bounds all that Close does, and giveUpTimeout what a snapshot that can't be finished is removed in.
	closeTimeout  = 25 * time.Second
	giveUpTimeout = 3 * time.Second
)

var (
	// errOvertaken says that another gateway has written a snapshot meanwhile.
	errOvertaken = errors.New("another gateway has written a snapshot meanwhile")

	// errClaimed says that another gateway writes one.
	errClaimed = errors.New("another gateway writes a snapshot")

	// errLarge says that a snapshot has more chunks than it may have.
	errLarge = errors.New("a snapshot is larger than one for which others wait")
)

// head is part 0 of a snapshot.
func head(chunks int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(chunks)) }

func readHead(b []byte) (int, error) {
	if len(b) != 4 {
		return 0, fmt.Errorf("part 0 has %d bytes: %w", len(b), machine.ErrDamaged)
	}
	return int(binary.BigEndian.Uint32(b)), nil
}

// considerSnapshot has a snapshot take the place of the log where that has grown. Once, when a claim from before its start is over, it
// removes what gateways that are gone have left: parts of snapshots, and of the log what the newest one has. The caller holds the mutex, and
// memory is committed.
func (s *Store) considerSnapshot() {
	grown := s.memory.grown >= s.options.snapshotAt
	tidies := !s.tidied && time.Since(s.opened) > s.options.tidyAfter
	if !grown && !tidies || !s.saving.TryLock() {
		return
	}
	s.tidied = true
	if grown {
		s.memory.grown = 0 // another gateway may do it
	}
	s.work.Go(func() {
		defer s.saving.Unlock()
		failed, err := "a snapshot could not be written; the log grows until the next one", error(nil)
		if grown {
			err = s.save(s.ctx, s.options.keptFor, 0)
		} else {
			failed = "what gateways that are gone have left of snapshots could not be removed"
			err = s.tidyLog(s.ctx)
		}
		if err != nil && !errors.Is(err, errClaimed) && s.ctx.Err() == nil {
			s.log.Warn(failed, "error", err)
		}
	})
}

// claiming does something while no other gateway writes a snapshot; errClaimed: one does.
func (s *Store) claiming(ctx context.Context, do func(connection) error) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.close()
	claimed, err := conn.claim(ctx, s.gateway)
	if err != nil {
		return err
	}
	if !claimed {
		return errClaimed
	}
	if err := do(conn); err != nil {
		return err
	}
	return conn.release(ctx, s.gateway)
}

// tidy removes what is left of snapshots that were given up.
func (s *Store) tidy(ctx context.Context) error {
	return s.claiming(ctx, func(conn connection) error { return conn.tidy(ctx) })
}

// tidyLog removes what is left of snapshots, and what the newest one takes the place of: who has written that may have stopped before it did so.
func (s *Store) tidyLog(ctx context.Context) error {
	newest := uint64(0)
	err := s.claiming(ctx, func(conn connection) (err error) {
		if err = conn.tidy(ctx); err == nil {
			newest, _, err = conn.newest(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.cutBehind(ctx, newest, s.options.keptFor)
}

// save writes a snapshot of so many chunks at most, 0 for any number, while turns go on, and removes what it takes the place of when it is so old. One that is
// given up leaves nothing, and others may write one at once. The caller holds saving.
func (s *Store) save(ctx context.Context, old time.Duration, most int) error {
	seq := uint64(0)
	err := s.claiming(ctx, func(conn connection) (err error) {
		seq, err = s.writeSnapshot(ctx, conn, most)
		return err
	})
	switch {
	case errors.Is(err, errClaimed):
		return err
	case err != nil:
		giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpTimeout)
		defer cancel()
		_ = s.tidy(giving) // who writes the next one does it otherwise, or who starts
		return err
	}
	return s.cutBehind(ctx, seq, old)
}

// writeSnapshot returns as of which entry the snapshot is that it has written; 0: the newest has all that there is.
func (s *Store) writeSnapshot(ctx context.Context, conn connection, most int) (seq uint64, err error) {
	if err := conn.tidy(ctx); err != nil {
		return 0, err
	}
	newest, _, err := conn.newest(ctx)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	of, last := s.memory.Machine, s.memory.sure
	if of.Applied() == newest || s.memory.ahead || s.Cause() != nil {
		s.mu.Unlock()
		return 0, nil
	}
	snapshot, err := of.Snapshot()
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	defer func() {
		s.mu.Lock()
		snapshot.Release()
		s.mu.Unlock()
	}()
	w := &chunkWriter{ctx: ctx, conn: conn, of: s, seq: snapshot.Applied(), most: most, claimed: time.Now()}
	buffered := bufio.NewWriterSize(w, chunkSize)
	if err := snapshot.Write(buffered, &s.mu); err != nil {
		return 0, err
	}
	if err := buffered.Flush(); err != nil {
		return 0, err
	}
	if err := fromSnapshot(ctx, conn, w.seq, w.no, machine.Skim); err != nil {
		return 0, fmt.Errorf("what was written can't be read: %w", err)
	}
	return w.seq, conn.finish(ctx, s.gateway, last, w.no)
}

// cutBehind removes what a snapshot takes the place of, when that has been there for so long. Who stops meanwhile leaves it to who writes the next
// one, or starts next.
func (s *Store) cutBehind(ctx context.Context, snapshot uint64, old time.Duration) error {
	if snapshot == 0 || old > 0 && !s.pause(old) {
		return nil
	}
	conn, err := s.connect(ctx)
	if err == nil {
		defer conn.close()
	}
	for more := true; more && err == nil; {
		more, err = conn.cut(ctx, max(snapshot, keptBehind)-keptBehind, snapshot, cutAtOnce)
	}
	if err != nil {
		return fmt.Errorf("what a snapshot took the place of could not be removed: %w", err)
	}
	return nil
}

// leave has the log say that this gateway writes nothing any more. If no other one serves it writes a snapshot, so that the version that
// starts next decides nothing anew that this one has decided. Whoever stops last does so: the log says who has left before. One that was killed
// counts as serving for a minute, so a small state is written beside others too, unless one of them writes a snapshot.
func (s *Store) leave() {
	defer func() {
		if s.conn != nil {
			s.conn.close()
		}
	}()
	if s.Cause() != nil || s.out.Load() != nil {
		return
	}
	says := &item{ops: []operation{{encoded: machine.Leaves()}}, ctx: s.ctx, done: make(chan struct{})}
	err := s.turn([]*item{says})
	if err == nil && s.Cause() == nil {
		s.saving.Lock() // one that is under way ends before the store does
		defer s.saving.Unlock()
		if s.memory.others(s.clock(), s.gateway, s.options.rulesEvery) {
			state := s.memory.State()
			if len(state.Records)+len(state.Tombstones) > s.options.smallState {
				return
			}
			if err = s.save(s.ctx, s.options.keptFor, s.options.smallParts); errors.Is(err, errClaimed) || errors.Is(err, errLarge) {
				return
			}
		} else {
			err = s.saveLast()
		}
	}
	if err != nil {
		s.log.Warn("no snapshot could be written at shutdown; the next start replays the log", "error", err)
	}
}

// saveLast writes a snapshot when another gateway that writes one is done.
func (s *Store) saveLast() error {
	for {
		err := s.save(s.ctx, 0, 0)
		if !errors.Is(err, errClaimed) {
			return err
		}
		select {
		case <-time.After(claimPause):
		case <-s.ctx.Done():
			return err
		}
	}
}

// chunkWriter writes a snapshot.
type chunkWriter struct {
	ctx     context.Context
	conn    connection
	of      *Store
	seq     uint64
	no      int
	most    int // of no; 0: any
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
		if w.no++; w.most > 0 && w.no > w.most {
			return n, errLarge
		}
		err = w.conn.put(w.ctx, w.seq, w.no, chunk)
		n += len(chunk)
	}
	return n, err
}
