package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// silence is how long a stream may say nothing before it counts as broken: a gateway
// sends a comment every 15 s.
const silence = 20 * time.Second

// minSlack is how much later than it is due the event of a renewal may come at least; an
// eighth of the time between two otherwise.
const minSlack = 100 * time.Millisecond

// fewEvents are read of a stream that nobody listens to yet, to see whether it ends.
const fewEvents = 16

// event is one of server-sent events.
type event struct {
	name, id string
	data     []byte
	read     instant // when it was read from the connection
}

// errSilent is a stream that has said nothing for a while, and is still open.
var errSilent = errors.New("the gateway sends nothing")

// errShortened is a stream of a lease that lives for less by now than its gateway knows.
var errShortened = errors.New("the lease was shortened")

// stream reads server-sent events from a gateway.
type stream struct {
	c      *Client
	turn   uint32 // says whose it is
	sent   instant
	first  *event      // to be returned before those of events
	events chan event  // closed at the stream's end
	err    error       // why it has ended, once events is closed
	ended  atomic.Bool // it has, and events may be unread
	close  context.CancelFunc

	granted instant // when it was read that this one was granted in place of another

	cut   atomic.Pointer[instant] // when its end was read, unless it was closed here, or what hung on it stays (kept); nil: not yet
	taken atomic.Pointer[instant] // when it was read that a newer request has what hung on it; nil: it was not
	mute  atomic.Bool             // nothing is heard from it any more: its gateway may have seen its end, or soon
	kept  bool                    // its gateway has said that it lets go of nothing when this ends; the reader's
	least time.Duration           // the shortest TTL with which its gateway may renew the lease; the lease's mu guards it
	ahead time.Duration           // by how much the gateway's clock has been seen ahead since the request; the listener's
}

// open sends a call to the gateway of a turn that is answered with a stream, which ctx bounds. The stream has to begin
// within a time: a gateway says something at once, be it a comment.
func (c *Client) open(ctx context.Context, turn uint32, r call, within time.Duration) (*stream, error) {
	streaming, cancel := context.WithCancel(ctx)
	unbegun := time.AfterFunc(within, cancel)
	s, err := c.begins(streaming, turn, r)
	if !unbegun.Stop() && err == nil {
		err = errSilent
	}
	c.judge(ctx, turn, r.kind, err)
	if err != nil {
		cancel()
		return nil, err
	}
	s.close = cancel
	return s, nil
}

// begins sends a call, and reads the beginning of the stream.
func (c *Client) begins(ctx context.Context, turn uint32, r call) (*stream, error) {
	response, sent, err := c.send(ctx, turn, r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		defer response.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		return nil, problemOf(response, body)
	}
	if err := r.acceptStream(response); err != nil {
		response.Body.Close()
		return nil, err
	}
	s := &stream{c: c, turn: turn, sent: sent, events: make(chan event, fewEvents)}
	if !c.goes(func() {
		defer close(s.events)
		defer response.Body.Close()
		s.err = s.read(ctx, bufio.NewReader(response.Body))
		if end := c.now(); !s.kept && ctx.Err() == nil {
			s.cut.Store(&end)
		}
		s.ended.Store(true)
	}) {
		response.Body.Close()
		return nil, ErrClosed
	}
	first, ok := <-s.events
	if !ok {
		return nil, whose(response, s.err)
	}
	s.first = &first
	return s, nil
}

