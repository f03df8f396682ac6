package http

import (
	"context"
	"sync"
	"time"
)

// leaverScan is how often the connections of requests that wait are looked at.
const leaverScan = time.Second

// leavers finds clients that have left without net/http noticing: its reader
// stops at the first byte of a next request that was sent ahead, and does not
// see the end behind it. A look costs a system call of less than a microsecond.
type leavers struct {
	mu      sync.Mutex
	waiting map[*waiting]struct{}
	timer   *time.Timer // runs while anybody waits
}

// waiting is a request that waits.
type waiting struct {
	conn    *connection
	mayWait func() bool // nil: it may
	cancel  context.CancelCauseFunc
}

// watch returns a context that ends when ctx does or the client leaves or, by the cause
// errWithdrawn, when it may not wait any more; done ends the watch.
func (l *leavers) watch(ctx context.Context, conn *connection, mayWait func() bool) (watched context.Context, done func()) {
	if conn == nil {
		return ctx, func() {}
	}
	watched, cancel := context.WithCancelCause(ctx)
	w := &waiting{conn: conn, mayWait: mayWait, cancel: cancel}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = map[*waiting]struct{}{}
	}
	l.waiting[w] = struct{}{}
	if len(l.waiting) == 1 {
		if l.timer == nil {
			l.timer = time.AfterFunc(leaverScan, l.scan)
		} else {
			l.timer.Reset(leaverScan)
		}
	}
	return watched, func() { l.forget(w) }
}

func (l *leavers) forget(w *waiting) {
	w.cancel(nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, w)
	if len(l.waiting) == 0 {
		l.timer.Stop()
	}
}

func (l *leavers) scan() {
	l.mu.Lock()
	all := make([]*waiting, 0, len(l.waiting))
	for w := range l.waiting {
		all = append(all, w)
	}
	l.mu.Unlock()
	for _, w := range all {
		switch {
		case w.conn.left():
			w.cancel(nil)
		case w.mayWait != nil && !w.mayWait():
			w.cancel(errWithdrawn)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) > 0 {
		l.timer.Reset(leaverScan)
	}
}
