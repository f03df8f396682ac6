package raft

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// slowStreams are the streams of a node, which may stand still for it as they do for a process that is stopped: it
// reads nothing then, and what it has asked is answered all the same.
type slowStreams struct {
	Network
	mu    sync.Mutex
	conns []*slowStream
	still chan struct{} // closed when the node reads again; nil: it does
	late  bool          // what is sent from now on is late
	sent  chan struct{} // holds one when something was sent that is late
}

// slowStream is a connection of such a node.
type slowStream struct {
	net.Conn
	of     *slowStreams
	dialed bool
	asked  bool          // something was sent on it since the node stopped, and before what is late
	goOn   chan struct{} // closed when it is read though the others stand still
	closed chan struct{}
	once   sync.Once
}

func (s *slowStreams) add(conn net.Conn, dialed bool, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &slowStream{Conn: conn, of: s, dialed: dialed, goOn: make(chan struct{}), closed: make(chan struct{})}
	s.conns = append(s.conns, c)
	return c, nil
}

func (s *slowStreams) Accept() (net.Conn, error) {
	conn, err := s.Network.Accept()
	return s.add(conn, false, err)
}

func (s *slowStreams) Dial(address string, timeout time.Duration) (net.Conn, error) {
	conn, err := s.Network.Dial(address, timeout)
	return s.add(conn, true, err)
}

// stop has the node read nothing any more.
func (s *slowStreams) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.still = make(chan struct{})
}

// asked returns on how many connections the node has asked for something since it stopped.
func (s *slowStreams) asked() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c.dialed && c.asked {
			n++
		}
	}
	return n
}

// begin has what is sent from now on be late.
func (s *slowStreams) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = true
}

// readOld has the node read answers to what it had asked before begin, in front of later ones.
func (s *slowStreams) readOld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c.dialed && c.asked {
			close(c.goOn)
		}
	}
}

// readAll has the node read all again. It may be called twice.
func (s *slowStreams) readAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.still != nil {
		close(s.still)
		s.still, s.late = nil, false
	}
}

func (c *slowStream) Read(b []byte) (int, error) {
	c.of.mu.Lock()
	still := c.of.still
	c.of.mu.Unlock()
	n, err := c.Conn.Read(b)
	if still == nil { // or it has stopped meanwhile
		c.of.mu.Lock()
		still = c.of.still
		c.of.mu.Unlock()
	}
	if still != nil {
		select {
		case <-still:
		case <-c.goOn:
		case <-c.closed:
		}
	}
	return n, err
}

func (c *slowStream) Write(b []byte) (int, error) {
	c.of.mu.Lock()
	if c.of.late {
		c.of.noteSent()
	} else if c.of.still != nil {
		c.asked = true
	}
	c.of.mu.Unlock()
	return c.Conn.Write(b)
}

func (s *slowStreams) noteSent() {
	select {
	case s.sent <- struct{}{}:
	default:
	}
}

func (c *slowStream) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// lookAt has a node that leads, or thinks so, answer who holds a name.
func lookAt(ctx context.Context, n *node, name fencing.Name) (*answer, error) {
	l := n.leading.Load()
	if l == nil {
		return &answer{Verdict: refused}, nil
	}
	return n.serve(ctx, &message{Errand: errandLook, Term: l.term, Batch: n.batch, Op: machine.EncodeOp(fencing.InspectRequest{Name: name})})
}

// A leader that stood still while another one was elected answers nothing by what the others had answered
// before that: those answers wait for it when it goes on.
func TestOldAnswersConfirmNoRead(t *testing.T) {
	slow := &slowStreams{sent: make(chan struct{}, 1)}
	c := newCluster(t, 3, func(i int, o *Options) {
		if i == 0 {
			slow.Network, o.Network = o.Network, slow
		}
		o.Election = time.Minute // nobody stands for election by itself
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	old, next := c.nodes[0], c.nodes[1]
	first := acquire("a", time.Hour)
	if _, err := old.Do(ctx, first); err != nil {
		t.Fatal(err)
	}
	c.hub.mu.Lock()
	c.hub.late = func(from, _ string, _ []byte) {
		if from == old.self.Address {
			slow.mu.Lock()
			defer slow.mu.Unlock()
			if slow.late {
				slow.noteSent()
			}
		}
	}
	c.hub.mu.Unlock()

	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	await := func(what string, is func() bool) {
		t.Helper()
		for !is() {
			select {
			case <-look.C:
			case <-ctx.Done():
				t.Fatal(what)
			}
		}
	}
	await("the others do not have all entries", func() bool {
		last := old.raft.LastIndex()
		return c.nodes[1].raft.LastIndex() == last && c.nodes[2].raft.LastIndex() == last
	})
	slow.stop()
	defer slow.readAll()
	await("the others are asked nothing", func() bool { return slow.asked() >= 2 })
	slow.begin()
	elects := c.nodes[2].dir.transport
	if err := elects.TimeoutNow(raft.ServerID(next.self.ID), raft.ServerAddress(next.self.Address), &raft.TimeoutNowRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax},
	}, &raft.TimeoutNowResponse{}); err != nil {
		t.Fatal(err)
	}
	await("no other node leads", func() bool { return next.leading.Load() != nil })
	if _, err := next.Do(ctx, fencing.ReleaseRequest{Name: "a", Lease: first.Lease}); err != nil {
		t.Fatal(err)
	}
	if _, err := next.Do(ctx, acquire("a", time.Hour)); err != nil {
		t.Fatal(err)
	}

	select { // what was sent before there was anything to read
	case <-slow.sent:
	default:
	}
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		a, err := lookAt(ctx, old, "a")
		if err != nil {
			t.Error(err)
		} else if a.Verdict == done {
			t.Errorf("the leader that was replaced shows %+v", a.Outcomes)
		}
	}()
	select {
	case <-slow.sent: // it asks
	case <-looked:
	case <-ctx.Done():
		t.Fatal("nobody was asked")
	}
	slow.readOld()
	receive(t, "the old leader's answer", looked)
	slow.readAll()
	c.awaitLeader()
	out, err := old.Do(ctx, fencing.InspectRequest{Name: "a"})
	if err != nil || out.Lock.Holders[0].Lease == first.Lease.Public() {
		t.Errorf("the leader that was replaced shows %+v, %v", out.Lock, err)
	}
}

// Only those who elect a leader know whether there is another one.
func TestOnlyVotersConfirmARead(t *testing.T) {
	c := newCluster(t, 3, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	leader := c.nodes[0]
	if err := leader.raft.DemoteVoter(raft.ServerID(c.nodes[2].self.ID), 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
	if a, err := lookAt(ctx, leader, "a"); err != nil || a.Verdict != done {
		t.Fatalf("with both voters: %+v, %v", a, err)
	}
	c.hub.setCut(c.nodes[1].self.Address, true)
	if a, err := lookAt(ctx, leader, "a"); err == nil && a.Verdict == done {
		t.Error("a read is answered, and one of two voters does not answer")
	}
	c.hub.setCut(c.nodes[1].self.Address, false)
	if _, err := leader.Do(ctx, fencing.InspectRequest{Name: "a"}); err != nil {
		t.Error(err)
	}
}
