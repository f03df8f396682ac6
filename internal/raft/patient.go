package raft

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// mostPatience is how long entries wait for a member that can't be reached, until hashicorp/raft
// is told so, which tries again in its own time.
const mostPatience = time.Minute

// patient is the transport of hashicorp/raft, but that entries for a member that can't be reached
// wait until a heartbeat reaches it. hashicorp/raft waits longer after each failure, up to 10 s,
// and goes on waiting though the member is back: for so long no other one might fail.
type patient struct {
	*raft.NetworkTransport
	streams *streams
	done    <-chan struct{} // closed when the node ends

	mu      sync.Mutex
	term    uint64                               // of the last heartbeat
	awaited map[raft.ServerAddress]chan struct{} // closed with the next heartbeat that reaches a member, or is of another term
}

// AppendEntries implements raft.Transport.
func (p *patient) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := p.NetworkTransport.AppendEntries(id, to, args, resp)
	switch {
	case isHeartbeat(args):
		p.beat(to, args.Term, err == nil)
		return err
	case err == nil || !p.await(to, args.Term):
		return err
	}
	return p.NetworkTransport.AppendEntries(id, to, args, resp)
}

// isHeartbeat tells heartbeats as hashicorp/raft does: it has no other requests like that.
func isHeartbeat(args *raft.AppendEntriesRequest) bool {
	return args.PrevLogEntry == 0 && args.PrevLogTerm == 0 && len(args.Entries) == 0 && args.LeaderCommitIndex == 0
}

// beat notes what came of a heartbeat.
func (p *patient) beat(to raft.ServerAddress, term uint64, reached bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if term > p.term {
		p.term = term
		for to := range p.awaited {
			p.release(to)
		}
	}
	if reached {
		p.release(to)
	}
}

// release ends the wait for a member. The caller holds the mutex.
func (p *patient) release(to raft.ServerAddress) {
	if awaited := p.awaited[to]; awaited != nil {
		close(awaited)
		delete(p.awaited, to)
	}
}

// await returns when a member was reached, and reports whether this node still leads in term then.
func (p *patient) await(to raft.ServerAddress, term uint64) bool {
	p.mu.Lock()
	awaited := p.awaited[to]
	if awaited == nil {
		awaited = make(chan struct{})
		p.awaited[to] = awaited
	}
	p.mu.Unlock()
	timer := time.NewTimer(mostPatience)
	defer timer.Stop()
	select {
	case <-awaited:
	case <-timer.C:
		return false
	case <-p.done:
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.term <= term
}
