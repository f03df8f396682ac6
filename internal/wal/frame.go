package wal

import (
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

// The content of a frame are records: kind (1 byte), size of what follows (4), and that. All numbers are big endian.
const (
	recordEntry  = iota + 1 // index (8), term (8), type (1), size of the extensions (4), extensions, data
	recordBounds            // first and last index from here on (8 each); 0 and 0: there are no entries
	recordValue             // a value beside the log: size of its key (4), key, value

	recordHeader = 5
	entryHeader  = recordHeader + 21
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends a record of what appends its content.
func appendRecord(b []byte, kind byte, content func([]byte) []byte) []byte {
	at := len(b)
	b = content(append(b, kind, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(b[at+1:], uint32(len(b)-at-recordHeader))
	return b
}

func appendEntry(b []byte, e *raft.Log) []byte {
	return appendRecord(b, recordEntry, func(b []byte) []byte {
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, e.Index), e.Term)
		b = binary.BigEndian.AppendUint32(append(b, byte(e.Type)), uint32(len(e.Extensions)))
		return append(append(b, e.Extensions...), e.Data...)
	})
}

// entryIn returns the entry in a record. Its data are a part of it.
func entryIn(record []byte) raft.Log {
	data := entryHeader + int(binary.BigEndian.Uint32(record[entryHeader-4:]))
	return raft.Log{
		Index: binary.BigEndian.Uint64(record[5:]), Term: binary.BigEndian.Uint64(record[13:]), Type: raft.LogType(record[21]),
		Extensions: record[entryHeader:data:data], Data: record[data:],
	}
}

func appendBounds(b []byte, first, last uint64) []byte {
	return appendRecord(b, recordBounds, func(b []byte) []byte {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, first), last)
	})
}

func appendValue(b []byte, key string, value []byte) []byte {
	return appendRecord(b, recordValue, func(b []byte) []byte {
		return append(append(binary.BigEndian.AppendUint32(b, uint32(len(key))), key...), value...)
	})
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
	in       *segment
	at, size uint32
	sum      uint32
}

var errRecord = errors.New("it has a record that this version does not know")

// take carries out the records of a frame that begins at a byte of a file.
func (s *state) take(frame []byte, in *segment, at int64) error {
	for b := frame[frameHeader:]; len(b) > 0; {
		size := 0
		if len(b) >= recordHeader {
			size = recordHeader + int(binary.BigEndian.Uint32(b[1:]))
		}
		if size == 0 || size > len(b) {
			return errRecord
		}
		record, here, err := b[:size], len(frame)-len(b), error(nil)
		b = b[size:]
		part := func(at int) int { return at + int(binary.BigEndian.Uint32(record[at-4:])) }
		switch kind := record[0]; {
		case kind == recordEntry && size >= entryHeader && part(entryHeader) <= size:
			err = s.add(binary.BigEndian.Uint64(record[5:]), location{in, uint32(at) + uint32(here), uint32(size), crc32.Checksum(record, castagnoli)})
		case kind == recordBounds && size == recordHeader+16:
			err = s.cut(binary.BigEndian.Uint64(record[5:]), binary.BigEndian.Uint64(record[13:]))
		case kind == recordValue && size >= recordHeader+4 && part(recordHeader+4) <= size:
			key := part(recordHeader + 4)
			s.values[string(record[recordHeader+4:key])] = append([]byte{}, record[key:]...)
		default:
			err = errRecord
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add adds an entry at the end.
func (s *state) add(index uint64, at location) error {
	if s.last == 0 {
		s.first, s.base = index, index
	} else if index != s.last+1 {
		return fmt.Errorf("entry %d follows entry %d", index, s.last)
	}
	s.last, s.known = index, append(s.known, at)
	return nil
}

// cut has the log begin and end with those entries. Where it has none they stood in files that are not there any more:
// unless the log is cut behind them too, they are missed.
func (s *state) cut(first, last uint64) error {
	switch {
	case s.last == 0 && last != 0:
		s.base, s.known = last+1, nil
	case first > last || last > s.last || first < s.first && last != 0:
		return fmt.Errorf("entries %d to %d are left of %d to %d", first, last, s.first, s.last)
	case last < s.base || last == 0:
		s.base, s.known = last+1, nil
	default:
		s.known = s.known[:last+1-s.base]
		if first > s.base {
			s.base, s.known = first, s.known[first-s.base:]
		}
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
	if int64(cap(b)) < whole || offsetInBlock(b) != 0 {
		b = append(alignedBuffer(2*whole), b...)
	}
	clear(b[len(b):whole])
	return b
}

// alignedBuffer returns an empty buffer that begins where a block of memory does.
func alignedBuffer(capacity int64) []byte {
	b := make([]byte, capacity+block)
	skip := (block - offsetInBlock(b)) % block
	return b[skip:skip]
}

func offsetInBlock(b []byte) int { return int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % block) }
