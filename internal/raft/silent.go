package raft

import (
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// stallsFor is how many times as long as Options.Election a write of a leader may take until it gives up the lead.
const stallsFor = 4

// silent is a transport that is, while a write stands still: a leader whose disk hangs would go on to tell the others that
// it leads, by goroutines that do not need the disk, and serve nobody. When they hear nothing they elect
// another one.
type silent struct {
	*patient
	log  *diskLog
	most time.Duration // that a write may take
}

var errStalled = errors.New("a write to the log of this node does not finish: its disk hangs")

func (t *silent) stalled() error {
	if t.log.busyFor() > t.most {
		return errStalled
	}
	return nil
}

// AppendEntries implements raft.Transport.
func (t *silent) AppendEntries(id raft.ServerID, to raft.ServerAddress, request *raft.AppendEntriesRequest, answer *raft.AppendEntriesResponse) error {
	if err := t.stalled(); err != nil {
		return err
	}
	return t.patient.AppendEntries(id, to, request, answer)
}

// AppendEntriesPipeline implements raft.Transport.
func (t *silent) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.patient.AppendEntriesPipeline(id, to)
	if err != nil {
		return nil, err
	}
	w := &pipeline{AppendPipeline: p, of: t, answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
	go w.pass()
	return w, nil
}

// pipeline is the way to one node. hashicorp/raft reads no answer after a refusal, or after one that never
// came; and whoever sends meanwhile more than may be under way waits for that to be read. It would wait forever:
// the node would be sent no entry any more, and this one could not be shut down. So the pipeline is closed
// then.
type pipeline struct {
	raft.AppendPipeline
	of      *silent
	answers chan raft.AppendFuture
	closed  chan struct{}
	once    sync.Once
}

// pass passes on answers, up to the last one that is read.
func (p *pipeline) pass() {
	for {
		select {
		case answered := <-p.AppendPipeline.Consumer():
			is := answered.Response()
			last := !is.Success || is.Term > answered.Request().Term
			select {
			case p.answers <- answered:
			case <-p.closed:
				return
			}
			if last {
				p.Close()
				return
			}
		case <-p.closed:
			return
		}
	}
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline. It may be called twice.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(request *raft.AppendEntriesRequest, answer *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if err := p.of.stalled(); err != nil {
		return nil, err
	}
	return p.AppendPipeline.AppendEntries(request, answer)
}
