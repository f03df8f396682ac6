package watchdog

import "context"

// Ready waits until there is something for Wait to do, or ctx ends. It may be
// called before Wait: on its own it needs little stack, and a request that waits
// in it costs half as much memory.
func (t *Waiter) Ready(ctx context.Context) {
	select {
	case <-t.wake:
		t.dog.lot.mu.Lock()
		t.tell()
		t.dog.lot.mu.Unlock()
	case <-ctx.Done():
	}
}
