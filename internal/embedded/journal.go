package embedded

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"unsafe"
)

// The journal takes each flush before the table does: one short write over blocks
// that the disk has already. It is two halves behind a block with the header. While
// what stands in one is put into the table, the other is filled; then they change.
//
//	header  magic, id (8 bytes), size of a half (8), checksum (4)
//	frame   size of the content (4), checksum (4), number (8), content
//
// Numbers are big endian. The checksum of a frame covers the id, which each start
// of a store makes anew, and its number, which counts the flushes from 1: what
// stood in a half before is never taken for what was written later. A frame has
// blocks of its own, so that writing one can't damage those before it.
const (
	journalName    = "fencepost.journal"
	journalMagic   = "fencepost journal 1\n"
	journalHalf    = 8 << 20 // 2,048 small flushes
	maxJournalHalf = 1 << 30
	frameHeader    = 16
	zerosAtOnce    = 1 << 20 // a journal may be larger than the memory that is free

	// block is a multiple of what any usual disk writes in one piece.
	block = 4096
)

// errJournal is wrapped by what is wrong with a journal that can't be read.
var errJournal = errors.New("the journal does not go with the file, or is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type journal struct {
	file   file
	id     uint64
	half   int64
	start  int64 // of the half that is being filled
	at     int64 // where the next frame goes
	number uint64
	room   []byte // for a frame, reused
	frame  []byte // the prepared one: whole blocks in room
	size   int    // of it without what fills the last block
}

// createJournal makes an empty journal at path, over whatever is there. It is
// written in full, so that no flush has to ask the file system for blocks.
func createJournal(files files, path string, half int64) (*journal, error) {
	file, err := files.create(path)
	if err != nil {
		return nil, err
	}
	j := &journal{half: half, start: block, at: block}
	var id [8]byte
	rand.Read(id[:]) // never fails
	j.id = binary.BigEndian.Uint64(id[:])
	if err := errors.Join(j.fill(file), file.Sync(), file.Close()); err != nil {
		return nil, err
	}
	j.file, err = files.openSynced(path)
	return j, err
}

// fill writes the header and two empty halves.
func (j *journal) fill(file file) error {
	if _, err := file.WriteAt(j.header(), 0); err != nil {
		return err
	}
	zeros := make([]byte, min(zerosAtOnce, 2*j.half))
	for at, end := int64(block), block+2*j.half; at < end; at += int64(len(zeros)) {
		if _, err := file.WriteAt(zeros[:min(int64(len(zeros)), end-at)], at); err != nil {
			return err
		}
	}
	return nil
}

func (j *journal) header() []byte {
	b := append(make([]byte, 0, block), journalMagic...)
	b = binary.BigEndian.AppendUint64(b, j.id)
	b = binary.BigEndian.AppendUint64(b, uint64(j.half))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return b[:block]
}

// encode prepares a frame of entries, and reports whether it fits into an empty
// half.
func (j *journal) encode(entries []entry) bool {
	b := append(j.room[:0], make([]byte, frameHeader)...)
	for i := range entries {
		b = appendEntry(b, &entries[i])
	}
	j.size = len(b)
	whole := int(wholeBlocks(len(b)))
	if int64(whole) > j.half {
		return false
	}
	if cap(j.room) < whole { // it has outgrown its room
		j.room = alignedBuffer(2 * whole)
		copy(j.room[:whole], b)
		b = j.room[:len(b)]
	}
	j.frame = b[:whole]
	clear(j.frame[len(b):])
	return true
}

// full reports whether the prepared frame does not fit into what is left of the
// half.
func (j *journal) full() bool { return j.at+int64(len(j.frame)) > j.start+j.half }

// turn goes on with the other half.
func (j *journal) turn() {
	j.start = 2*block + j.half - j.start
	j.at = j.start
}

// skip counts a flush that the journal does not take. What stands in the half is
// of no more use then.
func (j *journal) skip() {
	j.number++
	j.at = j.start
}

// write makes the prepared frame durable.
func (j *journal) write() error {
	j.number++
	seal(j.frame[:j.size], j.id, j.number)
	if _, err := j.file.WriteAt(j.frame, j.at); err != nil {
		return err
	}
	j.at += int64(len(j.frame))
	return nil
}

func (j *journal) close() error { return j.file.Close() }

// wholeBlocks returns the size of the blocks that size bytes take.
func wholeBlocks(size int) int64 { return int64(size+block-1) / block * block }

// alignedBuffer returns an empty buffer that starts where a block of memory does,
// which writes that bypass the system's cache ask for.
func alignedBuffer(capacity int) []byte {
	b := make([]byte, capacity+block)
	skip := block - int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%block)
	return b[skip:skip]
}

// seal fills in the header of a frame.
func seal(frame []byte, id, number uint64) {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-frameHeader))
	binary.BigEndian.PutUint64(frame[8:], number)
	binary.BigEndian.PutUint32(frame[4:], checksum(frame, id))
}

func checksum(frame []byte, id uint64) uint32 {
	var b [12]byte
	binary.BigEndian.PutUint64(b[:], id)
	copy(b[8:], frame[:4])
	return crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, frame[8:])
}

