package sql

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// memory is what the log has led to.
type memory struct {
	*machine.Machine
	last  int64  // the id of the last entry; 0 if it is not known, for a snapshot has it
	from  uint64 // the last entry that the snapshot has; 0: there was none
	grown int    // bytes of entries behind it
	ahead bool   // an entry was carried out that is perhaps not in the log
	sure  mark   // the last entry that is known to be in the log

	heard map[fencing.Gateway]said // what the log behind the snapshot has of gateways
	since fencing.Instant          // when this gateway began to listen to it; 0: not yet
}

// mark is an entry by its number and its id.
type mark struct {
	seq uint64
	id  int64
}

var (
	// errOther says that the log has another entry in the place of the last one that was carried out.
	errOther = errors.New("the database has another log than before")

	// errMoved says that another server answers than did before, by one connection.
	errMoved = errors.New("another database server answers than before")

	// errGap says that an entry that is the next one to carry out, or the last one that was, is not there.
	errGap = errors.New("the log lacks an entry")

	// errCut is an errGap: the log begins behind the last entry that was carried out, which was there or was not.
	errCut = fmt.Errorf("%w: a snapshot has taken its place", errGap)
)

// newID names an entry: 31 bits by chance, of which one is set, and a checksum of 32.
func newID(data []byte) int64 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return int64(binary.BigEndian.Uint32(b[:])>>1|1)<<32 | int64(crc32.Checksum(data, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// damaged reports whether an entry is another than was written.
func (e *logged) damaged() bool { return uint32(e.id) != crc32.Checksum(e.data, castagnoli) }

// follow carries out entries. The first one may be the last that was carried out already, which it is compared with.
func (m *memory) follow(entries []logged, apply func(seq uint64, e *machine.Decoded) error) error {
	applied := m.Applied()
	if len(entries) > 0 && entries[0].seq == applied && applied > 0 {
		if m.last != 0 && m.last != entries[0].id {
			return errOther
		}
		m.last = entries[0].id
		entries = entries[1:]
	} else if m.last != 0 && len(entries) > 0 {
		return errCut
	} else if m.last != 0 {
		return errGap
	}
	for i := range entries {
		e := &entries[i]
		if e.seq != m.Applied()+1 {
			return errGap
		}
		if e.damaged() {
			return unreadable{fmt.Errorf("entry %d of the log is not what was written: put back a backup of the database", e.seq)}
		}
		d, err := e.decode()
		if err != nil {
			return unreadable{m.Unread(e.seq, e.data, err)}
		}
		if err := apply(e.seq, d); err != nil {
			if errors.Is(err, machine.ErrDiffers) {
				err = fmt.Errorf("%w; %s", err, wayOut(m.Writer()))
			}
			return unreadable{err}
		}
		m.hear(d)
		m.grew(e)
	}
	return nil
}

// decode returns what an entry asks for. It does so once.
func (e *logged) decode() (*machine.Decoded, error) {
	if e.decoded == nil && e.unread == nil {
		e.decoded, e.unread = machine.Decode(e.data)
	}
	return e.decoded, e.unread
}

// grew notes an entry that was carried out.
func (m *memory) grew(e *logged) { m.last, m.grown = e.id, m.grown+len(e.data) }

// settled notes that all that was carried out is in the log.
func (m *memory) settled() { m.sure, m.ahead = mark{m.Applied(), m.last}, false }

// unreadable is why this gateway can't go on: what is in the log another one has to carry out.
type unreadable struct{ error }

func (u unreadable) Unwrap() error { return u.error }

func isUnreadable(err error) bool {
	var u unreadable
	return errors.As(err, &u)
}

// load reads the newest snapshot and carries out the log behind it. An entry that was known to be there is looked for: sure of what is
// returned is that one where it was found, or a snapshot may have it. Of o it needs the logger and the rules.
func load(ctx context.Context, conn connection, known mark, o *Options) (memory, error) {
	refused := machine.Refused{} // what panics here is refused at every gateway, with the same result
	for tries := 1; ; tries++ {
		m, err := loadOnce(ctx, conn, known, o.rules, refused)
		for p := panicIn(err); p != nil && refused.Add(p); p = panicIn(err) {
			o.Logger.Warn(errPanicked, "error", p, "asked", p.Asked(), "stack", p.Stack)
			m, err = loadOnce(ctx, conn, known, o.rules, refused)
		}
		if err == nil && known.id != 0 && known.seq < m.from {
			err = m.look(ctx, conn, known)
		}
		if !errors.Is(err, errGap) || tries == 5 { // else a newer snapshot has taken the place of what was to be read
			return m, err
		}
	}
}

// look finds out whether an entry that the snapshot may have is another one than was known, as far as the log still has it.
func (m *memory) look(ctx context.Context, conn connection, known mark) error {
	b, err := conn.read(ctx, known.seq)
	if err == nil && len(b.entries) > 0 && b.entries[0].seq == known.seq && b.entries[0].id != known.id {
		m.sure = mark{}
	}
	return err
}

func loadOnce(ctx context.Context, conn connection, known mark, rules int, refused machine.Refused) (memory, error) {
	m := memory{Machine: machine.NewFollowing(), heard: map[fencing.Gateway]said{}}
	m.Know(rules)
	m.Refuse(refused)
	seq, chunks, err := conn.newest(ctx)
	if err != nil {
		return m, err
	}
	if seq > 0 {
		var restored *machine.Restored
		if err := fromSnapshot(ctx, conn, seq, chunks, func(from io.Reader) (err error) {
			restored, err = machine.Read(from)
			return err
		}); err != nil {
			return m, fmt.Errorf("the snapshot as of entry %d can't be read: %w", seq, err)
		}
		if err := m.Restore(restored); err != nil {
			return m, unreadable{err}
		}
		if m.from = seq; m.Applied() != seq {
			return m, fmt.Errorf("the snapshot as of entry %d is as of entry %d: %w", seq, m.Applied(), machine.ErrDamaged)
		}
	}
	m.Ready()
	if known.seq < m.from || known.id == 0 {
		m.sure = known
	}
	apply := func(seq uint64, e *machine.Decoded) error {
		_, err := m.Apply(seq, e, &machine.Telling{Quiet: true}, false)
		return err
	}
	for b, err := range ahead(logBehind(ctx, conn, m.Applied())) {
		if err != nil {
			return m, err
		}
		if err := m.follow(b.entries, apply); err != nil {
			return m, err
		}
		for i := range b.entries {
			if e := &b.entries[i]; (mark{e.seq, e.id}) == known {
				m.sure = known
			}
		}
	}
	return m, nil
}

// reload has memory be what the log leads to, after a turn that came to something else or where the log is another one: then this
// gateway says so in its next turn. It tries until it can; while the store closes only once, and then nothing is done any more. The
// caller holds the mutex.
func (s *Store) reload(cause error) error {
	var stop unreadable
	if errors.As(cause, &stop) && panicIn(cause) == nil {
		s.fail(stop.error)
		return nil
	}
	known := s.memory.sure
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := s.loadAnew(known)
		if err == nil {
			break
		}
		if isUnreadable(err) {
			s.fail(err)
			return err
		}
		s.outage(err)
		if !s.pause(pause) {
			s.cancel() // nothing is asked any more: memory may be half of what a turn has done
			return errClosed
		}
	}
	if s.memory.sure != known || errors.Is(cause, errOther) {
		s.lost()
	}
	if s.forgot || errors.Is(cause, errGap) || errors.Is(cause, errOther) {
		s.arrives = true
	}
	s.memory.settled()
	s.watchers.Gap()
	if listener := s.listener.Load(); listener != nil {
		(*listener).Gap()
	}
	return nil
}

func (s *Store) loadAnew(known mark) error {
	ctx, cancel := context.WithTimeout(s.ctx, openTimeout)
	defer cancel()
	if s.conn != nil {
		s.conn.close()
	}
	var err error
	if s.conn, err = s.connect(ctx); err != nil {
		s.conn = nil
		return err
	}
	m, err := load(ctx, s.conn, known, &s.options)
	if err == nil { // it begins to listen anew: what others have said to know, a snapshot may have taken the place of
		s.memory = m
	}
	return err
}

// noteLeases notes what the rows of leases have to follow. What is provisional has none: nobody was told of it.
func (e *entry) noteLeases(state *fencing.State, changed map[fencing.EndedLease]fencing.Token) {
	for key, was := range changed {
		var h fencing.Holding
		found := false
		if r := state.Records[key.Name]; r != nil {
			h, found = r.Holders.Find(key.Lease)
		}
		firm := found && !h.Provisional
		if was != 0 && !(firm && h.Token == was) {
			e.ended = append(e.ended, was)
		}
		if firm {
			e.changed = append(e.changed, row{name: key.Name, Holder: h.Holder, renewed: h.Token == was})
		}
	}
}

// slot returns the number of the permit of a lease that has one.
func (r *row) slot() *int32 {
	if r.Mode != fencing.ModeShared || r.Limit == 0 {
		return nil
	}
	slot := int32(r.Slot)
	return &slot
}
