package redis

import (
	"context"
	"sync"

	"fencepost/internal/fencing"
)

// handOffs are the names on which a step has left something to do: fencing.StepLimit.
// Whoever ran it goes on at once, a call at a time, so that Redis serves others in
// between. If this gateway dies meanwhile, the expiry index has the name as due: the
// next heartbeat or Expire of any gateway goes on.
type handOffs struct {
	mu      sync.Mutex
	active  map[fencing.Name]*handOff
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// handOff is one name that is attended to.
type handOff struct {
	again bool          // asked to go on since the last step began
	ended chan struct{} // closed when it is not attended to any more
}

// resume has a name attended to until nothing is left to do.
func (h *handOffs) resume(s *Store, name fencing.Name) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil || s.options.stepLimit != 0 {
		return
	}
	if under := h.active[name]; under != nil {
		under.again = true
		return
	}
	h.active[name] = &handOff{again: true, ended: make(chan struct{})}
	h.running.Go(func() { h.run(s, name) })
}

// run attends to a name as long as steps leave something to do: announce says so.
func (h *handOffs) run(s *Store, name fencing.Name) {
	for h.next(name) {
		if err := s.expireNames(h.ctx, []fencing.Name{name}, nil); err != nil {
			h.mu.Lock()
			h.end(name) // the index has it
			h.mu.Unlock()
			return
		}
	}
}

// next reports whether something is left to do, and notes that it is being done.
func (h *handOffs) next(name fencing.Name) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	under := h.active[name]
	if !under.again || h.ctx.Err() != nil {
		h.end(name)
		return false
	}
	under.again = false
	return true
}

// end is called with the mutex held.
func (h *handOffs) end(name fencing.Name) {
	close(h.active[name].ended)
	delete(h.active, name)
}

// wait waits until a name is not attended to.
func (h *handOffs) wait(ctx context.Context, name fencing.Name) error {
	h.mu.Lock()
	under := h.active[name]
	h.mu.Unlock()
	if under == nil {
		return context.Cause(ctx)
	}
	select {
	case <-under.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *handOffs) close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.running.Wait()
}
