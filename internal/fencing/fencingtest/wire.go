package fencingtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// ErrCut is why calls on a Wire fail.
var ErrCut = errors.New("the connection was cut")

// Failing has calls of some operations fail.
func Failing(ops ...string) func(op string) error {
	return func(op string) error {
		if slices.Contains(ops, op) {
			return fencing.Unavailable(ErrCut)
		}
		return nil
	}
}

// Wire is a Model on which calls and messages can be held up, lost and counted.
type Wire struct {
	*Model

	mu       sync.Mutex // guards what follows: see Set
	calls    map[string]int
	listener fencing.Listener
	sinks    []fencing.EventSink // that have begun to watch

	Before  func(op string) error // nil lets the call through
	After   func(op string) error // an error takes the place of the answer
	Message func(g fencing.Grant, pass func())
	Late    func(op string) time.Duration // a call whose caller may have gone when it is made
	Mute    bool                          // heartbeats fail
	Deaf    bool                          // no events are heard
	Unasked bool                          // nobody is told to ask
	Unheard bool                          // nobody is told that another request has its lease
	names   []fencing.Name                // of the last heartbeat
}

// Watch implements fencing.Store.
func (w *Wire) Watch(sink fencing.EventSink) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sinks = append(w.sinks, sink)
	if w.Deaf {
		return func() {}
	}
	return w.Model.Watch(sink)
}

// Set changes what befalls calls and messages.
func (w *Wire) Set(change func(*Wire)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

// Count returns how many calls of an operation there were.
func (w *Wire) Count(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[op]
}

func (w *Wire) hook(op string, of func(*Wire) func(string) error) error {
	w.mu.Lock()
	hook := of(w)
	w.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(op)
}

// call makes a call of the model as the hooks say.
func call[A, R any](ctx context.Context, w *Wire, op string, do func(context.Context, A) (R, error), r A) (R, error) {
	var none R
	w.mu.Lock()
	if w.calls == nil {
		w.calls = map[string]int{}
	}
	w.calls[op]++
	late, mute := w.Late, w.Mute && op == "heartbeat"
	w.mu.Unlock()
	if mute {
		return none, fencing.Unavailable(ErrCut)
	}
	if err := w.hook(op, func(w *Wire) func(string) error { return w.Before }); err != nil {
		return none, err
	}
	var out R
	var err error
	if d := delay(late, op); d > 0 {
		type answer struct {
			out R
			err error
		}
		answers := make(chan answer, 1)
		go func() {
			<-time.After(d)
			out, err := do(context.WithoutCancel(ctx), r)
			answers <- answer{out, err}
		}()
		select {
		case a := <-answers:
			out, err = a.out, a.err
		case <-ctx.Done():
			return none, fencing.Unavailable(ctx.Err())
		}
	} else {
		out, err = do(ctx, r)
	}
	if lost := w.hook(op, func(w *Wire) func(string) error { return w.After }); lost != nil {
		return none, lost
	}
	return out, err
}

func delay(late func(string) time.Duration, op string) time.Duration {
	if late == nil {
		return 0
	}
	return late(op)
}

// Do implements fencing.Store.
func (w *Wire) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	return call(ctx, w, fencing.Verb(op), w.Model.Do, op)
}

// Expire implements fencing.Store.
func (w *Wire) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	return call(ctx, w, "expire", w.Model.Expire, limit)
}

// Heartbeat implements fencing.Store.
func (w *Wire) Heartbeat(ctx context.Context, names []fencing.Name) error {
	_, err := call(ctx, w, "heartbeat", func(ctx context.Context, names []fencing.Name) (struct{}, error) {
		w.Set(func(w *Wire) { w.names = slices.Clone(names) })
		return struct{}{}, w.Model.Heartbeat(ctx, names)
	}, names)
	return err
}

// Beaten returns the names of the last heartbeat.
func (w *Wire) Beaten() []fencing.Name {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names
}

// Listen implements fencing.Store.
func (w *Wire) Listen(l fencing.Listener) {
	w.Set(func(w *Wire) { w.listener = l })
	w.Model.Listen(messages{l, w})
}

// messages passes on what the model says, as the wire lets it.
type messages struct {
	fencing.Listener
	wire *Wire
}

// Granted implements fencing.Listener.
func (m messages) Granted(g fencing.Grant, now fencing.Instant, asked time.Time) {
	pass := func() { m.Listener.Granted(g, now, asked) }
	m.wire.mu.Lock()
	deal := m.wire.Message
	m.wire.mu.Unlock()
	if deal == nil {
		pass()
		return
	}
	deal(g, pass)
}

// Replaced implements fencing.Listener.
func (m messages) Replaced(name fencing.Name, stamp fencing.Stamp) {
	if !m.wire.is(&m.wire.Unheard) {
		m.Listener.Replaced(name, stamp)
	}
}

// Ask implements fencing.Listener.
func (m messages) Ask(name fencing.Name, stamp fencing.Stamp) {
	if !m.wire.is(&m.wire.Unasked) {
		m.Listener.Ask(name, stamp)
	}
}

func (w *Wire) is(flag *bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *flag
}

// Gap tells the gateway that messages may have been lost.
func (w *Wire) Gap() {
	w.mu.Lock()
	l := w.listener
	w.mu.Unlock()
	l.Gap()
}

// EventGap tells those who watch that events may have been lost.
func (w *Wire) EventGap() {
	w.mu.Lock()
	sinks := slices.Clone(w.sinks)
	w.mu.Unlock()
	for _, sink := range sinks {
		sink.Gap()
	}
}
