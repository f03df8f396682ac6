package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// errJournal is wrapped by what is wrong with a journal that can't be read.
var errJournal = errors.New("the journal does not go with the table, or is damaged")

// readJournal returns the entries of the frames above number, in order: all that was
// flushed, for only the last flush can be incomplete. It reads one frame after the other,
// and keeps only those. An error wraps errJournal, or is of the file system.
func readJournal(where directory, id, number uint64) (entries []entry, err error) {
	var segments [len(segmentNames)]segmentReader
	defer func() {
		for i := range segments {
			if segments[i].file != nil {
				err = errors.Join(err, segments[i].file.Close())
			}
		}
	}()
	for i := range segments {
		if segments[i], err = openSegment(where, i, id); err != nil {
			return nil, err
		}
	}
	next := number + 1
	for range segments { // whichever comes first
		for i := range segments {
			if entries, next, err = segments[i].read(entries, next); err != nil {
				return nil, err
			}
		}
	}
	for i := range segments {
		found, at, err := segments[i].anyFrom(next)
		if err != nil {
			return nil, err
		}
		if found != 0 {
			return nil, fmt.Errorf("%w: flush %d can be read in neither %s nor %s, though flush %d follows it in %s at byte %d",
				errJournal, next, segmentNames[0], segmentNames[1], found, segmentNames[i], at)
		}
	}
	return entries, nil
}

// segmentReader reads a segment of the journal with that id.
type segmentReader struct {
	file readable
	id   uint64
	size int64
}

func openSegment(where directory, i int, id uint64) (segmentReader, error) {
	f, err := where.files.open(where.path(segmentNames[i]))
	if err != nil {
		return segmentReader{}, err
	}
	s := segmentReader{file: f, id: id}
	if s.size, err = f.Seek(0, io.SeekEnd); err == nil {
		err = s.checkHeader(i)
	}
	if err != nil {
		return segmentReader{}, errors.Join(fmt.Errorf("%s: %w", segmentNames[i], err), f.Close())
	}
	return s, nil
}

func (s *segmentReader) checkHeader(i int) error {
	header := make([]byte, journalHeader)
	if _, err := s.file.ReadAt(header, 0); err != nil && !cutOff(err) {
		return err
	}
	rest, ok := bytes.CutPrefix(header, []byte(journalMagic))
	sum := len(header) - 4
	switch {
	case !ok:
		return fmt.Errorf("%w: it has no header", errJournal)
	case crc32.Checksum(header[:sum], castagnoli) != binary.BigEndian.Uint32(header[sum:]):
		return fmt.Errorf("%w: its header is not what was written", errJournal)
	case binary.BigEndian.Uint64(rest) != s.id:
		return fmt.Errorf("%w: it was begun by another run of the store", errJournal)
	case int(rest[8]) != i:
		return fmt.Errorf("%w: it is a copy of %s", errJournal, segmentNames[1-i])
	case binary.BigEndian.Uint64(rest[9:]) != uint64(s.size):
		return fmt.Errorf("%w: its size is %d bytes", errJournal, s.size)
	}
	return nil
}

// frameAt returns the frame that begins at a byte, nil if none does.
func (s *segmentReader) frameAt(at int64) ([]byte, error) {
	left := s.size - at
	frame, err := readFrame(io.NewSectionReader(s.file, at, left), s.id, left)
	if errors.Is(err, errDamaged) || cutOff(err) || len(frame) == frameHeader {
		return nil, nil
	}
	return frame, err
}

// read appends the entries of the frames from number next on, as far as they follow one
// another from the beginning of the segment, and returns the number that comes next.
func (s *segmentReader) read(entries []entry, next uint64) ([]entry, uint64, error) {
	last := uint64(0)
	for at := int64(block); ; {
		frame, err := s.frameAt(at)
		if err != nil {
			return nil, 0, err
		}
		if frame == nil || last != 0 && numberOf(frame) != last+1 || numberOf(frame) > next {
			return entries, next, nil
		}
		last = numberOf(frame)
		if last == next {
			if entries, err = decodeEntries(entries, frame[frameHeader:]); err != nil {
				return nil, 0, fmt.Errorf("%w: flush %d: %w", errJournal, next, err)
			}
			next++
		}
		at += wholeBlocks(int64(len(frame)))
	}
}

// anyFrom looks everywhere for a frame whose number is not below number, and returns its
// number and where it is; 0 if there is none.
func (s *segmentReader) anyFrom(number uint64) (found uint64, at int64, err error) {
	header := make([]byte, frameHeader)
	for at := int64(block); at+frameHeader <= s.size; at += block {
		if _, err := s.file.ReadAt(header, at); err != nil {
			return 0, 0, err
		}
		if n := numberOf(header); n < number || n > number+uint64(s.size) {
			continue
		}
		if frame, err := s.frameAt(at); frame != nil || err != nil {
			return numberOf(header), at, err
		}
	}
	return 0, 0, nil
}
