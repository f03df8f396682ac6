package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"unsafe"

	"github.com/hashicorp/raft"
)

const (
	// A frame is what one write has appended: size of the content (4 bytes), checksum (4), number (8), content. The
	// checksum covers the header of the file, the size, the number and the content: a frame of another file is not
	// taken for one of this. Frames are numbered from 1, through all files.
	frameHeader = 16
	mostFrame   = 1 << 30 // places in a file have 4 bytes

	// block is a multiple of what any usual disk writes in one piece. A frame has blocks of its own, so that writing
	// one can't damage those before it.
	block = 4096
)

// The content of a frame are records, which have the fields of an entry: kind (1 byte), index (8), term (8), type (1),
// size of the extensions (4), size of the data (4), extensions, data. All numbers are big endian.
const (
	recordEntry  = iota + 1
	recordBounds // index and term are the first and the last entry from here on; 0 and 0: there are none
	recordValue  // extensions and data are the key of a value beside the log, and the value

	recordHeader = 26
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendRecord(b []byte, kind byte, e *raft.Log) []byte {
	b = binary.BigEndian.AppendUint64(append(b, kind), e.Index)
	b = append(binary.BigEndian.AppendUint64(b, e.Term), byte(e.Type))
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.Extensions)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(e.Data)))
	return append(append(b, e.Extensions...), e.Data...)
}

func appendBounds(b []byte, first, last uint64) []byte {
	return appendRecord(b, recordBounds, &raft.Log{Index: first, Term: last})
}

// firstRecord returns the first record of b, and its size; 0 if there is none. Its data are a part of b.
func firstRecord(b []byte) (kind byte, e raft.Log, size int) {
	if len(b) < recordHeader {
		return 0, e, 0
	}
	data := recordHeader + int(binary.BigEndian.Uint32(b[18:]))
	size = data + int(binary.BigEndian.Uint32(b[22:]))
	if size > len(b) {
		return 0, e, 0
	}
	e = raft.Log{Index: binary.BigEndian.Uint64(b[1:]), Term: binary.BigEndian.Uint64(b[9:]), Type: raft.LogType(b[17])}
	e.Extensions, e.Data = b[recordHeader:data:data], b[data:size:size]
	return b[0], e, size
}

// state is what the frames so far come to.
type state struct {
	first, last uint64     // 0, 0: there are no entries
	base        uint64     // the entry that known begins with: first, or a later one where files are missing
	known       []location // of the entries up to last
	values      map[string][]byte
}

// location is where the record of an entry is, and its checksum: a disk may change what was read before.
type location struct {
	in            *segment
	at, size, sum uint32
}

var errRecord = errors.New("it has a record that this version does not know")

// take carries out the records of a frame that begins at a byte of a file.
func (s *state) take(frame []byte, in *segment, at int64) (err error) {
	for left := frame[frameHeader:]; len(left) > 0 && err == nil; {
		kind, e, size := firstRecord(left)
		switch {
		case kind == recordEntry && s.last != 0 && e.Index != s.last+1:
			err = fmt.Errorf("entry %d follows entry %d", e.Index, s.last)
		case kind == recordEntry:
			if s.last == 0 {
				s.first, s.base = e.Index, e.Index
			}
			s.last = e.Index
			s.known = append(s.known, location{in, uint32(at) + uint32(len(frame)-len(left)), uint32(size), crc32.Checksum(left[:size], castagnoli)})
		case kind == recordBounds:
			err = s.cut(e.Index, e.Term)
		case kind == recordValue:
			s.values[string(e.Extensions)] = bytes.Clone(e.Data)
		default:
			err = errRecord
		}
		left = left[size:]
	}
	return err
}

// cut has the log begin and end with those entries. Where it has none they stood in files that are not there any more:
// unless the log is cut behind them too, they are missed.
func (s *state) cut(first, last uint64) error {
	switch {
	case last == 0 || s.last == 0 || last < s.base:
		s.base, s.known = last+1, nil
	case first < s.first || first > last || last > s.last:
		return fmt.Errorf("entries %d to %d are left of %d to %d", first, last, s.first, s.last)
	default:
		from := max(first, s.base)
		s.base, s.known = from, s.known[from-s.base:last+1-s.base]
	}
	s.first, s.last = first, last
	return nil
}

// wholeBlocks returns the size of the blocks that size bytes take.
func wholeBlocks(size int64) int64 { return (size + block - 1) / block * block }

// aligned returns b, moved if it must be, so that it begins where a block of memory does, as writes ask for that bypass
// the system's cache, and has room for its last block, which is filled with zeros.
func aligned(b []byte) []byte {
	whole := wholeBlocks(int64(len(b)))
	if int64(cap(b)) < whole || inBlock(b) != 0 {
		room := make([]byte, 2*whole+block)
		b = append(room[(block-inBlock(room))%block:][:0], b...)
	}
	clear(b[len(b):whole])
	return b
}

// inBlock returns where in a block of memory b begins.
func inBlock(b []byte) int { return int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % block) }
