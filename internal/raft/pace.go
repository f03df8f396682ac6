package raft

import (
	"slices"
	"time"
)

const (
	// paced is of how many writes it is known how long they took.
	paced = 16

	// leastPaced is how many there are at least where something is said of them: one that takes long is no slow disk.
	leastPaced = 3

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

// median returns what half of the writes of the last minute took at least; known is false where they are few.
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

// DiskTime returns how long a write to the log of this node takes lately, until it is on disk: the median of up to 16 of
// the last minute, or how long one has taken that has not ended for as long as a leader may take for it. known is
// false where there were fewer than three.
func (s *Store) DiskTime() (took time.Duration, known bool) {
	return s.dir.log.writeTime(stallsFor * s.election)
}
