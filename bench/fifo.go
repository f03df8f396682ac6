package main

import (
	"context"
	"sync"
	"time"
)

// fifo is a lock in memory with a queue, behind the handlers of the other baselines: what
// HTTP alone leaves of a lock that is handed from client to client.
func fifo() locks {
	all := &fifoLocks{}
	return locks{
		take: func(ctx context.Context, name, lease string, _ order) (int64, bool, error) {
			token, ok := all.take(ctx, name, lease)
			return token, ok, nil
		},
		give: func(_ context.Context, name, lease string) (bool, error) { return all.give(name, lease), nil },
	}
}

type fifoLocks struct {
	mu     sync.Mutex
	locked map[string]*fifoLock
}

type fifoLock struct {
	holder string
	queue  []*fifoPlace
}

type fifoPlace struct {
	lease   string
	granted chan int64 // of one
}

// take returns when the lock is lease's, or the caller has gone.
func (l *fifoLocks) take(ctx context.Context, name, lease string) (token int64, ok bool) {
	l.mu.Lock()
	lock := l.locked[name]
	if lock == nil {
		if l.locked == nil {
			l.locked = map[string]*fifoLock{}
		}
		l.locked[name] = &fifoLock{holder: lease}
		l.mu.Unlock()
		return time.Now().UnixMicro(), true
	}
	place := &fifoPlace{lease, make(chan int64, 1)}
	lock.queue = append(lock.queue, place)
	l.mu.Unlock()
	select {
	case token := <-place.granted:
		return token, true
	case <-ctx.Done():
		l.leave(name, place)
		return 0, false
	}
}

// leave takes a place out of the queue, or gives the lock on if the place has come to it.
func (l *fifoLocks) leave(name string, place *fifoPlace) {
	l.mu.Lock()
	lock := l.locked[name]
	for i := range lock.queue {
		if lock.queue[i] == place {
			lock.queue = append(lock.queue[:i], lock.queue[i+1:]...)
			break
		}
	}
	l.mu.Unlock()
	l.give(name, place.lease)
}

// give ends the turn of lease; it reports false if it was not its turn.
func (l *fifoLocks) give(name, lease string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock := l.locked[name]
	switch {
	case lock == nil || lock.holder != lease:
		return false
	case len(lock.queue) == 0:
		delete(l.locked, name)
		return true
	}
	next := lock.queue[0]
	lock.queue = lock.queue[1:]
	lock.holder = next.lease
	next.granted <- time.Now().UnixMicro()
	return true
}
