package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// simNet is how long what is written takes to be read at most, while nobody stands still.
const simNet = 20 * time.Millisecond

// simRequest is a request for leases on one connection: what the gateway does for it, as internal/http does,
// and what its client has read.
type simRequest struct {
	fencing.AcquireRequest
	names  []fencing.Name // in order; several where the request is for several
	linger time.Duration
	n      int // of the lease's, from 1
	of     *simLease
	g      *simGateway
	sent   time.Time

	ctx    context.Context // ends when the gateway knows that the client has gone
	hangUp context.CancelFunc
	back   simPipe // to the client

	// What follows the simulation's mutex guards.

	reached time.Time      // when the gateway had it
	keeps   []fencing.Name // what the gateway keeps for it, or, without a stream, has told it of; nil: it has told of nothing, or of the end
	fresh   time.Time      // when the gateway heard of its leases last
	told    error          // what it was told at the end by the gateway
	over    bool           // the gateway is through with it

	word  time.Time      // when the client read something last, or sent the request
	waits bool           // it has read that it waits
	has   []fencing.Name // what the client believes in, of what it was told
	until time.Time      // for so long
	end   error          // how it ended, as the client has read
	left  bool           // the client has closed the connection, or that broke

	doubted bool // the client has asked again for the end of it
}

// errBroke is the end of a connection that breaks.
var errBroke = fmt.Errorf("the connection broke")

// several reports whether the request is for several names, be it for one of them.
func (r *simRequest) several() bool { return r.of.several }

func (r *simRequest) String() string {
	return fmt.Sprintf("request %d of %s for %v at gateway %d (stream: %t)", r.n, r.of.id.Public()[4:], r.names, r.g.n, r.Attach)
}

// believes reports whether the client trusts in a name because of this request. The caller holds the mutex.
func (r *simRequest) believes(name fencing.Name, at time.Time) bool {
	return r.end == nil && !r.left && at.Before(r.until) && slices.Contains(r.has, name)
}

// serve is the gateway's part.
func (r *simRequest) serve() {
	g, s := r.g, r.of.sim
	defer s.ends(r)
	g.stand()
	s.mu.Lock()
	r.reached = time.Now()
	s.mu.Unlock()
	if r.ctx.Err() != nil { // its client has gone: the store is not asked
		return
	}
	ask := Request{AcquireRequest: r.AcquireRequest, Linger: r.linger}
	if r.several() {
		ask.Names = r.names
	}
	open, err := g.all.Begin(&ask)
	if err != nil {
		r.refuse(err)
		return
	}
	defer open.Close()
	_, err = open.Acquire(r.ctx, func(fencing.Name, fencing.Waiter, *fencing.Lock) context.Context {
		r.write(simWord{kind: simQueued})
		return r.ctx
	})
	g.stand()
	leases := open.Leases()
	switch {
	case err != nil:
		if !r.refuse(err) {
			open.Unheard()
		}
	case leftOfLeases(leases) < time.Millisecond:
		open.LeaveOlder()
		r.refuse(&fencing.Error{Code: fencing.CodeUnavailable, Detail: "nothing is left of it"})
		r.spends()
	case r.ctx.Err() != nil || !r.write(simWord{simGranted, leases, nil}):
	case !r.Attach:
		open.Told()
	default:
		r.keep(open)
	}
}

func (r *simRequest) keep(open *Session) {
	for u := range open.Keep(r.ctx, nil) {
		r.g.stand()
		switch {
		case u.Err != nil:
			r.write(simWord{simLost, nil, u.Err})
			return // Close waits for the client to leave
		case leftOfLeases(u.Leases) >= time.Millisecond && !r.write(simWord{simRenewed, u.Leases, nil}):
			r.hangUp()
		}
	}
}

// refuse tells a client why it is refused, and reports whether it could be told.
func (r *simRequest) refuse(err error) bool {
	return r.ctx.Err() == nil && r.write(simWord{simRefused, nil, err})
}

func leftOfLeases(leases []Lease) time.Duration {
	left := time.Hour
	for i := range leases {
		left = min(left, leases[i].Outcome.Remaining(time.Now()))
	}
	return left
}

