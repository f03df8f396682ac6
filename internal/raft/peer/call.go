package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"time"
)

// What may become of a call, beside an answer. Others mean that a request may have been handled,
// or may yet be.
var (
	// ErrNotSent: the request was certainly not handled, nor will it be.
	ErrNotSent = errors.New("the node was not asked")

	// ErrBusy: as ErrNotSent, for there are too many calls to that node, or there.
	ErrBusy = fmt.Errorf("%w: too many calls are under way", ErrNotSent)

	// ErrTooLarge: as ErrNotSent, for the request is larger than MaxMessage.
	ErrTooLarge = fmt.Errorf("%w: the request is too large", ErrNotSent)
)

// notSent is an error of a request that was not sent.
type notSent struct{ error }

// Is has it be ErrNotSent.
func (n notSent) Is(target error) bool { return target == ErrNotSent }

// Unwrap returns why.
func (n notSent) Unwrap() error { return n.error }

// Failed is an error of the handler that was called: its text.
type Failed string

func (f Failed) Error() string { return string(f) }

// Call sends a request to a node, and returns the answer of its Handler. With an empty ID
// whoever is at the address is asked. It ends with ctx, which is also the handler's time. What
// was sent to that node, by its ID, on an older connection is not handled any more once the first request
// of a newer one is. See ErrNotSent; Failed.
func (p *Peer) Call(ctx context.Context, to Node, body []byte) ([]byte, error) {
	if len(body) > MaxMessage {
		return nil, ErrTooLarge
	}
	l, err := p.linkTo(to)
	if err != nil {
		return nil, notSent{err}
	}
	select {
	case <-l.ready:
	case <-ctx.Done():
		return nil, notSent{ctx.Err()}
	}
	if l.dialErr != nil {
		return nil, notSent{l.dialErr}
	}
	return l.call(ctx, body)
}

// link is the connection on which this node calls another. It is kept until it fails.
type link struct {
	peer *Peer
	to   Node
	key  string

	ready   chan struct{} // closed when it was dialled, or that has failed
	dialErr error         // once ready is closed: why not

	conn net.Conn
	out  *sender

	mu    sync.Mutex
	next  uint64
	calls map[uint64]chan frame // who waits for an answer
	err   error                 // why it has ended
	heard time.Time             // when something came last, or later, if what is sent takes its time
	used  time.Time             // when there was the last call
	ended chan struct{}
}

// idleLink is for how long a connection without calls is kept.
const idleLink = time.Minute

// linkTo returns the connection to a node. Who asks first has it made.
func (p *Peer) linkTo(to Node) (*link, error) {
	key := to.String()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if l := p.links[key]; l != nil {
		return l, nil
	}
	l := &link{peer: p, to: to, key: key, ready: make(chan struct{}), calls: map[uint64]chan frame{}, ended: make(chan struct{})}
	p.links[key] = l
	p.running.Go(l.run)
	return l, nil
}

// run makes the connection and reads the answers.
func (l *link) run() {
	p := l.peer
	conn, _, err := p.dial(p.ctx, l.to, forCall)
	if err != nil {
		l.remove()
		l.dialErr = err
		close(l.ready)
		l.fail(err)
		return
	}
	l.mu.Lock()
	now := time.Now()
	l.conn, l.heard, l.used = conn, now, now
	l.out = newSender(conn, l.fail)
	failed := l.err
	l.mu.Unlock()
	var writing sync.WaitGroup
	writing.Go(l.out.run)
	writing.Go(l.try)
	close(l.ready)
	if failed != nil {
		cut(conn)
	}
	l.fail(l.read())
	l.out.end()
	writing.Wait()
}

// remove has the next call make another connection.
func (l *link) remove() {
	l.peer.mu.Lock()
	defer l.peer.mu.Unlock()
	if l.peer.links[l.key] == l {
		delete(l.peer.links, l.key)
	}
}

// fail ends the connection: whoever waits is told, once.
func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	close(l.ended)
	if l.conn != nil {
		cut(l.conn)
	}
}

// read hands out answers until the connection ends.
func (l *link) read() error {
	defer l.remove()
	r := bufio.NewReaderSize(steady{Conn: l.conn, came: func() { l.expect(0) }}, 64<<10)
	for {
		f, err := readFrame(r)
		if err != nil {
			return err
		}
		l.mu.Lock()
		waiting := l.calls[f.call]
		delete(l.calls, f.call)
		l.mu.Unlock()
		if waiting != nil {
			waiting <- f // has room for it
		}
	}
}

// sendRate is how many bytes a second get through at least while the other side reads a
// request: until it has all of it, it answers nothing.
const sendRate = 4 << 20

// expect notes that something came, or, after a request of so many bytes, that it takes a while.
func (l *link) expect(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := time.Now().Add(time.Duration(bytes) * time.Second / sendRate); at.After(l.heard) {
		l.heard = at
	}
}

// try finds out whether the other side is there, and gives up a connection on which nothing
// is heard, or that nobody uses.
func (l *link) try() {
	every := l.peer.options.KeepAlive
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-l.ended:
			return
		case now := <-ticker.C:
			stood := now.Sub(last) > 2*every // this process did: what was sent meanwhile is to be read first
			last = now
			l.mu.Lock()
			silent, idle := now.Sub(l.heard) > silence*every, len(l.calls) == 0 && now.Sub(l.used) > idleLink
			if stood && now.After(l.heard) {
				l.heard, silent = now, false
			}
			l.mu.Unlock()
			switch {
			case silent:
				l.fail(fmt.Errorf("nothing was heard of %s for %s", l.to.Addr, silence*every))
				return
			case idle:
				l.remove()
				l.fail(errors.New("the connection was not used"))
				return
			}
			l.out.send(frame{kind: ping})
		}
	}
}

// call sends one request.
func (l *link) call(ctx context.Context, body []byte) ([]byte, error) {
	answered := make(chan frame, 1)
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return nil, notSent{l.err}
	}
	if len(l.calls) >= MaxCalls {
		l.mu.Unlock()
		return nil, ErrBusy
	}
	l.next++
	id := l.next
	l.calls[id], l.used = answered, time.Now()
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.calls, id)
	}()
	if !l.out.send(frame{kind: request, call: id, limit: timeLeft(ctx), body: body}) {
		return nil, ErrBusy
	}
	if len(body) > sendRate/10 {
		l.expect(len(body))
	}
	select {
	case f := <-answered:
		return f.result()
	case <-ctx.Done():
		l.out.send(frame{kind: cancel, call: id})
		return nil, ctx.Err()
	case <-l.ended:
	}
	select {
	case f := <-answered: // before the end: what it says is known
		return f.result()
	default:
		return nil, l.err // is not written again
	}
}

// result is what an answer says.
func (f frame) result() ([]byte, error) {
	switch f.kind {
	case answer:
		return f.body, nil
	case busy:
		return nil, ErrBusy
	case failure:
		return nil, Failed(f.body)
	}
	return nil, errFrame
}

// timeLeft returns the time of a call in ms, 0 for any.
func timeLeft(ctx context.Context) uint32 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return uint32(min(max(time.Until(deadline).Milliseconds(), 1), math.MaxUint32))
}
