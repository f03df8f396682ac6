// Package wal keeps a log on disk, in the files of one directory: entries, where the log begins and ends, and a few
// values beside it, such as a vote. It is hashicorp/raft's LogStore and StableStore. What a write has returned for is
// on disk. Whatever is damaged or missing before the end is refused at the next start, by name: see ErrDamaged.
//
// A write is one frame of whole blocks, appended to a file that was filled with zeros before, so that the file system
// has nothing to note of it. The next file is made while one is being filled. docs/format.md has the bytes.
package wal
