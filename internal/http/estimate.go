package http

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

const (
	// paceFresh is how long a reading of a name's pace is good for: a step of the store a
	// second and name is what estimates cost at most.
	paceFresh = time.Second

	// paceTimeout bounds how long an answer waits for an estimate.
	paceTimeout = 250 * time.Millisecond

	// maxPaces bounds of how many names the pace is kept.
	maxPaces = 4096
)

// paces keeps what the history of names says of how long a wait takes. It is read only where
// somebody is told that it has to wait, or that it has not got a lock: a grant costs nothing. The store keeps no more for
// it than it does anyway, and its answers to acquires bear nothing of it.
type paces struct {
	dog *watchdog.Watchdog
	now func() time.Time

	mu    sync.Mutex
	names map[fencing.Name]*reading
}

// reading is one of a name's pace.
type reading struct {
	at   time.Time
	done chan struct{} // closed when pace is there
	pace fencing.Pace
}

// of returns the pace of a name; it says nothing if the store can't tell it in time, or has
// no queue.
func (p *paces) of(ctx context.Context, name fencing.Name) fencing.Pace {
	if !p.dog.Capabilities().Queue {
		return fencing.Pace{}
	}
	ctx, cancel := context.WithTimeout(ctx, paceTimeout)
	defer cancel()
	p.mu.Lock()
	r, now := p.names[name], p.now()
	known := r != nil && now.Sub(r.at) < paceFresh
	if !known {
		r = &reading{at: now, done: make(chan struct{})}
		p.room(now)
		p.names[name] = r
	}
	p.mu.Unlock()
	if !known {
		defer close(r.done)
		out, err := p.dog.Do(ctx, fencing.HistoryRequest{Name: name})
		if err == nil {
			r.pace = fencing.PaceOf(out.Lock, out.Past)
			return r.pace
		}
		p.mu.Lock()
		if p.names[name] == r { // the next one tries again
			delete(p.names, name)
		}
		p.mu.Unlock()
		return r.pace
	}
	select {
	case <-r.done:
		return r.pace
	case <-ctx.Done():
		return fencing.Pace{}
	}
}

// room makes room for one more, by dropping what is not fresh any more, or all. The caller
// holds the mutex.
func (p *paces) room(now time.Time) {
	if len(p.names) < maxPaces {
		return
	}
	for name, r := range p.names {
		if now.Sub(r.at) >= paceFresh {
			delete(p.names, name)
		}
	}
	if len(p.names) >= maxPaces {
		clear(p.names)
	}
}

// estimate adds to a refusal when it would be the request's turn, if that can be told.
func (c *call) estimate(req *acquire, err error) error {
	var e *fencing.Error
	if req.Names != nil || !errors.As(err, &e) || e.Lock == nil || e.Code != fencing.CodeLocked && e.Code != fencing.CodeWaitTimeout {
		return err
	}
	position := e.Lock.Waiting + 1
	if req.ownID && e.Position > 0 { // the place is kept
		position = e.Position
	}
	place := fencing.Waiter{Mode: req.Mode, Limit: req.Limit, Permits: req.Permits}
	if req.place != nil { // it may have more than the request names
		place = *req.place
	}
	pace := c.s.paces.of(c.r.Context(), req.Name)
	told := *e
	told.EstimatedWait = pace.Wait(e.Lock, cmp.Or(place.Mode, fencing.ModeExclusive), place.Limit, place.Permits, position)
	return &told
}
