package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A frame is a sequence of entries as it stands in a file:
//
//	size of the content (4 bytes), checksum (4), number (8), content
//
// Numbers are big endian. The checksum covers the id of the file, which each has of its
// own, the size, the number and the content: a frame of another file, or of another place
// in this one, is not taken for what was written there.
const frameHeader = 16

// errDamaged is wrapped by what is wrong with a file that can't be used.
var errDamaged = errors.New("the file is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

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

func numberOf(frame []byte) uint64 { return binary.BigEndian.Uint64(frame[8:]) }

// readFrame returns the next frame, header and content, in memory of its own. It returns
// errDamaged if what stands there is no frame of the file with that id, or has more than
// most bytes, and an error of io.ReadFull if it is cut off.
func readFrame(r io.Reader, id uint64, most int64) ([]byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	size := frameHeader + int64(binary.BigEndian.Uint32(header[:]))
	if size > most {
		return nil, errDamaged
	}
	frame := make([]byte, size)
	copy(frame, header[:])
	if _, err := io.ReadFull(r, frame[frameHeader:]); err != nil {
		return nil, err
	}
	if binary.BigEndian.Uint32(frame[4:]) != checksum(frame, id) {
		return nil, errDamaged
	}
	return frame, nil
}

// cutOff reports whether a file ends before what is read of it does.
func cutOff(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) }

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

// decodeEntries appends the entries that content has. Their keys and values are parts of
// content.
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
