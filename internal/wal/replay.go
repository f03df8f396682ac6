package wal

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
)

// recover reads what is there, all frames once, and opens what comes next for writes. A directory without a log gets
// one.
func (l *Log) recover() error {
	names, err := l.files.List(l.dir)
	if err != nil {
		return err
	}
	if slices.Contains(names, olderFile) {
		return fmt.Errorf("%s is of a log that an earlier version kept, which this one can't read: start that version, or begin anew with an empty directory", l.path(olderFile))
	}
	for _, name := range names {
		number := numberIn(strings.TrimSuffix(name, newSuffix))
		switch {
		case number == 0:
		case strings.HasSuffix(name, newSuffix): // a crash came before it was whole
			err = inOrder(l.held, func() error { return l.files.Remove(l.path(name)) })
		default:
			err = l.readable(number)
		}
		if err != nil {
			return err
		}
	}
	// Who made or removed files may have been killed before their names were on disk.
	if err := l.files.SyncDir(l.dir); err != nil {
		return err
	}
	if len(l.segments) > 0 {
		return l.replay()
	}
	var id [8]byte
	rand.Read(id[:]) // never fails
	l.id = max(binary.BigEndian.Uint64(id[:]), 1)
	first, err := l.create(1, l.size)
	if err != nil {
		return err
	}
	return l.enter(first)
}

// readable adds a file to those that are read.
func (l *Log) readable(number uint64) error {
	if n := len(l.segments); n > 0 && l.segments[n-1].number != number-1 {
		return fmt.Errorf("%w: %s is missing, and %s is there", ErrDamaged, l.path(nameOf(number-1)), nameOf(number))
	}
	s, err := l.open(number)
	if err == nil {
		l.segments = append(l.segments, s)
	}
	return err
}

// replay carries out all frames, and opens the last file that has one, and one after it, for writes.
func (l *Log) replay() error {
	least, most := uint64(1), uint64(math.MaxUint64) // of the first frame that is there nothing more is known
	end := 0
	l.at = block
	for i, s := range l.segments {
		for at := int64(block); ; {
			frame, number, err := s.frameAt(at, least, most)
			if err != nil {
				return err
			}
			if frame == nil {
				break
			}
			if err := l.take(frame, s, at); err != nil {
				return fmt.Errorf("%s: %w: frame %d at byte %d: %w", l.path(s.name), ErrDamaged, number, at, err)
			}
			at += wholeBlocks(int64(len(frame)))
			end, l.at, l.number, least, most = i, at, number, number+1, number+1
		}
		if end != i || l.number == 0 {
			break
		}
	}
	if err := l.checkEnd(l.segments[end:]); err != nil {
		return err
	}
	last, next := l.segments[end], l.segments[end+1:]
	l.segments = l.segments[:end+1]
	if l.number == 0 {
		l.segments = nil
		return inOrder(func() error { return l.openWrite(last) }, func() error { return l.enter(last) })
	}
	l.current = last
	if len(next) > 0 {
		l.ahead = &making{done: make(chan struct{}), segment: next[0]}
		close(l.ahead.done)
		if err := l.openWrite(next[0]); err != nil {
			return err
		}
	}
	// Who was killed while it wrote may not have on disk what was read.
	return inOrder(func() error { return l.openWrite(last) }, func() error { return last.write.Sync() })
}

// checkEnd makes sure that nothing is missing where frames end, in the first of the files that are left, at l.at.
func (l *Log) checkEnd(left []*segment) error {
	at, behind, lost := l.at, "", "its first frame"
	most := uint64(math.MaxUint64)
	if l.number > 0 {
		most = l.number + uint64(l.bytes.Load()/block)
		lost = fmt.Sprintf("frame %d, which had entry %d, a cut or a value", l.number+1, l.last+1)
	}
	for _, s := range left {
		for ; at < s.size && behind == ""; at += block {
			frame, number, err := s.frameAt(at, l.number+1, most)
			if err != nil {
				return err
			}
			if frame != nil {
				behind = fmt.Sprintf("frame %d follows it in %s at byte %d", number, s.name, at)
			}
		}
		at = block
	}
	switch {
	case behind != "":
	case len(left) > 2, l.number == 0 && len(left) > 1: // a file is made when the one before it has a frame
		behind = left[len(left)-1].name + " was made after it"
	case l.number == 0 && left[0].number > 1:
		behind = "there were files before it"
	case l.last != 0 && l.base > l.first:
		return fmt.Errorf("%w: entries %d to %d are missing, and %s, which had the last of them", ErrDamaged, l.first, l.base-1, l.path(nameOf(l.segments[0].number-1)))
	default:
		return nil
	}
	return fmt.Errorf("%s: %w: at byte %d %s, can't be read, though %s", l.path(left[0].name), ErrDamaged, l.at, lost, behind)
}
