package raft

import (
	"slices"
	"time"
)

const (
	// paced is of how many writes it is known how long they took.
	paced = 16

	// leastPaced is how many there are at least where something is said of them: a few that take long, as while
	// snapshots are written, are no slow disk.
	leastPaced = 8

	// pacedFor is how long they count.
	pacedFor = time.Minute
)

// pace is how long the last writes to a disk took.
type pace struct {
	took  [paced]time.Duration
	ended [paced]time.Time
	next  int
}

func (p *pace) note(took time.Duration, ended time.Time) {
	p.took[p.next], p.ended[p.next] = took, ended
	p.next = (p.next + 1) % paced
}

// median returns what half of those of the last 16 writes took at least that are of the last minute; known is false
// where they are fewer than leastPaced.
func (p *pace) median(now time.Time) (took time.Duration, known bool) {
	var all []time.Duration
	for i, ended := range p.ended {
		if !ended.IsZero() && now.Sub(ended) < pacedFor {
			all = append(all, p.took[i])
		}
	}
	if len(all) < leastPaced {
		return 0, false
	}
	slices.Sort(all)
	return all[len(all)/2], true
}

// writeTime returns how long a write takes lately, as pace has it, or how long one that is under way has taken, if that
// is so long that it counts alone.
func (l *diskLog) writeTime(alone time.Duration) (took time.Duration, known bool) {
	busy := l.busyFor()
	l.mu.Lock()
	defer l.mu.Unlock()
	took, known = l.pace.median(time.Now())
	if busy > max(took, alone) {
		return busy, true
	}
	return took, known
}

// DiskTime returns how long a write of entries to the log of this node takes lately, until it is on disk: the median of
// the last 16, as far as they are of the last minute. Where one of any kind has not ended for as long as a leader may take
// for it, and longer than that median, it returns how long that one has taken. known is false where neither is so:
// there is no such write, and fewer than eight have ended in that minute.
func (s *Store) DiskTime() (took time.Duration, known bool) {
	return s.dir.log.writeTime(stallsFor * s.election)
}
