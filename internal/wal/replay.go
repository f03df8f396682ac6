package wal

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// recover reads what is there, all frames once, and opens what comes next for writes. A directory without a log gets
// one.
func (l *Log) recover(look bool) error {
	entries, err := l.files.List(l.dir)
	for _, entry := range entries {
		name := entry.Name()
		number := numberIn(strings.TrimSuffix(name, newSuffix))
		switch {
		case err != nil:
			return err
		case name == olderFile:
			err = fmt.Errorf("%s is of a log that an earlier version kept, which this one can't read: start that version, or start with an empty directory", l.path(name))
		case number > 0 && strings.HasSuffix(name, newSuffix) && look:
		case number > 0 && strings.HasSuffix(name, newSuffix): // a crash came before it was whole
			err = inOrder(l.held, func() error { return l.files.Remove(l.path(name)) })
		case number > 0 && len(l.segments) > 0 && number != l.segments[len(l.segments)-1].number+1:
			err = fmt.Errorf("%w: %s is missing, and %s is there", ErrDamaged, l.path(nameOf(number-1)), name)
		case number > 0:
			err = l.open(number)
		}
	}
	if err != nil {
		return err
	}
	if look {
		l.failed = errLooks
		return inOrder(l.replay, l.whole, l.measureTorn)
	}
	// Who made or removed files may have been killed before their names were on disk, and who wrote, before that was.
	return inOrder(func() error { return l.files.SyncDir(l.dir) }, l.replay, l.whole, l.measureTorn, l.goOn, func() error { return l.current.write.Sync() })
}

// errLooks is what a log that is only looked at refuses to write with.
var errLooks = errors.New("the log was opened to be looked at")

// replay carries out all frames. A number that is left out is one that is missing.
func (l *Log) replay() error {
	most, blocks := uint64(math.MaxUint64), uint64(l.Bytes()/block) // of the first frame that is there nothing is known
	for _, s := range l.segments {
		for at := int64(block); at < s.size; {
			frame, number, err := s.frameAt(at, 1, most) // none is behind one of a greater number
			switch {
			case err != nil:
				return err
			case frame == nil:
				at += block
				continue
			case l.number == 0 && at == block && s == l.segments[0] && (s.number > 1 || number == 1), l.number > 0 && number == l.number+1:
				err = l.take(frame, s, at)
			default:
				return l.missing(fmt.Sprintf("frame %d is in %s at byte %d", number, s.name, at))
			}
			if err != nil {
				return fmt.Errorf("%s: %w: frame %d at byte %d: %w", l.path(s.name), ErrDamaged, number, at, err)
			}
			at += wholeBlocks(int64(len(frame)))
			l.current, l.at, l.number, most = s, at, number, number+blocks
		}
	}
	if l.last != 0 && l.base > l.first {
		return fmt.Errorf("%w: entries %d to %d are missing, and %s, which had the last of them", ErrDamaged, l.first, l.base-1, l.path(nameOf(l.segments[0].number-1)))
	}
	return nil
}

// missing says that a frame is not where frames end, though something shows that there was one.
func (l *Log) missing(shown string) error {
	if l.current == nil {
		return fmt.Errorf("%s: %w: the first frame, at byte %d, can't be read, though %s", l.path(l.segments[0].name), ErrDamaged, block, shown)
	}
	return fmt.Errorf("%s: %w: frame %d, with entry %d, a cut or a value, can be read neither at byte %d nor in the next file, though %s",
		l.path(l.current.name), ErrDamaged, l.number+1, l.last+1, l.at, shown)
}

// behind returns the files behind the last one that has a frame.
func (l *Log) behind() []*segment { return l.segments[slices.Index(l.segments, l.current)+1:] }

// whole returns an error if files show that there were frames behind the last one.
func (l *Log) whole() error {
	behind := l.behind()
	switch n := len(behind); {
	case n > 0 && l.current == nil && behind[0].number > 1:
		return fmt.Errorf("%w: %s is missing, and %s, which has no frame yet, was made after it", ErrDamaged, l.path(nameOf(behind[0].number-1)), behind[0].name)
	case n > 1:
		return l.missing(behind[n-1].name + " was made after it")
	}
	return nil
}

// measureTorn finds out how much there is behind the last frame: what a crash left of a write, or what is left of frames that
// a disk has lost.
func (l *Log) measureTorn() error {
	from, before, b := l.at, int64(0), make([]byte, zerosAtOnce)
	for _, s := range l.segments {
		if l.current != nil && s.number < l.current.number {
			continue
		}
		if s != l.current {
			from = block
		}
		for at := from; at < s.size; at += int64(len(b)) {
			b = b[:min(int64(cap(b)), s.size-at)]
			if err := s.readAt(b, at); err != nil {
				return err
			}
			if data := bytes.TrimRight(b, "\x00"); len(data) > 0 {
				l.torn = before + at - from + int64(len(data))
			}
		}
		before += s.size - from
	}
	return nil
}

// goOn opens the last file that has a frame for writes, and the one behind it. There is none more: a file is made when
// the one before it has a frame.
func (l *Log) goOn() error {
	behind := l.behind()
	switch {
	case l.current == nil: // there is nothing, or a crash came before the first frame
		var id [8]byte
		rand.Read(id[:]) // never fails
		return inOrder(l.closeFiles, func() error {
			l.id = max(binary.BigEndian.Uint64(id[:]), 1)
			return l.create(1, l.size)
		}, l.enter)
	case len(behind) == 1:
		l.next = func() error { return nil }
		return inOrder(func() error { return l.openWrite(l.current) }, func() error { return l.openWrite(behind[0]) })
	}
	l.makeNext()
	return l.openWrite(l.current)
}
