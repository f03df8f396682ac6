package machine

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync"

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
	fullFrame   = 1 << 20 // a frame has no more, but for a record that alone is larger

	frameHead       = 1
	frameRecords    = 2
	frameTombstones = 3
	frameEnd        = 4
)

const (
	// recordsAtOnce is how many records are encoded before entries are carried out again, and a
	// quarter of the tombstones: a fraction of a millisecond.
	recordsAtOnce = 64

	// weightAtOnce bounds how many holders and places they have, where it is more than one record.
	weightAtOnce = 512
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged is wrapped by what is wrong with a snapshot that can't be used.
var ErrDamaged = errors.New("the snapshot is damaged")

// ErrVersion is wrapped by the error of a snapshot that another version has written.
var ErrVersion = errors.New("the snapshot can't be read by this version")

// Snapshot is the state as of an entry, which is written while the machine goes on: what
// is about to change and is not written yet is kept as it was. What guards the machine guards
// it too; a nil snapshot is none.
type Snapshot struct {
	machine *Machine
	head    stateHead
	most    int          // bytes of a frame: with more nothing is written
	written fencing.Name // records up to this name are written
	saved   btree.Map[fencing.Name, *stateRecord]
	all     bool          // all records are written
	part    []stateRecord // that nextRecords returns, used again
	broken  bool          // nothing more of it is written: see Abandon

	forgotten  dueTombstone // tombstones up to this one are written
	tombstones []stateTombstone
}

// Snapshot begins a snapshot, of which there is one at a time, between two entries. It takes as long as there are gateways.
func (m *Machine) Snapshot() (*Snapshot, error) {
	if m.snapshot != nil {
		return nil, errors.New("another snapshot is being written")
	}
	m.Ready()
	s := &Snapshot{machine: m, head: headOf(m.state, m.now, m.applied), most: maxFrame}
	s.head.Digest, s.head.Wall, s.head.Writer, s.head.Resting = uint64(m.digest), m.walls, m.writer, m.restingOf()
	if last, _ := m.LastDigest(); last != m.applied {
		s.head.Last = last
	}
	if n := len(m.digests); n > 1 && !m.digests[n-2].unknown {
		s.head.Behind, s.head.Before = m.digests[n-2].index, uint64(m.digests[n-2].digest)
	}
	m.snapshot = s
	return s, nil
}

// Applied returns up to which index of the log the snapshot is.
func (s *Snapshot) Applied() uint64 { return s.head.Applied }

// save keeps the record of name as it is, before it changes.
func (s *Snapshot) save(m *Machine, name fencing.Name) {
	if s == nil || s.all || name <= s.written {
		return
	}
	if _, ok := s.saved.Get(name); ok {
		return
	}
	var kept *stateRecord // there was none
	if r := m.state.Records[name]; r != nil {
		kept = &stateRecord{}
		kept.set(name, r)
	}
	s.saved.Set(name, kept)
}

// saveTombstone keeps a tombstone that is about to go.
func (s *Snapshot) saveTombstone(m *Machine, d dueTombstone) {
	if s == nil || d.born > s.head.Applied || !s.forgotten.before(d) {
		return
	}
	if tomb, ok := m.state.Tombstones[d.key]; ok && tomb.Until == d.until {
		s.tombstones = append(s.tombstones, tombstoneOf(d.key, tomb))
	}
}

// nextRecords returns the next records as they were, until the next call; none are left if it returns false.
func (s *Snapshot) nextRecords(atOnce int) (records []stateRecord, more bool) {
	m := s.machine
	names := m.index.namesBehind(s.written, atOnce+1)
	if more = len(names) > atOnce; more {
		names = names[:atOnce]
	}
	last, weight := s.written, 0
	records = s.part[:0]
	for _, name := range names {
		r := m.state.Records[name]
		if weight += r.Holders.Len() + r.Queue.Places(); weight > weightAtOnce && last != s.written {
			more = true
			break
		}
		last = name
		if _, ok := s.saved.Get(name); !ok {
			records = grown(records)
			records[len(records)-1].set(name, r)
		}
	}
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
	s.written, s.all, s.part = last, !more, records
	return records, more
}

// grown returns records with an empty one more, which has the room that another one had.
func grown(records []stateRecord) []stateRecord {
	if len(records) == cap(records) {
		return append(records, stateRecord{})
	}
	records = records[:len(records)+1]
	records[len(records)-1].reset()
	return records
}

// nextTombstones returns the next tombstones; none are left if it returns false.
func (s *Snapshot) nextTombstones(atOnce int) (tombstones []stateTombstone, more bool) {
	m := s.machine
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

// Write writes the snapshot. It takes the lock that guards the machine for a fraction of a millisecond again and again.
func (s *Snapshot) Write(to io.Writer, lock sync.Locker) error {
	return s.writeChunks(to, lock, recordsAtOnce, func() {})
}

// writeChunks writes so many records at once, and calls between whenever entries may be
// carried out again.
func (s *Snapshot) writeChunks(to io.Writer, lock sync.Locker, atOnce int, between func()) error {
	w := frameWriter{to: bufio.NewWriterSize(to, 1<<20), most: s.most}
	if err := w.write(frameHead, s.head); err != nil {
		return err
	}
	var count [2]int
	for more := true; more; {
		var records []stateRecord
		if err := s.locked(lock, func() { records, more = s.nextRecords(atOnce) }); err != nil {
			return err
		}
		between()
		count[0] += len(records)
		if err := writeList(&w, frameRecords, records); err != nil {
			return err
		}
	}
	for more := true; more; {
		var tombstones []stateTombstone
		if err := s.locked(lock, func() { tombstones, more = s.nextTombstones(4 * atOnce) }); err != nil {
			return err
		}
		between()
		count[1] += len(tombstones)
		if err := writeList(&w, frameTombstones, tombstones); err != nil {
			return err
		}
	}
	if err := w.write(frameEnd, count); err != nil {
		return err
	}
	return w.to.Flush()
}

// Abandon has a snapshot that is being written fail, for the state is not to be trusted any more.
func (m *Machine) Abandon() {
	if m.snapshot != nil {
		m.snapshot.broken, m.snapshot = true, nil
	}
}

// errAbandoned is why a snapshot is not written.
var errAbandoned = errors.New("the state is not to be trusted any more")

// locked calls next with the lock that guards the machine, unless the snapshot was abandoned.
func (s *Snapshot) locked(lock sync.Locker, next func()) error {
	lock.Lock()
	defer lock.Unlock()
	if s.broken {
		return errAbandoned
	}
	next()
	return nil
}

// Release ends the snapshot, written or not.
func (s *Snapshot) Release() {
	if s.machine.snapshot == s {
		s.machine.snapshot = nil
	}
}

type frameWriter struct {
	to     *bufio.Writer
	most   int // bytes of a frame
	number uint64
	list   bytes.Buffer // reused
}

// writeList writes a list in as many frames as it takes, one at least.
func writeList[T any](w *frameWriter, kind byte, all []T) error {
	w.list.Reset()
	n := 0
	for i := range all {
		before := w.list.Len()
		if err := Encoding.MarshalToBuffer(&all[i], &w.list); err != nil {
			return err
		}
		if n > 0 && w.list.Len() > fullFrame {
			last := bytes.Clone(w.list.Bytes()[before:])
			w.list.Truncate(before)
			if err := w.writeContent(append(arrayOf(kind, n), w.list.Bytes()...)); err != nil {
				return err
			}
			w.list.Reset()
			w.list.Write(last)
			n = 0
		}
		n++
	}
	return w.writeContent(append(arrayOf(kind, n), w.list.Bytes()...))
}

// arrayOf returns the beginning of a frame with an array of n elements: its kind and CBOR's head of an array.
func arrayOf(kind byte, n int) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind, 0x9a}, uint32(n))
}

