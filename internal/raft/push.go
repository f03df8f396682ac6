package raft

import (
	"context"
	"sync"

	"fencepost/internal/machine"
)

// pushes are messages of the leader for waiters of other gateways. Those hear of the same
// when they carry out the entry, later; so one that is lost costs that time.
type pushes struct {
	mu      sync.Mutex
	pending map[string][]machine.Told // by the address of a node; an entry while somebody sends to it
}

// mostPushes bounds how many wait for one node.
const mostPushes = 4096

// mostPushedSteps is how many of the last changes of the wall clock a push tells of: who is pushed to has few entries
// still to carry out, or will hear of them with the answer to what it asks.
const mostPushedSteps = 4

// push sends messages to other gateways.
func (s *Store) push(all []machine.Told) {
	for address, messages := range s.sessions.addresses(all) {
		p := &s.pushes
		p.mu.Lock()
		pending, sending := p.pending[address]
		if len(pending)+len(messages) <= mostPushes {
			pending = append(pending, messages...)
		}
		p.pending[address] = pending
		p.mu.Unlock()
		if !sending {
			s.work.Go(func() { s.pushTo(address) })
		}
	}
}

// pushTo sends what is for a node until there is nothing more.
func (s *Store) pushTo(address string) {
	p := &s.pushes
	for {
		p.mu.Lock()
		messages := p.pending[address]
		n, _ := fits(messages, mostSent)
		n = max(n, min(len(messages), 1))
		messages, p.pending[address] = messages[:n:n], messages[n:]
		if len(messages) == 0 || s.ctx.Err() != nil {
			delete(p.pending, address)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		_, _ = s.call(ctx, address, &message{Errand: errandTold, Told: messages, Walls: s.fsm.wall.last(mostPushedSteps)}) // see pushes
		cancel()
	}
}
