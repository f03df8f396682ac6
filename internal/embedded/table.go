package embedded

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
)

// A table is the file with the whole state as of some flush. It is never changed: a
// new one is written beside it, synced, and takes its name.
//
//	header  magic, id (8 bytes), checksum (4)
//	frames  the entries, in order of bucket and key, each key once
//	end     a frame without content
//
// The frames are numbered from 0, so that no part of it can be missing, twice, or of another
// table.
const (
	tableMagic  = "fencepost db "
	tableFormat = "5\n" // goes with the fields of record.go
	readFormat  = "4\n" // is read too: the same, by a version that passes over fields that it does not know
	tableHeader = len(tableMagic) + len(tableFormat) + 12
	frameSize   = 64 << 10 // of the content: a frame ends with the entry that exceeds it
	maxFrame    = 64 << 20 // no entry is nearly as large
)

// errFormat is wrapped by what is wrong with a file that another version has written.
var errFormat = errors.New("another version has written it")

const readsFormats = "this version reads formats 4 and 5"

// oldMagic is at byte 16 of a file of formats 1 and 2, which were bbolt's.
var oldMagic = []byte{0xed, 0xda, 0x0c, 0xed}

// tableWriter writes a table.
type tableWriter struct {
	file   file
	id     uint64
	number uint64 // of the frame that is being filled
	at     int64
	frame  []byte // with room for its header
}

func newTableWriter(f file) (*tableWriter, error) {
	var id [8]byte
	rand.Read(id[:]) // never fails
	w := &tableWriter{file: f, id: binary.BigEndian.Uint64(id[:]), frame: make([]byte, frameHeader, frameHeader+frameSize)}
	b := append(make([]byte, 0, tableHeader), tableMagic+tableFormat...)
	b = append(b, id[:]...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return w, w.write(b)
}

func (w *tableWriter) write(b []byte) error {
	_, err := w.file.WriteAt(b, w.at)
	w.at += int64(len(b))
	return err
}

func (w *tableWriter) add(e *entry) error {
	w.frame = appendEntry(w.frame, e)
	if len(w.frame) < frameHeader+frameSize {
		return nil
	}
	return w.seal()
}

// seal writes the frame that is being filled.
func (w *tableWriter) seal() error {
	seal(w.frame, w.id, w.number)
	err := w.write(w.frame)
	w.number++
	w.frame = w.frame[:frameHeader]
	return err
}

// end completes the table.
func (w *tableWriter) end() error {
	if len(w.frame) > frameHeader {
		if err := w.seal(); err != nil {
			return err
		}
	}
	return w.seal()
}

// readTable visits the entries of a table in order, those of a frame when all of the
// frame has been found right; that nothing is missing at the end is known when it
// returns. Key and value are the visitor's. An error wraps errDamaged, or is of the file system or the visitor.
func readTable(from io.Reader, visit func(entry) error) error {
	r := bufio.NewReaderSize(from, frameSize)
	id, err := readTableHeader(r)
	if err != nil {
		return err
	}
	at := int64(tableHeader)
	var last *entry
	for number := uint64(0); ; number++ {
		damaged := func(what string) error {
			return fmt.Errorf("%w: part %d, at byte %d, %s", errDamaged, number, at, what)
		}
		frame, err := readFrame(r, id, maxFrame)
		switch {
		case errors.Is(err, errDamaged) || err == nil && numberOf(frame) != number:
			return damaged("is not what was written")
		case cutOff(err):
			return damaged("is cut off: the file is too short")
		case err != nil:
			return err
		case len(frame) == frameHeader:
			switch _, err := r.ReadByte(); err {
			case io.EOF:
				return nil
			case nil:
				return damaged("is the end, and something follows it")
			default:
				return err
			}
		}
		entries, err := decodeEntries(nil, frame[frameHeader:])
		if err != nil {
			return damaged("can't be read: " + err.Error())
		}
		for i := range entries {
			if last != nil && compareEntries(*last, entries[i]) >= 0 {
				return damaged("is not in order")
			}
			last = &entries[i]
			if err := visit(entries[i]); err != nil {
				return err
			}
		}
		at += int64(len(frame))
	}
}

func readTableHeader(r io.Reader) (id uint64, err error) {
	header := make([]byte, tableHeader)
	if _, err := io.ReadFull(r, header); err != nil {
		if cutOff(err) {
			err = fmt.Errorf("%w: it is too short for its header", errDamaged)
		}
		return 0, err
	}
	rest, ok := strings.CutPrefix(string(header), tableMagic)
	sum := len(header) - 4
	switch {
	case bytes.Equal(header[16:20], oldMagic):
		return 0, fmt.Errorf("%w: it has the format of an earlier version; %s", errFormat, readsFormats)
	case !ok:
		return 0, fmt.Errorf("%w: it does not begin as a file of this store does", errDamaged)
	case crc32.Checksum(header[:sum], castagnoli) != binary.BigEndian.Uint32(header[sum:]):
		return 0, fmt.Errorf("%w: its header is not what was written", errDamaged)
	case !strings.HasPrefix(rest, tableFormat) && !strings.HasPrefix(rest, readFormat):
		return 0, fmt.Errorf("%w: it has format %q; %s", errFormat, rest[:1], readsFormats)
	}
	return binary.BigEndian.Uint64(header[sum-8:]), nil
}

func compareEntries(e, other entry) int {
	if e.bucket != other.bucket {
		return int(e.bucket) - int(other.bucket)
	}
	return bytes.Compare(e.key, other.key)
}

// latest returns the last entry of each key, in order of buckets and keys.
func latest(entries []entry) []entry {
	var of [buckets][]int // indices: cheaper to sort than what they point to
	for i := range entries {
		b := entries[i].bucket
		of[b] = append(of[b], i)
	}
	kept := make([]entry, 0, len(entries))
	for _, order := range of {
		slices.SortFunc(order, func(i, j int) int {
			if c := bytes.Compare(entries[i].key, entries[j].key); c != 0 {
				return c
			}
			return j - i // the last of a key first
		})
		for n, i := range order {
			if n == 0 || !bytes.Equal(entries[i].key, entries[order[n-1]].key) {
				kept = append(kept, entries[i])
			}
		}
	}
	return kept
}

// onTop returns a visitor that visits what it is given with changes on top, and a
// function that visits those behind the last. Changes are as latest returns them.
func onTop(changes []entry, visit func(entry) error) (each func(entry) error, end func() error) {
	upTo := func(within func(entry) bool) error {
		for len(changes) > 0 && within(changes[0]) {
			e := changes[0]
			changes = changes[1:]
			if e.value != nil {
				if err := visit(e); err != nil {
					return err
				}
			}
		}
		return nil
	}
	each = func(e entry) error {
		if err := upTo(func(change entry) bool { return compareEntries(change, e) < 0 }); err != nil {
			return err
		}
		if len(changes) > 0 && compareEntries(changes[0], e) == 0 {
			return nil // its successor is visited with the next, or at the end
		}
		return visit(e)
	}
	return each, func() error { return upTo(func(entry) bool { return true }) }
}
