package raft

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"
	"github.com/tidwall/btree"

	"fencepost/internal/fencing"
)

// A snapshot is a sequence of frames:
//
//	size of the content (4 bytes), checksum (4), content
//
// Numbers are big endian. The checksum covers the number of the frame, from 0, and the
// content, so that no part can be missing, twice, or in another place. The content is a
// kind of one byte and CBOR: first a head, then lists of records and of tombstones, and a
// count of both at the end.
const (
	frameHeader = 8
	maxFrame    = 1 << 30 // a name with all the holders and waiters that it may have is smaller

	frameHead       = 1
	frameRecords    = 2
	frameTombstones = 3
	frameEnd        = 4
)

// recordsAtOnce is how many records are encoded before entries are carried out again, and a
// quarter of the tombstones: a fraction of a millisecond.
const recordsAtOnce = 64

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errDamaged is wrapped by what is wrong with a snapshot that can't be used.
var errDamaged = errors.New("the snapshot is damaged")

// snapshot is the state as of an entry, which is written while the machine goes on: what
// is about to change and is not written yet is kept as it was. The machine's mutex guards
// it; a nil snapshot is none.
type snapshot struct {
	machine *machine
	head    stateHead
	written fencing.Name // records up to this name are written
	saved   btree.Map[fencing.Name, *stateRecord]
	all     bool // all records are written

	forgotten  dueTombstone // tombstones up to this one are written
	tombstones []stateTombstone
}

// newSnapshot begins a snapshot. It takes as long as there are gateways.
func newSnapshot(m *machine) *snapshot {
	return &snapshot{machine: m, head: headOf(m.state, m.now, m.applied)}
}

// save keeps the record of name as it is, before it changes.
func (s *snapshot) save(m *machine, name fencing.Name) {
	if s == nil || s.all || name <= s.written {
		return
	}
	if _, ok := s.saved.Get(name); ok {
		return
	}
	var kept *stateRecord // there was none
	if r := m.state.Records[name]; r != nil {
		encoded := recordOf(name, r)
		kept = &encoded
	}
	s.saved.Set(name, kept)
}

// saveTombstone keeps a tombstone that is about to go.
func (s *snapshot) saveTombstone(m *machine, d dueTombstone) {
	if s == nil || d.born > s.head.Applied || !s.forgotten.before(d) {
		return
	}
	if tomb, ok := m.state.Tombstones[d.key]; ok && tomb.Until == d.until {
		s.tombstones = append(s.tombstones, tombstoneOf(d.key, tomb))
	}
}

// nextRecords returns the next records as they were; none are left if it returns false.
func (s *snapshot) nextRecords(atOnce int) (records []stateRecord, more bool) {
	m := s.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	last, looked := s.written, 0
	m.index.names.Ascend(s.written, func(name fencing.Name) bool {
		switch {
		case name == s.written:
			return true
		case looked == atOnce:
			more = true
			return false
		}
		looked++
		last = name
		if _, ok := s.saved.Get(name); !ok {
			records = append(records, recordOf(name, m.state.Records[name]))
		}
		return true
	})
	var done []fencing.Name
	s.saved.Scan(func(name fencing.Name, kept *stateRecord) bool {
		if more && name > last {
			return false
		}
		if done = append(done, name); kept != nil {
			records = append(records, *kept)
		}
		return true
	})
	for _, name := range done {
		s.saved.Delete(name)
	}
	s.written, s.all = last, !more
	return records, more
}

// nextTombstones returns the next tombstones; none are left if it returns false.
func (s *snapshot) nextTombstones(atOnce int) (tombstones []stateTombstone, more bool) {
	m := s.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	tombstones, s.tombstones = s.tombstones, nil
	looked := 0
	last := s.forgotten
	m.index.tombstones.Ascend(s.forgotten, func(d dueTombstone) bool {
		switch {
		case !s.forgotten.before(d):
			return true
		case looked == atOnce:
			more = true
			return false
		}
		looked++
		last = d
		if tomb, ok := m.state.Tombstones[d.key]; ok && tomb.Until == d.until && d.born <= s.head.Applied {
			tombstones = append(tombstones, tombstoneOf(d.key, tomb))
		}
		return true
	})
	s.forgotten = last
	return tombstones, more
}

// Persist writes the snapshot. It implements raft.FSMSnapshot.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.write(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s *snapshot) write(to io.Writer) error { return s.writeChunks(to, recordsAtOnce, func() {}) }