type simWordKind int

const (
	simQueued simWordKind = iota
	simGranted
	simRenewed
	simRefused
	simLost
	simBroke
)

// simWord is what a gateway writes to a client.
type simWord struct {
	kind   simWordKind
	leases []Lease
	err    error
}

// write writes to the client, which reads it in time, and reports whether that went well: the connection may break.
func (r *simRequest) write(w simWord) bool {
	s := r.of.sim
	if s.kind.leaves && !s.ended() && s.oneIn(fmt.Sprint("break", r.Stamp), 25) {
		r.breaks()
	}
	if r.ctx.Err() != nil {
		return false
	}
	now, names := time.Now(), namesOf(w.leases)
	s.mu.Lock()
	until := now.Add(leftOfLeases(w.leases) - r.reached.Sub(r.sent)) // sent + elapsed + what is left
	elapsed := r.sent.Add(now.Sub(r.reached))
	switch w.kind {
	case simGranted, simRenewed:
		r.keeps, r.fresh = names, now
		if w.kind == simGranted {
			s.told.granted++
		}
	case simRefused, simLost:
		r.told, r.keeps = w.err, nil
		s.checkTold(r)
	}
	s.mu.Unlock()
	s.note("%v is told %d, %v until %s, %v", r, w.kind, names, until.Sub(s.began), w.err)
	r.back.send(s.upTo(fmt.Sprint("word", r.Stamp), simNet), r.of.stand, func() { r.hear(w, names, until, elapsed) })
	return true
}

// hear is what the client does that reads a word. What was written before a PUT of it was answered may not know of that.
func (r *simRequest) hear(w simWord, names []fencing.Name, until, elapsed time.Time) {
	s, l := r.of.sim, r.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.left && w.kind != simBroke {
		return
	}
	r.word = time.Now()
	names = slices.DeleteFunc(slices.Clone(names), func(name fencing.Name) bool { return l.released[name] || l.over[name] != "" }) // as the client knows, or the judge, who excuses it
	switch w.kind {
	case simQueued:
		r.waits = true
	case simGranted, simRenewed:
		r.waits, r.has, r.until = false, names, until
		if !elapsed.After(l.shortAt) && l.short.Before(until) {
			r.until = l.short
		}
	default:
		if r.end = w.err; w.kind == simLost { // the client closes what is of no use any more, in its time
			l.closed = l.closed || fencing.CodeOf(w.err) != fencing.CodeReplaced
			d := time.Duration(len(r.has)+1) * 100 * time.Millisecond
			go func() { advance(d); r.hangUp() }()
		}
	}
	l.signal()
}

// breaks has the connection break, as the gateway knows at once, and the client as soon as it looks.
func (r *simRequest) breaks() {
	s := r.of.sim
	s.note("%v: the connection breaks", r)
	r.gone()
	r.hangUp()
	r.back.send(s.upTo(fmt.Sprint("broke", r.Stamp), simNet), r.of.stand, func() { r.hear(simWord{simBroke, nil, errBroke}, nil, time.Time{}, time.Time{}) })
}

// leave has the client close the connection, as its gateway learns later.
func (r *simRequest) leave() {
	r.of.sim.note("%v: the client leaves", r)
	r.gone()
	d := r.of.sim.upTo(fmt.Sprint("leave", r.Stamp), simNet)
	go func() {
		advance(d)
		r.g.stand()
		r.hangUp()
	}()
}

// gone notes that the client counts on the request no more. Unless it had heard of the end, that of the connection
// may be a release.
func (r *simRequest) gone() {
	s := r.of.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.left && r.end == nil {
		r.of.closed = true
	}
	r.left = true
	r.of.signal()
}

// spends notes that what the request has got is about to end, and is released.
func (r *simRequest) spends() {
	r.of.sim.mu.Lock()
	defer r.of.sim.mu.Unlock()
	r.of.closed = true
}

// ends notes that the gateway is through with a request.
func (s *simulation) ends(r *simRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.over, r.keeps = true, nil
	s.note("%v is over", r)
}
