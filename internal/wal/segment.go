package wal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"fencepost/internal/datadir"
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

// create makes the last file of the log, in place of one that has no frame if it is there, and opens it. It returns when
// the file is on disk, with its name. Of one for which there is no room nothing stays.
func (l *Log) create(number uint64, size int64) error {
	path := l.path(nameOf(number))
	err := inOrder(l.Held,
		func() error { return l.fill(path+newSuffix, headerOf(l.id, number, size), size) }, l.Held,
		func() error { return l.files.Rename(path+newSuffix, path) },
		func() error { return l.files.SyncDir(l.dir) },
		func() error { return l.open(number) },
		func() error { return l.openWrite(l.newest()) })
	if taken := l.Held(); err != nil && taken != nil { // that is why
		return taken
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fmt.Errorf("the next log file needs %.1f MiB, and %w in the file system of %s: %w; make room, and start again. "+
			"Nothing is wrong with the existing files: leave them, they have everything that was acknowledged", float64(size)/(1<<20), datadir.ErrNoRoom, l.dir, err)
	}
	return err
}

// fill makes a file that has a header, and zeros behind it, or none.
func (l *Log) fill(path string, header []byte, size int64) error {
	f, err := l.files.Create(path)
	if err != nil {
		return err
	}
	part := make([]byte, min(zerosAtOnce, size))
	copy(part, header)
	for at := int64(0); at < size && err == nil; at += int64(len(part)) {
		_, err = f.WriteAt(part[:min(int64(len(part)), size-at)], at)
		clear(part[:headerSize])
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil && l.Held() == nil {
		_ = l.files.Remove(path) // it only takes room; the next start removes it
	}
	return err
}

// open adds a file to those of the log, if its header is what was written under that name.
func (l *Log) open(number uint64) (err error) {
	s, header := &segment{name: nameOf(number), number: number}, make([]byte, headerSize)
	if s.read, err = l.files.Open(l.path(s.name)); err != nil {
		return err
	}
	if s.size, err = s.read.Seek(0, io.SeekEnd); err == nil && s.size > block {
		err = s.readAt(header, 0)
	}
	l.id, s.sum = cmp.Or(l.id, binary.BigEndian.Uint64(header[len(magic):])), binary.BigEndian.Uint32(header[headerSize-4:])
	if err == nil && !bytes.Equal(header, headerOf(l.id, number, s.size)) {
		err = fmt.Errorf("%s: %w: it has %d bytes, and its header is not that of file %d of this log with that size: it was changed or cut off, or is a copy of another", l.path(s.name), ErrDamaged, s.size, number)
	}
	if err != nil {
		return errors.Join(err, s.close())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments = append(l.segments, s)
	return nil
}

func (l *Log) openWrite(s *segment) error {
	return inOrder(l.Held, func() error {
		f, err := l.files.OpenSynced(l.path(s.name))
		if err == nil {
			s.write = f
		}
		return err
	}, func() error { return l.files.Same(s.read) })
}

// newest returns the last file.
func (l *Log) newest() *segment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.segments[len(l.segments)-1]
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
	frame = make([]byte, frameHeader)
	err = s.readAt(frame, at)
	size := frameHeader + int64(binary.BigEndian.Uint32(frame))
	if number = binary.BigEndian.Uint64(frame[8:]); err != nil || number < least || number > most || at+size > s.size {
		return nil, 0, err
	}
	frame = make([]byte, size)
	if err = s.readAt(frame, at); err != nil || binary.BigEndian.Uint32(frame[4:]) != s.checksum(frame) {
		return nil, 0, err
	}
	return frame, number, nil
}

func (s *segment) readAt(b []byte, at int64) error {
	if _, err := s.read.ReadAt(b, at); err != nil {
		return fmt.Errorf("%s, byte %d: %w", s.name, at, err)
	}
	return nil
}

func (s *segment) close() error {
	if s.write == nil {
		return s.read.Close()
	}
	return errors.Join(s.read.Close(), s.write.Close())
}
