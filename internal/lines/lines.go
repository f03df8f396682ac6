// Package lines keeps what writes lines from waiting for who reads them: a pipe behind which a collector hangs, a
// terminal that was stopped, a full disk.
package lines

import (
	"errors"
	"io"
	"sync"
	"time"
)

// lineBytes is what a line that waits takes beside its own bytes.
const lineBytes = 64

// hangsAfter is how long a write takes at least where the reader is taken to hang. One that is only slow takes what
// the pipe has within a second.
const hangsAfter = 5 * time.Second

// Queue writes lines one after the other, each with one Write, in a goroutine of its own. What has no room in it is
// dropped, and so is all that comes until the rest was written: one gap, not many. The gap is told of in its place.
// Make one with New; its methods may be called at once.
type Queue struct {
	to        io.Writer
	mostLines int
	mostBytes int
	remark    func(Loss) []byte

	mu       sync.Mutex // never held while anything is written
	work     sync.Cond  // of mu: there is something to do
	lines    [][]byte
	bytes    int       // of lines, of the one that is being written, and of rooms
	began    time.Time // of the write under way; zero without one
	dropping bool      // until lines is empty
	lost     uint64    // lines, since the start
	gap      Loss      // that no remark has told of yet
	unsaid   bool      // it was tried to tell of it, and failed
	closed   bool
	ended    chan struct{}
}

// Loss is a gap: lines that were not written.
type Loss struct {
	Lines       uint64
	From, Until time.Time // when the first and the last one were lost
}

// New returns a Queue that writes to to, and holds at most so many lines and bytes.
func New(to io.Writer, mostLines, mostBytes int) *Queue {
	q := &Queue{to: to, mostLines: mostLines, mostBytes: mostBytes, ended: make(chan struct{})}
	q.work.L = &q.mu
	go q.run()
	return q
}

// Remark sets what tells of a gap: its result is written as it is. Without one nothing is.
func (q *Queue) Remark(remark func(Loss) []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remark = remark
}

// Write queues a whole line, and returns at once. It never fails: see State for what became of lines.
func (q *Queue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	cost := len(line) + lineBytes
	if q.dropping || q.closed || !q.fits(cost) {
		q.dropping = true
		q.lose(Loss{1, time.Now(), time.Now()})
	} else {
		q.add(line, cost)
	}
	q.work.Signal()
	return len(line), nil
}

func (q *Queue) fits(cost int) bool {
	return len(q.lines) < q.mostLines && q.bytes+cost <= q.mostBytes
}

// add queues a line for which there is room.
func (q *Queue) add(line []byte, cost int) {
	q.lines = append(q.lines, append([]byte(nil), line...))
	q.bytes += cost
}

// lose counts lines that are not written.
func (q *Queue) lose(l Loss) {
	q.lost += l.Lines
	q.widen(l)
}

// widen adds to the gap.
func (q *Queue) widen(l Loss) {
	if q.gap.Lines == 0 || l.From.Before(q.gap.From) {
		q.gap.From = l.From
	}
	if q.gap.Lines == 0 || l.Until.After(q.gap.Until) {
		q.gap.Until = l.Until
	}
	q.gap.Lines += l.Lines
}

// run writes what is queued, and behind it what was lost, until Close.
func (q *Queue) run() {
	defer close(q.ended)
	q.mu.Lock()
	defer q.mu.Unlock()
	torn := false // what was written last was not written whole
	for {
		switch {
		case len(q.lines) > 0:
			line := q.lines[0]
			q.lines = q.lines[1:]
			if !q.write(line, &torn) {
				q.lose(Loss{1, time.Now(), time.Now()})
			}
			q.bytes -= len(line) + lineBytes
			q.unsaid = false
		case q.dropping || q.gap.Lines > 0 && !q.unsaid:
			q.dropping = false
			gap, remark := q.gap, q.remark
			q.gap = Loss{}
			if remark == nil {
				continue
			}
			q.mu.Unlock()
			text := remark(gap)
			q.mu.Lock()
			if !q.write(text, &torn) {
				q.widen(gap)
				q.unsaid = true
			}
		case q.closed:
			return
		default:
			q.work.Wait()
		}
	}
}

// write writes a line without the lock, and reports whether all of it was. After a part of a line another one is begun.
func (q *Queue) write(line []byte, torn *bool) bool {
	q.began = time.Now()
	q.mu.Unlock()
	if *torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := q.to.Write(line)
	q.mu.Lock()
	q.began = time.Time{}
	if n > 0 {
		*torn = n < len(line)
	}
	return err == nil
}

// Close has what is queued be written, for at most so long, and ends the writing. What comes later is lost.
func (q *Queue) Close(limit time.Duration) {
	q.mu.Lock()
	q.closed = true
	q.work.Signal()
	q.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-q.ended:
	case <-timer.C:
	}
}

// State is how a Queue gets on.
type State struct {
	Lost    uint64        // lines, since the start
	Waiting int           // lines
	Hangs   time.Duration // how long the reader has let a write wait; 0: less than 5 s
	Losing  bool          // lines were lost, and the reader was not told yet
}

// Well reports whether the last line could be written, and its reader reads.
func (s State) Well() bool { return s.Hangs == 0 && !s.Losing }

// State returns how it is now. Where a gap could not be told of, that is tried again: there may be no other line soon.
func (q *Queue) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state()
}

func (q *Queue) state() State {
	if q.unsaid {
		q.unsaid = false
		q.work.Signal()
	}
	s := State{Lost: q.lost, Waiting: len(q.lines), Losing: q.dropping || q.gap.Lines > 0}
	if !q.began.IsZero() {
		s.Waiting++
		if took := time.Since(q.began); took >= hangsAfter {
			s.Hangs = took
		}
	}
	return s
}

// ErrNoRoom is why no room was set aside: lines are lost, or would be.
var ErrNoRoom = errors.New("lines can't be written: their reader does not read, or writing fails")

// Room is set aside for one line.
type Room struct {
	q    *Queue
	cost int // 0: it was used or given back
}

// Reserve sets room aside for a line of at most so many bytes, or returns ErrNoRoom. Its caller closes the Room.
func (q *Queue) Reserve(most int) (*Room, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	cost := most + lineBytes
	if q.closed || !q.state().Well() || !q.fits(cost) {
		return nil, ErrNoRoom
	}
	q.bytes += cost
	return &Room{q, cost}, nil
}

// Write queues the line that the room was set aside for. Another one, or one that is longer, is queued as any line.
func (r *Room) Write(line []byte) (int, error) {
	cost := len(line) + lineBytes
	r.q.mu.Lock()
	if r.cost < cost || r.q.closed {
		r.q.mu.Unlock()
		return r.q.Write(line)
	}
	defer r.q.mu.Unlock()
	r.q.bytes -= r.cost
	r.cost = 0
	r.q.add(line, cost)
	r.q.work.Signal()
	return len(line), nil
}

// Close gives the room back where it was not used.
func (r *Room) Close() {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	r.q.bytes -= r.cost
	r.cost = 0
}