// read reads events until the stream ends. A comment is an event without a name.
func (s *stream) read(ctx context.Context, lines *bufio.Reader) error {
	var e event
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return fmt.Errorf("the stream ended early: %w", err)
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
			e.read = s.c.now()
			s.kept = s.kept || e.keeps()
			if at := e.read; e.name == "lost" && errors.Is(e.problem(), CodeReplaced) {
				s.taken.Store(&at)
			}
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
func (s *stream) next(ctx context.Context, within time.Duration) (e event, err error) {
	for err == nil && e.name == "" {
		e, err = s.word(ctx, within, nil)
	}
	return e, err
}

// word is next, which returns comments too, and errShortened once shortened has a value.
func (s *stream) word(ctx context.Context, within time.Duration, shortened <-chan struct{}) (event, error) {
	if first := s.first; first != nil {
		s.first = nil
		return *first, nil
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case e, ok := <-s.events:
		return s.heard(ctx, e, ok)
	case <-timer.C:
		select {
		case e, ok := <-s.events: // this process stood still
			return s.heard(ctx, e, ok)
		default:
		}
		s.c.judge(ctx, s.turn, toWait, errSilent)
		return event{}, errSilent
	case <-shortened:
		return event{}, errShortened
	case <-ctx.Done():
		return event{}, context.Cause(ctx)
	}
}

// heard returns an event, or why there are none any more.
func (s *stream) heard(ctx context.Context, e event, ok bool) (event, error) {
	if !ok {
		s.c.judge(ctx, s.turn, toWait, s.err)
		return e, s.err
	}
	return e, nil
}

// keeps reports whether it says that the leases of the stream stay as they are when it ends.
func (e event) keeps() bool {
	if e.name == "lost" { // the key may not renew them any more, nor release them; or they hang on a newer request
		why := e.problem()
		return errors.Is(why, CodeReplaced) || errors.Is(why, CodeUnauthenticated) || errors.Is(why, CodeForbidden)
	}
	return e.name == "draining"
}

// problem returns the refusal that an event tells.
func (e event) problem() error {
	var p problem
	if err := json.Unmarshal(e.data, &p); err != nil || p.Code == "" {
		return errNoGateway
	}
	return p.refusal()
}

// attach asks one gateway for an attached lease, and waits for it; the answer has to begin
// within a time.
func (q *acquiring) attach(ctx, parent context.Context, within time.Duration) (*Lease, error) {
	body := q.acquireRequest
	body.Wait = q.waitMillis(q.remaining(ctx))
	q.call.body = body
	streaming, cancel := context.WithCancel(q.c.lastingFor(parent)) // the stream outlives this call
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	q.c.leases.asks(q)
	s, err := q.c.open(streaming, q.retry.turn, q.call, within)
	wasGranted := false
	if doubtful(err) {
		q.doubted = min(q.doubted+1, maxAttempts) // as many as may be under way
	}
	for err == nil {
		var e event
		if e, err = s.next(ctx, silence); err != nil {
			break
		}
		switch e.name {
		case "refused", "lost", "draining":
			err = e.problem()
		case "granted":
			var g granted
			wasGranted = true
			if err = g.readLease(e.data, q.names); err != nil {
				break
			}
			if err = g.isOf(q.call.leaseID); err != nil {
				break
			}
			if err = q.tooEarly(ctx, g); err != nil {
				break
			}
			l := q.lease(parent, g, s.told(g, e.read), s)
			if err = q.isHeard(ctx, l, s); err == nil && !stop() {
				err = context.Cause(ctx)
			}
			if err == nil {
				l.silence = g.ttl()/3 + max(g.ttl()/24, minSlack)
				l.claim = q.call
				l.claim.kind = toRenew
				again := q.acquireRequest
				again.Limit, again.Permits = 0, 0 // as it has by then: see SetLimit and KeepPermits. It adds no name: that would be a reader
				again.Owner = ""                  // it may be another one by then: see Labels
				if l.claim.stream = len(q.names) > 1; !l.claim.stream {
					again.Linger = 0 // it is for a stream
				}
				if again.Linger == 0 { // the lease keeps its own, which the bounds of another gateway may not allow
					again.TTL, again.MaxHold = 0, 0
				}
				l.claim.body = again
				return l, q.start(l, func() {
					defer cancel()
					l.follow(s)
				})
			}
			l.finish(err)
		}
	}
	// What its gateway leaves as it is after CodeUnavailable, it lets go of after CodeNotReplicated.
	if wasGranted && !errors.Is(err, CodeReplaced) || doubtful(err) && !errors.Is(err, CodeUnavailable) || errors.Is(err, CodeNotReplicated) || s != nil && ctx.Err() != nil {
		q.endsOlder()
	} else if wasGranted { // it has replaced those, and a newer one has replaced it
		q.c.leases.overtaken(q)
		for _, older := range q.older {
			older.finish(replacedHere())
		}
	}
	cancel()
	if s != nil {
		q.retry.broken(err)
		q.c.judge(ctx, s.turn, q.call.kind, err) // it may be told by an event
	}
	return nil, err
}

// isHeard waits, where little is left of a Lease that nobody has yet, until the gateway of its stream has renewed it:
// it was found near its end, or the grant was read late, and the stream's end would release it. It refuses one that
// can't be counted on then.
func (q *acquiring) isHeard(ctx context.Context, l *Lease, s *stream) error {
	q.late = map[*Lease]int{} // what these have under way may replace it meanwhile; each is counted once
	if within := l.awaits(); within > 0 {
		q.c.leases.overtaken(q)
		for _, older := range q.older {
			if !slices.Contains(q.expected, older) {
				n, linger := older.mayReplace()
				if q.late[older] = min(n, maxAttempts-q.doubted); n > 0 {
					q.lingers = append(q.lingers, linger)
				}
				q.expected, q.doubted = append(q.expected, older), q.doubted+q.late[older]
			}
		}
		if err := l.hearsRenewal(ctx, s, within); err != nil {
			return err
		}
		q.knows(l)
	}
	l.expects(q.doubted, slices.Min(append(q.lingers, l.lingerLate)))
	l.mu.Lock()
	cut := l.cut() != nil // which it is taken over after
	l.looked = l.c.now()  // nothing has stood still while it was waited for
	l.mu.Unlock()
	if l.left() > 0 || cut && !l.isOver() {
		return nil
	}
	q.over++
	return ErrExpired
}

// awaits returns for how long at most the gateway's first renewal is waited for before anybody has the lease, because
// it is not due before the lease would be over; nothing is lost by that, for the end of the stream would be a release.
// 0: it is not waited for. Nor is it where it leaves no more: the lease is fresh, or a notice ends it, or this client
// counts on less than was said.
func (l *Lease) awaits() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	said, now := l.said(), l.c.now()
	renews, remains := l.due-said.at, said.remaining(now)
	left, within := remains-l.marginNow(), renews+max(renews/8, minSlack)
	fresh := left > renews && remains > said.ttl*2/3
	switch {
	case said.capped || said.left < l.news.left, l.notice != nil && l.notice.remaining(now) <= remains+noticeSlack:
		return 0
	case left > within, left > 0 && (fresh || within > maxDoubt):
		return 0
	}
	if !l.bounded { // or else this may be all that there is
		within = max(within, min(said.ttl, maxDoubt))
	}
	return within + min(said.left-remains, silence) // it may be read as late as the grant was
}

