package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrDamaged is wrapped by what is wrong with files that can't be used.
var ErrDamaged = errors.New("the log is damaged")

// A segment is a file of the log:
//
//	header  magic, id of the log (8 bytes), number of the file (8), its size (8), checksum (4)
//	frames  each up to a multiple of block; zeros behind the last one
//
// Files are numbered from 1, and named by that. The first frame of each is what those before it come to, but for
// entries: so a file may go when neither it nor one before it has an entry that counts.
type segment struct {
	name   string
	number uint64
	size   int64
	sum    uint32 // of its header
	read   Reader
	write  File // nil: it is full
}

const (
	magic       = "fencepost log 1\n"
	headerSize  = len(magic) + 28
	suffix      = ".log"
	newSuffix   = ".new"        // of a file on its way to be one of the log
	olderFile   = "wal-meta.db" // of raft-wal, which kept the log before
	zerosAtOnce = 1 << 20
)

func headerOf(id, number uint64, size int64) []byte {
	b := append(make([]byte, 0, headerSize), magic...)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, id), number)
	b = binary.BigEndian.AppendUint64(b, uint64(size))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Named reports whether a file of that name is one of a log, or of what an earlier version had as one.
func Named(name string) bool { return numberIn(name) > 0 || name == olderFile }

// numberIn returns the number in the name of a file of the log; 0 if it is none.
func numberIn(name string) uint64 {
	number, err := strconv.ParseUint(strings.TrimSuffix(name, suffix), 10, 64)
	if err != nil || name != nameOf(number) {
		return 0
	}
	return number
}

func nameOf(number uint64) string { return fmt.Sprintf("%010d%s", number, suffix) }

func (l *Log) path(name string) string { return filepath.Join(l.dir, name) }

// create makes a file of the log, in place of one that has no frame if it is there, and opens it. It returns when the
// file is on disk, with its name. Of one for which there is no room nothing stays.
func (l *Log) create(number uint64, size int64) (*segment, error) {
	path := l.path(nameOf(number))
	err := inOrder(l.held,
		func() error { return l.fill(path+newSuffix, headerOf(l.id, number, size), size) }, l.held,
		func() error { return l.files.Rename(path+newSuffix, path) },
		func() error { return l.files.SyncDir(l.dir) })
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fmt.Errorf("there is no room in the file system of %s for the next file of the log, of %.1f MiB: %w; make room, and start again. "+
			"Nothing is wrong with the files that are there: leave them, they have all that was acknowledged", l.dir, float64(size)/(1<<20), err)
	}
	if err != nil {
		return nil, err
	}
	s, err := l.open(number)
	if err != nil {
		return nil, err
	}
	if err := l.openWrite(s); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// fill makes a file that has a header, and zeros behind it, or none.
func (l *Log) fill(path string, header []byte, size int64) error {
	f, err := l.files.Create(path)
	if err != nil {
		return err
	}
	zeros := make([]byte, min(zerosAtOnce, size))
	for at := int64(0); at < size && err == nil; at += int64(len(zeros)) {
		_, err = f.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at)
	}
	if err == nil {
		_, err = f.WriteAt(header, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = l.files.Remove(path) // it only takes room; the next start removes it
	}
	return err
}

// open opens a file of the log, if its header is what was written under that name.
func (l *Log) open(number uint64) (*segment, error) {
	s := &segment{name: nameOf(number), number: number}
	header := make([]byte, headerSize)
	var err error
	if s.read, err = l.files.Open(l.path(s.name)); err != nil {
		return nil, err
	}
	if s.size, err = s.read.Seek(0, io.SeekEnd); err == nil {
		_, err = s.read.ReadAt(header, 0)
	}
	if l.id == 0 {
		l.id = binary.BigEndian.Uint64(header[len(magic):])
	}
	if is := headerOf(l.id, number, s.size); err == nil && !bytes.Equal(header, is) || errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: it has %d bytes, and its header is not that of file %d of this log with that size: it was changed or cut off, or is a copy of another", ErrDamaged, s.size, number)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", l.path(s.name), err), s.close())
	}
	s.sum = binary.BigEndian.Uint32(header[headerSize-4:])
	l.bytes.Add(s.size)
	return s, nil
}

func (l *Log) openWrite(s *segment) error {
	err := l.held()
	if err == nil {
		s.write, err = l.files.OpenSynced(l.path(s.name))
	}
	if err != nil {
		s.write = nil
	}
	return err
}

// seal fills in the header of a frame.
func (s *segment) seal(frame []byte, number uint64) {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-frameHeader))
	binary.BigEndian.PutUint64(frame[8:], number)
	binary.BigEndian.PutUint32(frame[4:], s.checksum(frame))
}

func (s *segment) checksum(frame []byte) uint32 {
	return crc32.Update(crc32.Update(s.sum, castagnoli, frame[:4]), castagnoli, frame[8:])
}

// frameAt returns the frame that begins at a byte, and its number, if that is in a range; nil if there is none.
func (s *segment) frameAt(at int64, least, most uint64) (frame []byte, number uint64, err error) {
	var header [frameHeader]byte
	if at+frameHeader > s.size {
		return nil, 0, nil
	}
	_, err = s.read.ReadAt(header[:], at)
	number = binary.BigEndian.Uint64(header[8:])
	size := frameHeader + int64(binary.BigEndian.Uint32(header[:]))
	if err == nil && (number < least || number > most || at+size > s.size) {
		return nil, 0, nil
	}
	if err == nil {
		frame = make([]byte, size)
		_, err = s.read.ReadAt(frame, at)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%s, byte %d: %w", s.name, at, err)
	}
	if binary.BigEndian.Uint32(frame[4:]) != s.checksum(frame) {
		return nil, 0, nil
	}
	return frame, number, nil
}

// remove removes a file that is not needed any more. Its name is off the disk when it returns: no later one goes
// before it.
func (l *Log) remove(s *segment) error {
	l.bytes.Add(-s.size)
	return inOrder(s.close, l.held, func() error { return l.files.Remove(l.path(s.name)) }, func() error { return l.files.SyncDir(l.dir) })
}

func (s *segment) close() error {
	err := s.read.Close()
	if s.write != nil {
		err = errors.Join(err, s.write.Close())
	}
	return err
}
