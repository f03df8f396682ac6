package redis

import (
	"context"
	"sync"

	"fencepost/internal/fencing"
)

// handOffs are the names on which a step has left something to do: fencing.StepLimit.
// Whoever ran it goes on at once, a script at a time, so that Redis serves others in
// between. If this gateway dies meanwhile, the expiry index has the name as due: the
// next heartbeat or Expire of any gateway goes on.
type handOffs struct {
	mu      sync.Mutex
	under   map[fencing.Name]bool // true: asked to go on since the last step began
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// goOn has a name attended to until nothing is left to do.
func (h *handOffs) goOn(s *Store, name fencing.Name) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, under := h.under[name]
	if h.ctx.Err() != nil || s.options.stepLimit != 0 {
		return
	}
	h.under[name] = true
	if !under {
		h.running.Go(func() { h.run(s, name) })
	}
}

// run attends to a name as long as steps leave something to do: announce says so.
func (h *handOffs) run(s *Store, name fencing.Name) {
	for h.next(name) {
		if err := s.attend(h.ctx, []fencing.Name{name}, nil); err != nil {
			h.mu.Lock()
			delete(h.under, name) // the index has it
			h.mu.Unlock()
			return
		}
	}
}

// next reports whether something is left to do, and notes that it is being done.
func (h *handOffs) next(name fencing.Name) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.under[name] || h.ctx.Err() != nil {
		delete(h.under, name)
		return false
	}
	h.under[name] = false
	return true
}

func (h *handOffs) close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.running.Wait()
}