// hearsRenewal reads on until the gateway of a stream has renewed the lease so that it can be counted on, for so long
// at most. It returns why the stream is of no use, if it is not.
func (l *Lease) hearsRenewal(ctx context.Context, s *stream, within time.Duration) error {
	for begun := l.c.now(); ; {
		e, err := s.word(ctx, min(silence, max(0, within-l.c.now().since(begun))), nil)
		if err == errSilent {
			return nil
		}
		if err == nil {
			err = l.hearsEvent(s, e)
		}
		if err != nil || e.name == "renewed" && l.left() > 0 { // those that are read late leave nothing
			return err
		}
	}
}

// follow takes over what a stream says of an attached lease. Where it breaks off, or is
// silent when a renewal is due, this client takes the lease over and renews it from then
// on; several names until they hang on another stream. It never closes a stream before the
// lease is over: the end of one is a release, perhaps of what is still believed in.
func (l *Lease) follow(s *stream) {
	defer s.close()
	t := l.attempts()
	defer t.close()
	last := s
	for l.next = s; l.next != nil; {
		s := l.next
		l.next, last = nil, s
		if l.claim.stream && (l.hasOwnTTL() || l.detached.Load()) { // its gateway may know nothing of that: it keeps the names, and this client renews them
			l.c.goes(func() {
				l.dismiss(s, l.listen(s, func() time.Duration { return l.silence }, nil))
				l.hurry()
			})
		} else {
			err := l.listen(s, func() time.Duration { return max(min(l.silence, l.chance()*3/4), 10*time.Millisecond) }, l.sooner)
			if err == errShortened && (l.claim.stream || l.isAsGranted() && !l.detached.Load()) {
				l.next = s
				continue
			}
			l.dismiss(s, err)
		}
		if !l.isOver() {
			l.renew(t, 0)
		}
	}
	last.drain(l.kept) // its work may still be stopping
}

