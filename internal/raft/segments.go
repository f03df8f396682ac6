package raft

import (
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// segments are the files of a log. Where the end of the log was cut off, as it is where
// another leader has other entries, raft-wal notes that the file before the cut is complete, and
// does not write the index that complete ones have; it could not be read after a restart. So such a
// file is read as the last one is, whose index is made from what it has. What was cut off is
// in it still: raft-wal knows up to where it counts.
//
// A file is made as large as it will be when the one before it is full, and not while anybody waits for it.
// Where that fails raft-wal refuses the next entry and does not say why: so it is told here.
type segments struct {
	types.SegmentFiler
	dir    string
	vfs    types.VFS
	failed atomic.Pointer[func(error)] // is told why a file can't be made; nil while the log is opened, which returns it
}

func newSegments(dir string, vfs types.VFS) *segments {
	return &segments{SegmentFiler: segment.NewFiler(dir, vfs), dir: dir, vfs: vfs}
}

// Create implements types.SegmentFiler. Of a file for which there is no room nothing stays: a start would take it
// for the last one, and not give it its room.
func (s *segments) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := s.SegmentFiler.Create(info)
	if err == nil {
		return w, nil
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		if left := s.vfs.Delete(s.dir, segment.FileName(info)); left != nil && !errors.Is(left, fs.ErrNotExist) {
			err = errors.Join(err, left)
		}
		err = fmt.Errorf("there is no room for its next file, of %d MiB: make some and start again, nothing is lost (%w)", info.SizeLimit>>20, err)
	}
	if failed := s.failed.Load(); failed != nil {
		(*failed)(err)
	}
	return nil, err
}

// Open implements types.SegmentFiler.
func (s *segments) Open(info types.SegmentInfo) (types.SegmentReader, error) {
	if info.IndexStart != 0 {
		return s.SegmentFiler.Open(info)
	}
	return s.RecoverTail(info)
}

// completeLast notes that the last file is full and which one follows, where the node died, or had no room, after the one
// and before the other: raft-wal takes the file for the last one, and refuses every entry from then on. Of what was
// written last a part may be missing, so the index in the file is not trusted: see Open.
func (s *segments) completeLast(meta types.MetaStore) error {
	state, err := meta.Load(s.dir)
	if err != nil || len(state.Segments) == 0 {
		return err
	}
	last := &state.Segments[len(state.Segments)-1]
	if !last.SealTime.IsZero() {
		return nil
	}
	w, err := s.RecoverTail(*last)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is made
	} else if err != nil {
		return err
	}
	full, _, err := w.Sealed()
	end := w.LastIndex()
	if err = errors.Join(err, w.Close()); err != nil || !full {
		return err
	}
	if end < last.BaseIndex { // it has nothing that was written whole
		return s.vfs.Delete(s.dir, segment.FileName(*last))
	}
	last.SealTime, last.MaxIndex = time.Now(), end
	state.Segments = append(state.Segments, types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: end + 1, MinIndex: end + 1, SizeLimit: last.SizeLimit, Codec: last.Codec, CreateTime: last.SealTime,
	})
	state.NextSegmentID++
	return meta.CommitState(state)
}
