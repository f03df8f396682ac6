package http

import (
	"context"
	"sync"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// places tells the streams that wait where they stand: one reading of a queue serves all
// that wait for it here, so that what it costs the store does not grow with them.
type places struct {
	dog   *watchdog.Watchdog
	now   func() time.Time
	fresh time.Duration // how long a reading is good for

	mu    sync.Mutex
	names map[fencing.Name]*queue
}

// queue is what the last reading of a name's queue has shown.
type queue struct {
	streams   int                              // that wait for it
	readAt    time.Time                        // when it was read last
	positions map[fencing.LeasePublic]standing // replaced, never changed
}

// standing is where a request waits.
type standing struct {
	position int           // in the queue, from 1; 0: that is not known
	estimate time.Duration // fencing.Pace.Wait
}

// enter has a stream wait for a name until leave.
func (p *places) enter(name fencing.Name) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.names[name]
	if q == nil {
		q = &queue{readAt: p.now()} // as it joined it was told where it stands
		p.names[name] = q
	}
	q.streams++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if q.streams--; q.streams == 0 {
			delete(p.names, name)
		}
	}
}

// of returns the place of a lease, with position 0 if the last reading does not tell: the store
// shows the first fencing.MaxWaitersShown. The caller has entered for the name.
func (p *places) of(ctx context.Context, name fencing.Name, lease fencing.LeasePublic) standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.names[name]
	if p.now().Sub(q.readAt) >= p.fresh {
		q.readAt = p.now() // by this stream; meanwhile the others go by what was seen before
		p.mu.Unlock()
		seen := p.readQueue(ctx, name)
		p.mu.Lock()
		q.positions = seen
	}
	return q.positions[lease]
}

// readQueue asks the store; nil if it can't be asked.
func (p *places) readQueue(ctx context.Context, name fencing.Name) map[fencing.LeasePublic]standing {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	out, err := p.dog.Do(ctx, fencing.InspectRequest{Name: name})
	if err != nil {
		return nil
	}
	pace := fencing.PaceOf(out.Lock, out.Past)
	seen := make(map[fencing.LeasePublic]standing, len(out.Lock.Waiters))
	for i := range out.Lock.Waiters {
		w := &out.Lock.Waiters[i]
		seen[w.Lease] = standing{w.Position, pace.Wait(out.Lock, w.Mode, w.Limit, w.Permits, w.Position)}
	}
	return seen
}