// drain waits until the stream ends, or its gateway has nothing more to say.
func (s *stream) drain(ctx context.Context) {
	for {
		select {
		case _, ok := <-s.events:
			if !ok {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// dismiss notes why a stream is of no use any more: the lease is lost, or to be taken over.
func (l *Lease) dismiss(s *stream, why error) {
	l.mu.Lock()
	elsewhere := l.hangs != nil && l.hangs != s
	l.mu.Unlock()
	switch {
	case errors.Is(why, CodeLeaseLost):
		l.finish(why)
	case elsewhere: // another stream was asked for beside it: see changed
		l.c.goes(func() { s.drain(l.kept) })
	case errors.Is(why, CodeReplaced) && !l.ownRequest(s):
		l.finish(why)
	case !l.isOver():
		if why != errShortened {
			l.failed(why)
		}
		if why != errShortened && !errors.Is(why, CodeDraining) && !errors.Is(why, CodeReplaced) {
			s.mute.Store(true)
		}
		if why == errSilent || why == errShortened { // it may speak again, at last of having been replaced by this client
			l.c.goes(func() { l.overhear(s) })
		} else if !errors.Is(why, CodeReplaced) { // which is counted
			l.rest(s)
		}
		l.detached.Store(true)
	}
}

// rest waits after a stream that has ended soon after it was asked for, the longer the more of them
// there were in a row, and leaves time enough to renew the lease.
func (l *Lease) rest(s *stream) {
	l.mu.Lock()
	pause := l.backoff
	if l.backoff = min(max(2*pause, minBackoff), maxBackoff); l.c.now().since(s.sent) >= maxBackoff {
		pause, l.backoff = 0, 0
	}
	l.mu.Unlock()
	if pause > 0 {
		none := l.attempts()
		l.pause(none, jitter(l.whileItLingers(min(pause, l.chance()/3))))
		none.close()
	}
}

// overhear listens to a stream that is not counted on for no more than a loss.
func (l *Lease) overhear(s *stream) {
	if err := l.listen(s, func() time.Duration { return longestAttachedWait }, nil); errors.Is(err, CodeLeaseLost) {
		l.finish(err)
	}
	s.drain(l.kept)
}

// takeOver asks for the lease once more, without a stream: a newer request has the lease,
// so that the end of the older one's stream is not its release any more.
func (l *Lease) takeOver(ctx context.Context, one *attempt) error {
	if l.claim.stream {
		return l.attachAgain(one)
	}
	var g granted
	r := l.claim
	r.read = g.lease(l.held())
	a, err := l.c.ask(ctx, l.c.current.Load(), r, longestAttachedWait)
	if err != nil {
		return err
	}
	if g.Token != l.Token() { // the store had forgotten it
		l.c.undo(l.kept, l.id, l.held())
		return forgotten()
	}
	l.mu.Lock()
	l.hangsOn(nil)
	l.take(g, l.c.answered(g, a.sent))
	l.mu.Unlock()
	l.detached.Store(false)
	return nil
}

// listen returns why a stream is of no use any more.
func (l *Lease) listen(s *stream, within func() time.Duration, shortened <-chan struct{}) error {
	for !l.isOver() {
		e, err := s.word(l.kept, within(), shortened)
		if err == nil {
			err = l.hearsEvent(s, e)
		}
		if err != nil {
			return err
		}
	}
	return l.Err()
}

// hearsEvent takes over what an event of a stream says, and returns why the stream is of no use any more, if it says
// so. Comments say nothing, nor do events that this client does not know.
func (l *Lease) hearsEvent(s *stream, e event) error {
	var g granted
	switch e.name {
	case "granted", "renewed":
		if err := g.read(e.data); err != nil {
			return err
		}
		l.renewed(g, s.told(g, e.read))
	case "notice":
		if err := json.Unmarshal(e.data, &g); err != nil {
			return errNoGateway
		}
		l.noticed(g, s.told(g, e.read))
	case "released":
		var m member
		if err := json.Unmarshal(e.data, &m); err != nil || m.Name == "" {
			return errNoGateway
		}
		if !l.dropReleased(m.Name) && slices.Contains(l.held(), m.Name) {
			return &Error{Code: CodeLeaseLost, Reason: ReasonReleased, Name: m.Name, Detail: "it was the last of the names, or the end of a connection may have released it"}
		}
	case "draining", "lost":
		return e.problem()
	}
	return nil
}
