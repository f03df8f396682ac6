package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A request that may be repeated is not given up because its answer takes long: through a slow
// proxy, or from a gateway that is busy, no answer would ever be heard of what was carried out
// each time. It is left running, and asked again beside it, of the next gateway if there is one.

const (
	// maxAttempts is how many attempts of one request may be under way. One more ends the oldest.
	maxAttempts = 8

	// maxLate is how many attempts of a client may be left running that were not answered in time:
	// each is a connection. One more is given up.
	maxLate = 1024
)

// attempt is one sending of a request.
type attempt struct {
	call   call
	turn   uint32 // says to which gateway
	sent   instant
	cancel context.CancelFunc
	late   bool // it was not answered in time

	answer answer
	err    error

	lease  granted // what the answer to a renewal says
	names  int     // how many it renews
	stream *stream // that was granted in place of an answer
}

// attempts are those of one request, or of the renewals of one lease. One goroutine uses them.
type attempts struct {
	c     *Client
	ctx   context.Context
	end   context.CancelFunc
	late  func(*stream) // is given a stream that was granted late
	open  []*attempt    // oldest first
	ended chan *attempt
}

// attempts returns those of a request, which end with ctx. late is given a stream that one of them was granted late:
// it is no answer.
func (c *Client) attempts(ctx context.Context, late func(*stream)) *attempts {
	t := &attempts{c: c, late: late, ended: make(chan *attempt)}
	t.ctx, t.end = context.WithCancel(ctx)
	return t
}

// close ends what is under way, and returns when it has ended.
func (t *attempts) close() {
	t.end()
	for len(t.open) > 0 {
		t.forget(<-t.ended, false)
	}
}

// start sends a request once more, after what has to succeed before, if there is anything, and unless
// that was granted a stream.
func (t *attempts) start(one *attempt, before func(context.Context, *attempt) error) {
	for i, old := range t.open {
		if t.leave(old); i <= len(t.open)-maxAttempts {
			old.cancel()
		}
	}
	ctx, cancel := context.WithCancel(t.ctx)
	one.cancel, one.turn, one.sent = cancel, t.c.current.Load(), t.c.now()
	t.open = append(t.open, one)
	go func() {
		defer cancel()
		if before != nil {
			one.err = before(ctx, one)
		}
		if one.err == nil && one.stream == nil {
			one.answer, one.err = t.c.exchange(ctx, one.turn, one.call)
		}
		t.ended <- one
	}()
}

// forget takes an attempt that has ended out of those under way, and tells call.gone of it; with heeded the caller does so
// where it was a success.
func (t *attempts) forget(one *attempt, heeded bool) {
	if one.call.gone != nil && !(heeded && one.err == nil) {
		// Of what is refused with these the gateway takes back a grant, and no renewal.
		stands := errors.Is(one.err, CodeNotReplicated) || errors.Is(one.err, CodeClockSkew)
		one.call.gone(one.err == nil || doubtful(one.err) || stands)
	}
	if one.late {
		t.c.late.Add(-1)
	}
	t.open = slices.DeleteFunc(t.open, func(o *attempt) bool { return o == one })
}

// next waits for an answer to any attempt, for so long at most. It returns an error if the newest
// fails before, has no answer by then, or the context ends; that an older one fails is no news. It
// returns neither if there is nothing new, at once when sooner has a value.
func (t *attempts) next(within time.Duration, sooner <-chan struct{}) (*attempt, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case one := <-t.ended:
			if one.err == nil && one.stream == nil {
				one.err = one.call.accept(one.answer)
			}
			t.forget(one, true)
			switch {
			case one.stream != nil && one.late:
				one.call.gone(false)
				t.late(one.stream)
			case one.call.kind.fate(one.err) == final:
				return one, nil
			}
			t.c.judge(t.ctx, one.turn, one.call.kind, one.err)
			if !one.late {
				return nil, one.err
			}
		case <-timer.C:
			return nil, t.overdue()
		case <-sooner:
			return nil, nil
		case <-t.ctx.Done():
			return nil, t.about(context.Cause(t.ctx))
		}
	}
}

// overdue has the next attempt be made beside the newest, if that is not answered yet.
func (t *attempts) overdue() error {
	newest := t.newest()
	if newest == nil {
		return nil
	}
	t.leave(newest)
	err := t.about(fmt.Errorf("no answer after %s", t.c.now().since(t.open[0].sent).Round(time.Millisecond)))
	t.c.judge(t.ctx, newest.turn, newest.call.kind, err)
	return err
}

// leave leaves an attempt running that is not waited for any more.
func (t *attempts) leave(one *attempt) {
	if one.late {
		return
	}
	one.late = true
	if t.c.late.Add(1) > maxLate {
		one.cancel()
	}
}

// supersede ends the attempts that were sent before one which has renewed the lease: they can tell
// nothing more.
func (t *attempts) supersede(by *attempt) {
	for _, old := range t.open {
		if old.sent.t.Before(by.sent.t) {
			old.cancel()
		}
	}
}

// newest returns the newest that is under way, unless it is late.
func (t *attempts) newest() *attempt {
	if len(t.open) == 0 || t.open[len(t.open)-1].late {
		return nil
	}
	return t.open[len(t.open)-1]
}

// about says of what request an error is, if one is under way.
func (t *attempts) about(err error) error {
	if len(t.open) == 0 {
		return err
	}
	newest := t.open[len(t.open)-1]
	return fmt.Errorf("%s %s%s: %w", newest.call.method, t.c.address(newest.turn), newest.call.path, err)
}