func frameChecksum(number uint64, content []byte) uint32 {
	return crc32.Update(crc32.Checksum(binary.BigEndian.AppendUint64(nil, number), castagnoli), castagnoli, content)
}

func (w *frameWriter) write(kind byte, v any) error {
	encoded, err := Encoding.Marshal(v)
	if err != nil {
		return err
	}
	return w.writeContent(append([]byte{kind}, encoded...))
}

func (w *frameWriter) writeContent(content []byte) error {
	if len(content) > w.most {
		return fmt.Errorf("part %d of the snapshot would have %d bytes, which is more than can be read", w.number, len(content))
	}
	header := binary.BigEndian.AppendUint32(make([]byte, 0, frameHeader), uint32(len(content)))
	header = binary.BigEndian.AppendUint32(header, frameChecksum(w.number, content))
	w.number++
	if _, err := w.to.Write(header); err != nil {
		return err
	}
	_, err := w.to.Write(content)
	return err
}

type frameReader struct {
	from    io.Reader
	number  uint64
	content []byte        // of the last frame
	records []stateRecord // the same
	known   map[string]string
}

// read returns the next frame, until the next call.
func (r *frameReader) read() (kind byte, encoded []byte, err error) {
	damaged := func(what string) (byte, []byte, error) {
		return 0, nil, fmt.Errorf("%w: part %d %s", ErrDamaged, r.number, what)
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
	r.content = slices.Grow(r.content[:0], int(size))
	content := r.content[:size]
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

// Restored is a snapshot that was read.
type Restored struct {
	state *fencing.State
	head  *stateHead
}

// Writer returns which version of the gateway has written the last entry that the snapshot has, as far as the log said so.
func (r *Restored) Writer() string { return r.head.Writer }

// Read reads a snapshot. An error wraps ErrDamaged or ErrVersion, or is of the reader.
func Read(from io.Reader) (*Restored, error) { return ReadUnless(nil, from) }

// ReadUnless is Read, but for a snapshot that was read already: it returns known then. nil is none.
func ReadUnless(known *Restored, from io.Reader) (*Restored, error) {
	r, head, err := readHead(from)
	if err != nil {
		return nil, err
	}
	if known != nil && known.head.Applied == head.Applied && known.head.Now == head.Now {
		return known, nil
	}
	is := &Restored{head.state(), head}
	return is, r.readRest(is.state, false)
}

// Check reads a snapshot, and keeps nothing of it: see Read.
func Check(from io.Reader) error {
	r, head, err := readHead(from)
	if err != nil {
		return err
	}
	return r.readRest(head.state(), true)
}

// Skim is Check but for what the parts say: they are whole, and what was written.
func Skim(from io.Reader) error {
	r, _, err := readHead(from)
	for kind := byte(0); err == nil && kind != frameEnd; {
		kind, _, err = r.read()
	}
	return err
}

func readHead(from io.Reader) (*frameReader, *stateHead, error) {
	r := &frameReader{from: bufio.NewReaderSize(from, 1<<20)}
	kind, encoded, err := r.read()
	if err != nil {
		return nil, nil, err
	}
	var head stateHead
	if err := Lenient.Unmarshal(encoded, &head); err != nil || kind != frameHead {
		return nil, nil, fmt.Errorf("%w: it does not begin with a head: %w", ErrDamaged, err)
	}
	if head.Version != Format && head.Version != headWithRules {
		return nil, nil, fmt.Errorf("%w: it has version %d; this version reads version %d", ErrVersion, head.Version, Format)
	}
	return r, &head, nil
}

// readRest puts all that follows the head into a state, or only looks at it.
func (r *frameReader) readRest(state *fencing.State, drop bool) error {
	var got [2]int
	for {
		kind, encoded, err := r.read()
		if err != nil {
			return err
		}
		if kind == frameEnd {
			got[0], got[1] = got[0]+len(state.Records), got[1]+len(state.Tombstones)
			var count [2]int
			if err := Strict.Unmarshal(encoded, &count); err != nil || count != got {
				return fmt.Errorf("%w: it has %d records and %d tombstones instead of %v", ErrDamaged, got[0], got[1], count)
			}
			return nil
		}
		if err := r.put(state, kind, encoded); err != nil {
			return fmt.Errorf("%w: part %d: %w", ErrDamaged, r.number-1, err)
		}
		if drop {
			got[0], got[1] = got[0]+len(state.Records), got[1]+len(state.Tombstones)
			clear(state.Records)
			clear(state.Tombstones)
		}
	}
}

// put puts what a frame has into a state.
func (r *frameReader) put(state *fencing.State, kind byte, encoded []byte) error {
	switch kind {
	case frameRecords:
		r.records = r.records[:cap(r.records)]
		for i := range r.records {
			r.records[i].reset()
		}
		if err := Strict.Unmarshal(encoded, &r.records); err != nil {
			return err
		}
		for i := range r.records {
			read := &r.records[i]
			for j := range read.Holders {
				r.share(&read.Holders[j])
			}
			record, err := read.record()
			if err != nil {
				return err
			}
			state.Records[fencing.Name(read.Name)] = record
		}
		return nil
	case frameTombstones:
		var tombstones []stateTombstone
		if err := Strict.Unmarshal(encoded, &tombstones); err != nil {
			return err
		}
		for i := range tombstones {
			r.shareText(&tombstones[i].Reason)
			key, tomb := tombstones[i].tombstone()
			state.Tombstones[key] = tomb
		}
		return nil
	}
	return fmt.Errorf("it is of kind %d, which this version does not know", kind)
}

// mostKnown bounds the texts that are kept once for all records that have them.
const mostKnown = 1 << 12

// share has a holder use texts that others before it have, where they are equal.
func (r *frameReader) share(h *stateHolding) {
	for _, text := range []*string{&h.Holder.Mode, &h.Holder.Owner, &h.Gateway} {
		r.shareText(text)
	}
}

func (r *frameReader) shareText(text *string) {
	if r.known == nil {
		r.known = map[string]string{}
	}
	known, ok := r.known[*text]
	switch {
	case ok:
		*text = known
	case len(r.known) < mostKnown:
		r.known[*text] = *text
	}
}
