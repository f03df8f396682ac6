package raft

import (
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// segments are the files of a log. Where the end of the log was cut off, as it is where
// another leader has other entries, raft-wal notes that the file before the cut is complete, and
// does not write the index that complete ones have; it could not be read after a restart. So such a
// file is read as the last one is, whose index is made from what it has. What was cut off is
// in it still: raft-wal knows up to where it counts.
type segments struct{ types.SegmentFiler }

func newSegments(dir string) segments { return segments{segment.NewFiler(dir, fs.New())} }

// Open implements types.SegmentFiler.
func (s segments) Open(info types.SegmentInfo) (types.SegmentReader, error) {
	if info.IndexStart != 0 {
		return s.SegmentFiler.Open(info)
	}
	return s.RecoverTail(info)
}
