package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// silence is how long a stream may say nothing before it counts as broken: a gateway
// sends a comment every 15 s.
const silence = 20 * time.Second

// minSlack is how much later than it is due the event of a renewal may come at least; an
// eighth of the time between two otherwise.
const minSlack = 100 * time.Millisecond

// event is one of server-sent events.
type event struct {
	name, id string
	data     []byte
}

// errSilent is a stream that has said nothing for a while, and is still open.
var errSilent = errors.New("the gateway says nothing")

// stream reads server-sent events from a gateway.
type stream struct {
	c      *Client
	turn   uint32 // says whose it is
	sent   instant
	events chan event // closed at the stream's end
	err    error      // why it has ended, once events is closed
	close  context.CancelFunc
}

// open sends a call that is answered with a stream, which ctx bounds and which begins within
// a time.
func (c *Client) open(ctx context.Context, r call, within time.Duration) (*stream, error) {
	turn := c.current.Load()
	streaming, cancel := context.WithCancel(ctx)
	unbegun := time.AfterFunc(within, cancel)
	response, sent, err := c.send(streaming, turn, r)
	if err == nil && response.StatusCode >= 300 {
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		response.Body.Close()
		err = problemOf(response, body)
	}
	unbegun.Stop()
	c.judge(ctx, turn, err)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &stream{c: c, turn: turn, sent: sent, events: make(chan event), close: cancel}
	if !c.goes(func() {
		defer cancel()
		defer close(s.events)
		defer response.Body.Close()
		s.err = s.read(streaming, bufio.NewReader(response.Body))
	}) {
		cancel()
		response.Body.Close()
		return nil, ErrClosed
	}
	return s, nil
}

// read reads events until the stream ends. A comment is an event without a name.
func (s *stream) read(ctx context.Context, lines *bufio.Reader) error {
	var e event
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return fmt.Errorf("the stream broke off: %w", err)
		}
		field, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			e.name = value
		case "id":
			e.id = value
		case "data":
			e.data = []byte(value)
		case "":
			select {
			case s.events <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
			e = event{}
		}
	}
}

// next returns the next event, or errSilent if not so much as a comment comes in time.
// After an error the next call goes to the next gateway.
func (s *stream) next(ctx context.Context, within time.Duration) (event, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case e, ok := <-s.events:
			switch {
			case !ok:
				s.c.judge(ctx, s.turn, s.err)
				return e, s.err
			case e.name != "":
				return e, nil
			}
			timer.Reset(within)
		case <-timer.C:
			s.c.judge(ctx, s.turn, errSilent)
			return event{}, errSilent
		case <-ctx.Done():
			return event{}, context.Cause(ctx)
		}
	}
}

// problem returns the refusal that an event tells.
func (e event) problem() error {
	var p problem
	if err := json.Unmarshal(e.data, &p); err != nil {
		return err
	}
	return p.refusal()
}

// attach asks one gateway for an attached lease, and waits for it.
func (q *acquiring) attach(ctx, parent context.Context) (*Lease, error) {
	body := q.acquireRequest
	body.Wait = q.remaining(ctx).Milliseconds()
	q.call.body = body
	streaming, cancel := context.WithCancel(q.c.lastingFor(parent)) // the stream outlives this call
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	s, err := q.c.open(streaming, q.call, answerTimeout)
	for err == nil {
		var e event
		if e, err = s.next(ctx, silence); err != nil {
			break
		}
		switch q.retry.answered(); e.name {
		case "refused", "lost", "draining":
			err = e.problem()
		case "granted":
			var g granted
			if err = json.Unmarshal(e.data, &g); err != nil {
				break
			}
			if len(g.grants()) != len(q.names) {
				err = errors.New("the gateway's answer is not a lease on all names")
				break
			}
			if err = q.tooEarly(ctx, g); err != nil {
				break
			}
			l := q.lease(parent, g, s.sent)
			switch {
			case l.left() <= 0:
				err = errExpired
			case !stop():
				err = context.Cause(ctx)
			default:
				l.silence = millis(g.RenewIn) + max(millis(g.RenewIn)/8, minSlack)
				l.claim = q.call
				again := q.acquireRequest
				again.Permits = 0 // as many as it has by then
				again.Owner = ""  // it may be another one by then: see Labels
				if l.claim.stream = len(q.names) > 1; !l.claim.stream {
					again.Linger = 0 // it is for a stream
				}
				l.claim.body = again
				return l, l.start(func() {
					defer cancel()
					l.follow(s)
				})
			}
			l.finish(err)
		}
	}
	cancel()
	return nil, err
}

// follow takes over what a stream says of an attached lease. Where it breaks off, or is
// silent when a renewal is due, this client takes the lease over and renews it from then
// on; several names until they hang on another stream. It never closes a stream before the
// lease is over: the end of one is a release, perhaps of what is still believed in.
func (l *Lease) follow(s *stream) {
	defer s.close()
	for l.next = s; l.next != nil; {
		s := l.next
		l.next = nil
		err := l.listen(s, func() time.Duration { return max(min(l.silence, l.left()/2), 10*time.Millisecond) })
		switch {
		case errors.Is(err, CodeLeaseLost), errors.Is(err, CodeReplaced) && !l.ownRequest():
			l.finish(err)
		case l.Err() == nil:
			l.failed(err)
			if err == errSilent { // it may speak again, at last of having been replaced by this client
				l.c.goes(func() { l.overhear(s) })
			}
			l.detached = true
			l.renew(0)
		}
	}
	<-l.kept.Done() // its work may still be stopping
}

// overhear listens to a stream that is not counted on for no more than a loss.
func (l *Lease) overhear(s *stream) {
	if err := l.listen(s, func() time.Duration { return longestAttachedWait }); errors.Is(err, CodeLeaseLost) {
		l.finish(err)
	}
}

// takeOver asks for the lease once more, without a stream: a newer request has the lease,
// so that the end of the older one's stream is not its release any more.
func (l *Lease) takeOver(timeout time.Duration) error {
	if l.claim.stream {
		return l.attachAgain(timeout)
	}
	a, err := l.c.ask(l.kept, l.claim, timeout)
	if err != nil {
		return err
	}
	var g granted
	if err := json.Unmarshal(a.body, &g); err != nil {
		return err
	}
	if g.Token != l.Token() { // the store had forgotten it
		l.c.undo(l.kept, l.id, l.names)
		return &Error{Code: CodeLeaseLost, Reason: ReasonUnknown, Detail: "another lease was granted with the same lease id"}
	}
	l.detached = false
	return nil
}

// listen returns why a stream is of no use any more.
func (l *Lease) listen(s *stream, within func() time.Duration) error {
	for l.Err() == nil {
		e, err := s.next(l.kept, within())
		if err != nil {
			return err
		}
		switch e.name {
		case "granted", "renewed", "notice":
			var g granted
			if err := json.Unmarshal(e.data, &g); err != nil {
				return err
			}
			if e.name == "notice" {
				l.noticed(g, s.sent)
			} else {
				l.renewed(g, s.sent)
			}
		case "released":
			var m member
			if err := json.Unmarshal(e.data, &m); err != nil {
				return err
			}
			if !l.drop(m.Name) {
				return &Error{Code: CodeLeaseLost, Reason: ReasonReleased, Name: m.Name, Detail: "the last of the names was released"}
			}
		case "draining", "lost":
			return e.problem()
		}
	}
	return l.Err()
}