// writeChunks writes so many records at once, and calls between whenever entries may be
// carried out again.
func (s *snapshot) writeChunks(to io.Writer, atOnce int, between func()) error {
	w := frameWriter{to: bufio.NewWriterSize(to, 1<<20)}
	if err := w.write(frameHead, s.head); err != nil {
		return err
	}
	var count [2]int
	for more := true; more; {
		var records []stateRecord
		records, more = s.nextRecords(atOnce)
		between()
		count[0] += len(records)
		if err := w.write(frameRecords, records); err != nil {
			return err
		}
	}
	for more := true; more; {
		var tombstones []stateTombstone
		tombstones, more = s.nextTombstones(4 * atOnce)
		between()
		count[1] += len(tombstones)
		if err := w.write(frameTombstones, tombstones); err != nil {
			return err
		}
	}
	if err := w.write(frameEnd, count); err != nil {
		return err
	}
	return w.to.Flush()
}

// Release ends the snapshot. It implements raft.FSMSnapshot.
func (s *snapshot) Release() {
	m := s.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.snapshot == s {
		m.snapshot = nil
	}
}

type frameWriter struct {
	to     *bufio.Writer
	number uint64
}

func frameChecksum(number uint64, content []byte) uint32 {
	return crc32.Update(crc32.Checksum(binary.BigEndian.AppendUint64(nil, number), castagnoli), castagnoli, content)
}

func (w *frameWriter) write(kind byte, v any) error {
	encoded, err := encoding.Marshal(v)
	if err != nil {
		return err
	}
	content := append([]byte{kind}, encoded...)
	header := binary.BigEndian.AppendUint32(make([]byte, 0, frameHeader), uint32(len(content)))
	header = binary.BigEndian.AppendUint32(header, frameChecksum(w.number, content))
	w.number++
	if _, err := w.to.Write(header); err != nil {
		return err
	}
	_, err = w.to.Write(content)
	return err
}

type frameReader struct {
	from   io.Reader
	number uint64
}

func (r *frameReader) read() (kind byte, encoded []byte, err error) {
	damaged := func(what string) (byte, []byte, error) {
		return 0, nil, fmt.Errorf("%w: part %d %s", errDamaged, r.number, what)
	}
	var header [frameHeader]byte
	if _, err := io.ReadFull(r.from, header[:]); err != nil {
		if cutOff(err) {
			return damaged("is cut off")
		}
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(header[:])
	if size < 1 || size > maxFrame {
		return damaged("is not what was written")
	}
	content := make([]byte, size)
	if _, err := io.ReadFull(r.from, content); err != nil {
		if cutOff(err) {
			return damaged("is cut off")
		}
		return 0, nil, err
	}
	if binary.BigEndian.Uint32(header[4:]) != frameChecksum(r.number, content) {
		return damaged("is not what was written")
	}
	r.number++
	return content[0], content[1:], nil
}

// cutOff reports whether something ends before what is read of it does.
func cutOff(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) }

// readState reads a snapshot. An error wraps errDamaged, or is of the reader, or of a
// version that this one does not know.
func readState(from io.Reader) (*fencing.State, *stateHead, error) {
	r := frameReader{from: bufio.NewReaderSize(from, 1<<20)}
	kind, encoded, err := r.read()
	if err != nil {
		return nil, nil, err
	}
	var head stateHead
	if err := lenient.Unmarshal(encoded, &head); err != nil || kind != frameHead {
		return nil, nil, fmt.Errorf("%w: it does not begin with a head: %w", errDamaged, err)
	}
	if head.Version != stateVersion {
		return nil, nil, fmt.Errorf("the snapshot has version %d; this version reads version %d", head.Version, stateVersion)
	}
	state := head.state()
	for {
		kind, encoded, err := r.read()
		if err != nil {
			return nil, nil, err
		}
		if kind == frameEnd {
			var count [2]int
			if err := strict.Unmarshal(encoded, &count); err != nil || count != [2]int{len(state.Records), len(state.Tombstones)} {
				return nil, nil, fmt.Errorf("%w: it has %d records and %d tombstones instead of %v", errDamaged, len(state.Records), len(state.Tombstones), count)
			}
			return state, &head, nil
		}
		if err := readFrame(state, kind, encoded); err != nil {
			return nil, nil, fmt.Errorf("%w: part %d: %w", errDamaged, r.number-1, err)
		}
	}
}

func readFrame(state *fencing.State, kind byte, encoded []byte) error {
	switch kind {
	case frameRecords:
		var records []stateRecord
		if err := strict.Unmarshal(encoded, &records); err != nil {
			return err
		}
		for i := range records {
			r, err := records[i].record()
			if err != nil {
				return err
			}
			state.Records[fencing.Name(records[i].Name)] = r
		}
		return nil
	case frameTombstones:
		var tombstones []stateTombstone
		if err := strict.Unmarshal(encoded, &tombstones); err != nil {
			return err
		}
		for i := range tombstones {
			key, tomb := tombstones[i].tombstone()
			state.Tombstones[key] = tomb
		}
		return nil
	}
	return fmt.Errorf("it is of kind %d, which this version does not know", kind)
}
