package fence

import (
	"context"
	"sync"
)

// Guard admits tokens in one step with the writes that they are sent along with.
// [Memory] and [Dir] are guards; [SQL] has a transaction in place of the function.
type Guard interface {
	// Do admits the token for the resource and runs write, before anything else is admitted
	// for the resource. It returns without running write a *StaleError where the token is
	// stale; an error that wraps ErrInvalid where token, slot or resource are none; that of the
	// context where it ended while another write of the resource was under way; or why
	// the token could not be kept. Otherwise it returns what write returns. A token stays
	// admitted when write fails, for something may have been written.
	Do(ctx context.Context, resource string, token int64, slot int, write func() error) error
}

// Memory guards data that is in the memory of this process, and forgets with it. The
// zero value is ready for use, by many goroutines at once. It keeps some 100 bytes for
// every resource that was ever written, as long as the Memory lives: a mark that is
// forgotten would admit what is stale.
type Memory struct {
	mu    sync.Mutex
	marks map[string]*guarded
}

var _ Guard = (*Memory)(nil)

// guarded is a resource in memory.
type guarded struct {
	turn chan struct{} // holds one value while nobody has the resource
	mark Mark
}

// Do is that of [Guard]. What write does must be done when it returns: what a goroutine
// that it leaves behind writes is not guarded. A write must not call Do for the same resource.
func (g *Memory) Do(ctx context.Context, resource string, token int64, slot int, write func() error) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	if err := checkToken(token, slot); err != nil { // before anything is kept for the resource
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	of := g.of(resource)
	select {
	case <-of.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	if ctx.Err() != nil { // both may be so, and then the choice is by chance
		of.turn <- struct{}{}
		return ctx.Err()
	}
	defer func() { of.turn <- struct{}{} }()
	if err := of.mark.Admit(token, slot); err != nil {
		return err
	}
	return write()
}

func (g *Memory) of(resource string) *guarded {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.marks[resource]
	if of == nil {
		if g.marks == nil {
			g.marks = map[string]*guarded{}
		}
		of = &guarded{turn: make(chan struct{}, 1)}
		of.turn <- struct{}{}
		g.marks[resource] = of
	}
	return of
}