// readJournal returns the entries of the frames above number, in order: all that
// was flushed, for only the last flush can be incomplete. An error wraps
// errJournal, or is of the file system.
func readJournal(files files, path string, id, number uint64) ([]entry, error) {
	f, err := files.open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return parseJournal(content, id, number)
}

func parseJournal(content []byte, id, number uint64) (entries []entry, err error) {
	r := journalReader{id: id, content: content}
	if err := r.header(); err != nil {
		return nil, err
	}
	r.findRuns()
	next := number + 1
	for {
		run := r.runWith(next)
		if run == nil {
			break
		}
		for ; next <= run.last; next++ {
			if entries, err = decodeEntries(entries, run.frames[next-run.first]); err != nil {
				return nil, fmt.Errorf("%w: flush %d: %w", errJournal, next, err)
			}
		}
	}
	if found, at := r.anyFrom(next); found != 0 {
		return nil, fmt.Errorf("%w: flush %d is unreadable, though flush %d follows it at byte %d", errJournal, next, found, at)
	}
	return entries, nil
}

type journalReader struct {
	id      uint64
	content []byte
	half    int
	runs    []run
}

// run is a sequence of frames that stand one after the other.
type run struct {
	first, last uint64
	frames      [][]byte // the contents
}

func (r *journalReader) header() error {
	magic, rest, ok := bytes.Cut(r.content, []byte(journalMagic))
	if !ok || len(magic) > 0 || len(rest) < 20 {
		return fmt.Errorf("%w: it has no header", errJournal)
	}
	sealed := r.content[:len(journalMagic)+16]
	half := binary.BigEndian.Uint64(rest[8:])
	switch {
	case crc32.Checksum(sealed, castagnoli) != binary.BigEndian.Uint32(rest[16:]):
		return fmt.Errorf("%w: its header is damaged", errJournal)
	case binary.BigEndian.Uint64(rest) != r.id:
		return fmt.Errorf("%w: it was begun by another run of the store", errJournal)
	case half > maxJournalHalf || len(r.content) != block+2*int(half):
		return fmt.Errorf("%w: its size is %d bytes", errJournal, len(r.content))
	}
	r.half = int(half)
	return nil
}

// frameAt returns the frame at an offset before end, nil if none is.
func (r *journalReader) frameAt(at, end int) []byte {
	if end-at < frameHeader {
		return nil
	}
	size := frameHeader + int(binary.BigEndian.Uint32(r.content[at:]))
	if size == frameHeader || size > end-at {
		return nil
	}
	frame := r.content[at : at+size]
	if binary.BigEndian.Uint32(frame[4:]) != checksum(frame, r.id) {
		return nil
	}
	return frame
}

func numberOf(frame []byte) uint64 { return binary.BigEndian.Uint64(frame[8:]) }

// findRuns reads each half up to the first thing that does not follow.
func (r *journalReader) findRuns() {
	for _, start := range []int{block, block + r.half} {
		var found run
		end := start + r.half
		for at := start; ; {
			frame := r.frameAt(at, end)
			if frame == nil || len(found.frames) > 0 && numberOf(frame) != found.last+1 {
				break
			}
			if len(found.frames) == 0 {
				found.first = numberOf(frame)
			}
			found.last = numberOf(frame)
			found.frames = append(found.frames, frame[frameHeader:])
			at += int(wholeBlocks(len(frame)))
		}
		r.runs = append(r.runs, found)
	}
}

func (r *journalReader) runWith(number uint64) *run {
	for i := range r.runs {
		if run := &r.runs[i]; run.first <= number && number <= run.last && len(run.frames) > 0 {
			return run
		}
	}
	return nil
}

// anyFrom looks everywhere for a frame whose number is not below number, and
// returns its number and offset.
func (r *journalReader) anyFrom(number uint64) (uint64, int) {
	for _, start := range []int{block, block + r.half} {
		for at, end := start, start+r.half; at+frameHeader < end; at += block {
			if found := binary.BigEndian.Uint64(r.content[at+8:]); found < number || found > number+uint64(len(r.content)) {
				continue
			}
			if frame := r.frameAt(at, end); frame != nil {
				return numberOf(frame), at
			}
		}
	}
	return 0, 0
}

// appendEntry appends an entry: bucket and whether it deletes, key and value with
// their sizes before them.
func appendEntry(b []byte, e *entry) []byte {
	kind := byte(e.bucket) << 1
	if e.value == nil {
		kind |= 1
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(e.key)))
	b = append(b, e.key...)
	b = binary.AppendUvarint(b, uint64(len(e.value)))
	return append(b, e.value...)
}

func decodeEntries(entries []entry, content []byte) ([]entry, error) {
	part := func() ([]byte, error) {
		size, n := binary.Uvarint(content)
		if n <= 0 || size > uint64(len(content)-n) {
			return nil, io.ErrUnexpectedEOF
		}
		found := content[n : n+int(size)]
		content = content[n+int(size):]
		return found, nil
	}
	for len(content) > 0 {
		kind := content[0]
		content = content[1:]
		key, err := part()
		if err != nil {
			return nil, err
		}
		value, err := part()
		if err != nil {
			return nil, err
		}
		if kind&1 != 0 {
			value = nil
		}
		b := bucket(kind >> 1)
		if b >= buckets {
			return nil, fmt.Errorf("there is no bucket %d", b)
		}
		entries = append(entries, entry{b, key, value})
	}
	return entries, nil
}
