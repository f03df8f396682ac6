package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fencepost/internal/redis/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what should not take long.
const patience = 60 * time.Second

const secret, otherSecret = "0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdeX"

func shared(t *testing.T, secret string) *Credentials {
	t.Helper()
	c, err := FromSecret(secret)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// node opens one that ends with the test.
func node(t *testing.T, o Options) *Peer {
	t.Helper()
	if o.Self.Addr == "" {
		o.Self.Addr = redistest.FreeAddr(t)
	}
	if o.Self.ID == "" {
		o.Self.ID = NewID()
	}
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func echo(_ context.Context, from Node, request []byte) ([]byte, error) {
	return append([]byte(from.Addr+" "), request...), nil
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Raft's connections carry what is written, and end with the Peer, whoever holds them.
func TestStreams(t *testing.T) {
	a, b := node(t, Options{Credentials: shared(t, secret)}), node(t, Options{Credentials: shared(t, secret)})
	if a.StreamLayer().Addr().String() != a.Self().String() {
		t.Errorf("it has the address %s", a.StreamLayer().Addr())
	}
	out, err := a.StreamLayer().Dial(b.Self().String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := b.StreamLayer().Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write([]byte("vote")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(in, got); err != nil || string(got) != "vote" {
		t.Errorf("%q, %v", got, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Read(got); err == nil {
		t.Error("a connection of Raft outlives the peer")
	}
	if _, err := b.StreamLayer().Accept(); err == nil {
		t.Error("there was another connection")
	}
}

// A call ends at its deadline at both ends, and answers come in any order.
func TestCalls(t *testing.T) {
	ended, blocked := make(chan error, 1), make(chan struct{})
	a := node(t, Options{Handler: func(ctx context.Context, _ Node, request []byte) ([]byte, error) {
		switch string(request) {
		case "block":
			close(blocked)
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		case "fail":
			return nil, errors.New("no")
		case "large":
			return make([]byte, MaxMessage+1), nil
		}
		return request, nil
	}})
	b := node(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := b.Call(ctx, a.Self(), []byte("block"))
		done <- err
	}()
	<-blocked
	if got, err := b.Call(bounded(t), a.Self(), []byte("x")); err != nil || string(got) != "x" {
		t.Errorf("beside one that blocks: %q, %v", got, err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotSent) {
		t.Errorf("cancelled: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the handler goes on")
	}
	var failed Failed
	if _, err := b.Call(bounded(t), a.Self(), []byte("fail")); !errors.As(err, &failed) || failed != "no" {
		t.Errorf("an error: %v", err)
	}
	if _, err := b.Call(bounded(t), a.Self(), []byte("large")); !errors.As(err, &failed) {
		t.Errorf("a large answer: %v", err)
	}
	if _, err := b.Call(bounded(t), a.Self(), make([]byte, MaxMessage+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a large request: %v", err)
	}
	if got, err := b.Call(bounded(t), a.Self(), make([]byte, MaxMessage)); err != nil || len(got) != MaxMessage {
		t.Errorf("the largest request: %d bytes, %v", len(got), err)
	}
	if _, err := a.Call(bounded(t), b.Self(), nil); !errors.As(err, &failed) {
		t.Errorf("a node without a handler: %v", err)
	}
}

// A connection that ends behind an answer does not take that away: what it says is known.
func TestAnsweredBeforeTheEnd(t *testing.T) {
	for range 20 { // either may be looked at first
		l := &link{calls: map[uint64]chan frame{}, ended: make(chan struct{}), out: newSender(nil, nil)}
		l.out.mu.Lock() // so that it is not sent before both have come
		done := make(chan error, 1)
		go func() {
			_, err := l.call(bounded(t), nil)
			done <- err
		}()
		for {
			l.mu.Lock()
			waiting := l.calls[1]
			l.mu.Unlock()
			if waiting != nil {
				waiting <- frame{kind: answer, call: 1}
				break
			}
			runtime.Gosched()
		}
		l.fail(io.EOF)
		l.out.mu.Unlock()
		if err := <-done; err != nil {
			t.Fatalf("it was answered, and the call says: %v", err)
		}
	}
}

// The handler's time is the caller's.
func TestDeadline(t *testing.T) {
	left := make(chan time.Duration, 1)
	a := node(t, Options{Handler: func(ctx context.Context, _ Node, _ []byte) ([]byte, error) {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
		return nil, nil
	}})
	b := node(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := b.Call(ctx, a.Self(), nil); err != nil {
		t.Fatal(err)
	}
	if d := <-left; d > time.Hour || d < time.Hour-patience {
		t.Errorf("it has %s", d)
	}
}

// As many calls as there may be are handled, and one more is refused at once; then there is
// room again.
func TestTooManyCalls(t *testing.T) {
	open := make(chan struct{})
	var begun sync.WaitGroup
	begun.Add(MaxCalls)
	a := node(t, Options{KeepAlive: patience, Handler: func(ctx context.Context, _ Node, request []byte) ([]byte, error) {
		if len(request) == 0 {
			begun.Done()
			<-open
		}
		return nil, nil
	}})
	b := node(t, Options{KeepAlive: patience}) // a starved machine may be silent for longer than the default
	var calls sync.WaitGroup
	for range MaxCalls {
		calls.Go(func() {
			if _, err := b.Call(bounded(t), a.Self(), nil); err != nil {
				t.Error(err)
			}
		})
	}
	begun.Wait()
	if _, err := b.Call(bounded(t), a.Self(), []byte("one more")); !errors.Is(err, ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	// The other side counts for itself.
	conn, _, err := b.dial(bounded(t), a.Self(), forID)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	s := a.served[b.Self().ID]
	if _, _, ok := s.begin(frame{call: 1 << 40}); ok {
		t.Error("the node that answers takes one more")
	}
	close(open)
	calls.Wait()
	if _, err := b.Call(bounded(t), a.Self(), []byte("later")); err != nil {
		t.Errorf("later: %v", err)
	}
	if _, _, ok := s.begin(frame{call: 1 << 40, body: make([]byte, maxQueued+1)}); ok {
		t.Error("requests of any size are taken")
	}
}

// A node that has stopped is given up: calls to it fail, and a new connection is made.
func TestSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	silent := Node{ID: NewID(), Addr: l.Addr().String()}
	met := make(chan net.Conn, 2)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var said hello
			_ = readMessage(conn, &said)
			_ = writeMessage(conn, welcome{ID: silent.ID, Addr: silent.Addr})
			met <- conn
		}
	}()
	b := node(t, Options{KeepAlive: 10 * time.Millisecond})
	for range 2 {
		for connected := false; !connected; { // a call may still go to the connection that is being given up
			_, err := b.Call(bounded(t), silent, nil)
			if err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a silent node: %v", err)
			}
			select {
			case conn := <-met:
				connected = !errors.Is(err, ErrNotSent) // a busy machine gives a connection up before the call is written
				conn.Close()
			default:
			}
		}
	}
}

// Nothing that came by an older connection of a node is handled any more when the first call of
// a newer one is; what is older still is not handled at all.
func TestNewerConnection(t *testing.T) {
	var mu sync.Mutex
	under := 0
	begun := make(chan struct{})
	a := node(t, Options{Handler: func(ctx context.Context, _ Node, request []byte) ([]byte, error) {
		if string(request) == "old" {
			mu.Lock()
			under++
			mu.Unlock()
			close(begun)
			<-ctx.Done()
			mu.Lock()
			under--
			mu.Unlock()
			return nil, ctx.Err()
		}
		mu.Lock()
		defer mu.Unlock()
		if under != 0 {
			return nil, errors.New("an older request is being handled")
		}
		return nil, nil
	}})
	id := NewID()
	before := node(t, Options{Self: Node{ID: id}})
	after, err := Open(Options{Self: Node{ID: id, Addr: redistest.FreeAddr(t)}}) // the same node, started again
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	old := make(chan error, 1)
	go func() {
		_, err := before.Call(bounded(t), a.Self(), []byte("old"))
		old <- err
	}()
	<-begun
	if _, err := after.Call(bounded(t), a.Self(), []byte("new")); err != nil {
		t.Error(err)
	}
	if err := <-old; err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the older one: %v", err)
	}
	ours, theirs := net.Pipe()
	defer ours.Close()
	a.serve(theirs, Node{ID: id}, 1) // returns: it was accepted before both
}

// Commands are no node: they don't end each other's connections.
func TestCommands(t *testing.T) {
	blocked, open := make(chan struct{}, 2), make(chan struct{})
	a := node(t, Options{Credentials: shared(t, secret), Handler: func(_ context.Context, from Node, _ []byte) ([]byte, error) {
		if from.ID != "" {
			return nil, errors.New("it has an id")
		}
		blocked <- struct{}{}
		<-open
		return nil, nil
	}})
	var calls sync.WaitGroup
	for range 2 {
		command, err := Open(Options{Self: Node{Addr: a.Self().Addr}, Credentials: shared(t, secret)})
		if err != nil {
			t.Fatal(err)
		}
		defer command.Close()
		calls.Go(func() {
			if _, err := command.Call(bounded(t), Node{Addr: a.Self().Addr}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	<-blocked
	<-blocked
	close(open)
	calls.Wait()
}

// Nodes whose logs have different formats don't connect, and say so. Commands are let in by both.
func TestAnotherFormat(t *testing.T) {
	a, b := node(t, Options{Format: 1, Handler: echo}), node(t, Options{Format: 2, Handler: echo})
	for _, try := range []struct{ from, to *Peer }{{a, b}, {b, a}} {
		_, err := try.from.Call(bounded(t), Node{Addr: try.to.Self().Addr}, nil)
		var refused *Refused
		if !errors.As(err, &refused) || !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), "format 1") || !strings.Contains(err.Error(), "format 2") {
			t.Errorf("a call is answered with %v", err)
		}
		if _, err := try.from.StreamLayer().Dial(try.to.Self().String(), patience); !errors.As(err, &refused) {
			t.Errorf("dialled for Raft: %v", err)
		}
		command, err := Open(Options{Self: Node{Addr: try.to.Self().Addr}})
		if err != nil {
			t.Fatal(err)
		}
		defer command.Close()
		if _, err := command.Call(bounded(t), Node{Addr: try.to.Self().Addr}, nil); err != nil {
			t.Errorf("a command is refused: %v", err)
		}
	}
}

// What is no hello costs its connection only.
func TestGarbage(t *testing.T) {
	a := node(t, Options{Handler: echo})
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x02{}", "\xff\xff\xff\xff", "\x00\x00\x00\x00", "\x00\x00\x00\x04null"} {
		conn, err := net.Dial("tcp", a.Self().Addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		within(conn, patience)
		if rest, err := io.ReadAll(conn); errors.Is(err, context.DeadlineExceeded) || strings.Contains(string(rest), `"refused":""`) {
			t.Errorf("%q: %q, %v", text, rest, err)
		}
		conn.Close()
	}
	b := node(t, Options{})
	conn, _, err := b.dial(bounded(t), a.Self(), forCall)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(make([]byte, headSize)); err != nil { // kind 0
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a frame of no kind was answered")
	}
	if _, err := b.Call(bounded(t), a.Self(), nil); err != nil {
		t.Error(err)
	}
}

func TestParseNode(t *testing.T) {
	n := Node{ID: NewID(), Addr: "[::1]:7000"}
	if got, err := ParseNode(n.String()); err != nil || got != n {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{
		"", "node1:7000", "x@node1:7000", n.ID + "@node1", n.ID + "@:7000", n.ID + "@node1:0", n.ID + "@node1:70000",
		strings.ToUpper(n.ID[:31]) + "A@node1:7000", n.ID + "@a@b:1", n.ID + "@node 1:7",
	} {
		if got, err := ParseNode(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
