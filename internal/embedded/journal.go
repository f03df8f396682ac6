package embedded

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"unsafe"

	"fencepost/internal/datadir"
)

// The journal takes each flush before the table does: one short write over blocks
// that the disk has already. It is two files, its segments: while what stands in one is
// put into the table, the other is filled; then they change.
//
//	header  magic, id (8 bytes), which segment it is (1), size of the file (8), checksum (4)
//	frame   a flush
//
// Each start of a store makes the journal, and its id, anew, and the numbers of frames
// count its flushes from 1: what stood in a segment before is never taken for what was
// written later. A frame has blocks of its own, so that writing one can't damage those
// before it.
const (
	journalMagic  = "fencepost journal 2\n"
	journalHeader = len(journalMagic) + 21
	leastSegment  = 8 << 20 // 2,048 small flushes
	maxSegment    = 1 << 30
	zerosAtOnce   = 1 << 20 // a segment may be larger than the memory that is free

	// growAt is how many times a segment the table may be before the segment grows, if there is room:
	// with each that is full, all of the table is written anew.
	growAt = 2

	// block is a multiple of what any usual disk writes in one piece.
	block = 4096
)

// segmentNames are the files of the journal.
var segmentNames = [2]string{"fencepost.journal.0", "fencepost.journal.1"}

type journal struct {
	directory
	id       uint64
	segments [2]segment
	current  int    // the segment that is being filled
	at       int64  // where in it the next frame goes
	number   uint64 // of the last frame
	room     []byte // for a frame, reused
	frame    []byte // the prepared one: whole blocks in room
	size     int    // of it without what fills the last block
}

type segment struct {
	file file
	size int64
}

// createJournal makes an empty journal, whose segments have size bytes each, where there is none, or
// none that the table needs.
func createJournal(where directory, size int64) (*journal, error) {
	j := &journal{directory: where, at: block}
	var id [8]byte
	rand.Read(id[:]) // never fails
	j.id = binary.BigEndian.Uint64(id[:])
	size = segmentBytes(size)
	for i, name := range segmentNames {
		if err := j.directory.write(name, j.empty(i, size)); err != nil {
			return nil, errors.Join(datadir.NoRoom(err, j.dir, name, size), j.close())
		}
		if err := j.use(i, size); err != nil {
			return nil, errors.Join(err, j.close())
		}
	}
	if err := j.files.syncDir(j.dir); err != nil {
		return nil, errors.Join(err, j.close())
	}
	return j, nil
}

// segmentBytes returns how many bytes a segment has that is to have that size.
func segmentBytes(size int64) int64 { return min(max(wholeBlocks(size), 2*block), maxSegment) }

// empty returns what fills an empty segment. It is written in full, so that no flush has to
// ask the file system for blocks.
func (j *journal) empty(i int, size int64) func(file) error {
	return func(f file) error {
		zeros := make([]byte, min(zerosAtOnce, size))
		for at := int64(0); at < size; at += int64(len(zeros)) {
			if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at); err != nil {
				return err
			}
		}
		_, err := f.WriteAt(segmentHeader(j.id, i, size), 0)
		return err
	}
}

// use opens the file of segment i for flushes.
func (j *journal) use(i int, size int64) error {
	file, err := j.files.openSynced(j.path(segmentNames[i]))
	if err != nil {
		return err
	}
	old := j.segments[i].file
	j.segments[i] = segment{file, size}
	if old == nil {
		return nil
	}
	return old.Close()
}

func segmentHeader(id uint64, i int, size int64) []byte {
	b := append(make([]byte, 0, journalHeader), journalMagic...)
	b = binary.BigEndian.AppendUint64(b, id)
	b = append(b, byte(i))
	b = binary.BigEndian.AppendUint64(b, uint64(size))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// encode prepares a frame of entries.
func (j *journal) encode(entries []entry) {
	b := append(j.room[:0], make([]byte, frameHeader)...)
	for i := range entries {
		b = appendEntry(b, &entries[i])
	}
	j.size = len(b)
	whole := int(wholeBlocks(int64(len(b))))
	if cap(j.room) < whole { // it has outgrown its room
		j.room = alignedBuffer(2 * whole)
		copy(j.room[:whole], b)
		b = j.room[:len(b)]
	}
	j.frame = b[:whole]
	clear(j.frame[len(b):])
}

// full reports whether the prepared frame does not fit into what is left of the
// segment.
func (j *journal) full() bool { return j.at+int64(len(j.frame)) > j.segments[j.current].size }

// switchSegment goes on with the other segment. What stands in it is in the table.
func (j *journal) switchSegment() {
	j.current = 1 - j.current
	j.at = block
}

// grow makes segment i, all of which is in the table, as large as size, if that is much larger and there is
// room for it. It may run while the other one is filled.
func (j *journal) grow(i int, size int64) error {
	if old := j.segments[i].size; size <= growAt*old || old == maxSegment {
		return nil
	}
	size = segmentBytes(size)
	switch err := j.replace(segmentNames[i], size, j.empty(i, size)); {
	case errors.Is(err, datadir.ErrNoRoom): // it does as it is
		return nil
	case err != nil:
		return err
	}
	return j.use(i, size)
}

// bytes returns how many bytes the segments have.
func (j *journal) bytes() (n int64) {
	for i := range j.segments {
		n += j.segments[i].size
	}
	return n
}

// mark is the entry of a table that has all of the journal so far.
func (j *journal) mark() entry {
	value := binary.BigEndian.AppendUint64(make([]byte, 0, 16), j.id)
	return entry{meta, keyJournal, binary.BigEndian.AppendUint64(value, j.number)}
}

// write makes the prepared frame durable.
func (j *journal) write() error {
	j.number++
	seal(j.frame[:j.size], j.id, j.number)
	if _, err := j.segments[j.current].file.WriteAt(j.frame, j.at); err != nil {
		return err
	}
	j.at += int64(len(j.frame))
	return nil
}

func (j *journal) close() error {
	var err error
	for _, s := range j.segments {
		if s.file != nil {
			err = errors.Join(err, s.file.Close())
		}
	}
	return err
}

// remove removes a journal that has served.
func (j *journal) remove() error {
	err := j.close()
	for _, name := range segmentNames {
		err = errors.Join(err, j.files.remove(j.path(name)))
	}
	return err
}

// wholeBlocks returns the size of the blocks that size bytes take.
func wholeBlocks(size int64) int64 { return (size + block - 1) / block * block }

// alignedBuffer returns an empty buffer that starts where a block of memory does,
// which writes that bypass the system's cache ask for.
func alignedBuffer(capacity int) []byte {
	b := make([]byte, capacity+block)
	skip := block - int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%block)
	return b[skip:skip]
}
