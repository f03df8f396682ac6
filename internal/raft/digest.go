package raft

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
)

// digest is a hash over what the entries of the log have come to, one after the other. Nodes that have carried out the
// same entries and have another one decide differently: two versions, or a fault of a machine. It is not over all of the
// state, which is large: what differs there shows as soon as it makes a difference.
type digest uint64

func (d *digest) number(v uint64) {
	*d = digest(bits.RotateLeft64(uint64(*d)^v, 29)*0x9e3779b97f4a7c15 + 1)
}

func (d *digest) flag(is bool) {
	if is {
		d.number(1)
	} else {
		d.number(0)
	}
}

func (d *digest) text(s string) {
	d.number(uint64(len(s)))
	for i := range len(s) {
		d.number(uint64(s[i]))
	}
}

func (d *digest) holder(h *fencing.Holder) {
	d.text(string(h.Lease))
	d.number(uint64(h.Token))
	d.number(uint64(h.ExpiresAt))
	d.text(string(h.Mode))
	for _, n := range []int{h.Limit, h.Permits, h.Slot, h.Hold} {
		d.number(uint64(n))
	}
	for slot := range h.Slots.All() {
		d.number(uint64(slot))
	}
	d.number(uint64(h.BreakAt))
	d.flag(h.Provisional)
}

// step adds what a step came to.
func (d *digest) step(out *fencing.Outcome) {
	if out.Err != nil {
		d.text(string(out.Err.Code))
	}
	d.holder(&out.Holder)
	for _, is := range []bool{out.Fresh, out.More, out.Claimed, out.Noticed, out.Joined, out.Place != nil, out.Evicted != nil, out.Replaced != nil} {
		d.flag(is)
	}
	if out.Fence != nil {
		d.number(uint64(out.Fence.HighestIssued))
		d.number(uint64(out.Fence.HighestAdmitted))
	}
	d.number(uint64(len(out.Left)))
	d.number(uint64(len(out.Ended)))
	for i := range out.Ended {
		d.holder(&out.Ended[i].Holder)
		d.text(string(out.Ended[i].Reason))
		d.number(uint64(out.Ended[i].At))
	}
	d.number(uint64(len(out.Granted)))
	for i := range out.Granted {
		d.holder(&out.Granted[i].Holder)
	}
}

// digestAt is the digest after an entry.
type digestAt struct {
	index uint64
	digest
}

// mostDigests is how many are remembered: those of some seconds under load.
const mostDigests = 4096

// digested notes the digest after an entry. The caller holds the mutex.
func (m *machine) digested(index uint64) {
	m.digest.number(uint64(m.now))
	m.digest.number(uint64(m.state.Counter))
	m.digest.number(uint64(len(m.state.Records)))
	m.digest.number(uint64(len(m.state.Tombstones)))
	if len(m.digests) == mostDigests {
		m.digests = append(m.digests[:0], m.digests[mostDigests/2:]...)
	}
	m.digests = append(m.digests, digestAt{index, m.digest})
}

// lastDigest returns the digest after the last entry that counted; ok is false before the first one.
func (m *machine) lastDigest() (last digestAt, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if len(m.digests) == 0 {
		return last, false
	}
	return m.digests[len(m.digests)-1], true
}

// digestOf returns the digest after an entry; ok is false if it is not known, as of one before a snapshot.
func (m *machine) digestOf(index uint64) (found digest, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for i := len(m.digests) - 1; i >= 0; i-- {
		if m.digests[i].index <= index {
			return m.digests[i].digest, m.digests[i].index == index
		}
	}
	return 0, false
}

// compareEvery is how often the leader compares what the nodes have come to.
const compareEvery = time.Second

// compare has nodes that have come to something else stop, while this node leads.
func (s *Store) compare() {
	ticker := time.NewTicker(compareEvery)
	defer ticker.Stop()
	var agreed uint64 // the entry after which all had the same
	for {
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return
		}
		last, ok := s.machine.lastDigest()
		if l := s.leading.Load(); l != nil && ok && last.index != agreed && s.compareAt(l, last) {
			agreed = last.index
		}
	}
}

// compareAt compares what the nodes have come to after an entry, and reports whether all have answered and have the same.
// Who differs from a majority stops. The leader does if a majority differs from it, or if all voters have answered and no majority
// has the same. While too few have answered nobody stops: who is right is not known.
func (s *Store) compareAt(l *leadership, own digestAt) (all bool) {
	config := s.raft.GetConfiguration()
	if config.Error() != nil {
		return false
	}
	type member struct {
		raft.Server
		answer *answer
	}
	var others []member
	voters, same, other := 0, 0, 0
	for _, server := range config.Configuration().Servers {
		if server.Suffrage == raft.Voter {
			voters++
		}
		if server.ID != raft.ServerID(s.self.ID) {
			others = append(others, member{Server: server})
		} else if server.Suffrage == raft.Voter {
			same++
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	var asking sync.WaitGroup
	for i := range others {
		asking.Go(func() {
			a, err := s.call(ctx, string(others[i].Address), &message{Errand: errandDigest, Term: l.term, Index: own.index})
			if err == nil && a.Verdict == done {
				others[i].answer = a
			}
		})
	}
	asking.Wait()
	all = true
	var differ []member
	for _, o := range others {
		switch {
		case o.answer == nil:
			all = false
		case digest(o.answer.Digest) != own.digest:
			if differ = append(differ, o); o.Suffrage == raft.Voter {
				other++
			}
		case o.Suffrage == raft.Voter:
			same++
		}
	}
	switch {
	case len(differ) == 0:
		return all
	case same > voters/2:
		for _, o := range differ {
			s.log.Error("a node has another state than the majority; it is told to stop", "node", o.ID, "entry", own.index)
			telling, cancel := context.WithTimeout(s.ctx, patience)
			_, _ = s.call(telling, string(o.Address), &message{Errand: errandDiffers, Term: l.term, Index: own.index}) // else the next time
			cancel()
		}
	case (other > voters/2 || same+other == voters) && s.leads(l.term):
		s.machine.stop(errDiffers(own.index))
	}
	return false
}

// errDiffers says that this node has another state than the others.
func errDiffers(index uint64) error {
	return fmt.Errorf("entry %d of the log has come to something else here than at the other nodes, so that their states differ: "+
		"it is another version of the gateway, or a fault of the machine. Start it with an empty data directory, and the version of the others", index)
}

// serveDigest says what this node has come to after an entry, once it has carried it out.
func (s *Store) serveDigest(ctx context.Context, m *message) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	s.machine.await(m.Index, ctx.Done())
	is, ok := s.machine.digestOf(m.Index)
	if !ok {
		return &answer{Verdict: refused}, nil
	}
	return &answer{Verdict: done, Digest: uint64(is)}, nil
}

// serveDiffers stops this node, if it is the leader of its term that says so.
func (s *Store) serveDiffers(m *message) (*answer, error) {
	if s.raft.CurrentTerm() == m.Term {
		s.machine.stop(errDiffers(m.Index))
	}
	return &answer{Verdict: done}, nil
}
