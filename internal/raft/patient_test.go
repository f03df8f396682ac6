package raft

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// plainNetwork is a Network of TCP connections.
type plainNetwork struct{ net.Listener }

func (plainNetwork) Dial(address string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", address, timeout)
}

// Entries for a member that can't be reached are on their way as soon as a heartbeat has reached it,
// however long it was away; they wait no longer where another one leads, or the node ends.
func TestEntriesWaitForAMember(t *testing.T) {
	done := make(chan struct{})
	open := func(l net.Listener) *patient {
		p := newTransport(&Options{Self: Member{ID: "n", Address: l.Addr().String()}, Network: plainNetwork{l}, Logger: slog.New(slog.DiscardHandler)}, done)
		t.Cleanup(func() { p.Close() })
		return p
	}
	leader := open(listen(t, "127.0.0.1:0"))
	held := listen(t, "127.0.0.1:0")
	away := raft.ServerAddress(held.Addr().String())
	held.Close()
	heartbeat := func(term uint64) error {
		return leader.AppendEntries("away", away, &raft.AppendEntriesRequest{Term: term}, &raft.AppendEntriesResponse{})
	}
	send := func(term uint64) <-chan error {
		sent := make(chan error, 1)
		go func() {
			sent <- leader.AppendEntries("away", away, &raft.AppendEntriesRequest{Term: term, PrevLogEntry: 7}, &raft.AppendEntriesResponse{})
		}()
		waits := func() bool {
			leader.mu.Lock()
			defer leader.mu.Unlock()
			return leader.awaited[away] != nil
		}
		look, late := time.NewTicker(time.Millisecond), time.After(time.Minute)
		defer look.Stop()
		for !waits() {
			select {
			case <-look.C:
			case <-late:
				t.Fatal("entries don't wait")
			}
		}
		return sent
	}

	sent := send(1)
	if heartbeat(1) == nil {
		t.Fatal("it is reached")
	}
	if heartbeat(2) == nil {
		t.Fatal("it is reached")
	}
	if err := receive(t, "the end of the entries that wait", sent); err == nil {
		t.Error("entries of a term that is over were sent")
	}
	sent = send(2)
	member := open(listen(t, string(away)))
	go func() {
		for {
			select {
			case rpc := <-member.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
			case <-t.Context().Done():
				return
			}
		}
	}()
	if err := heartbeat(2); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "the end of the entries that wait", sent); err != nil {
		t.Errorf("the member is back: %v", err)
	}
	if err := member.Close(); err != nil {
		t.Fatal(err)
	}
	leader.CloseStreams()
	sent = send(2)
	close(done)
	if err := receive(t, "the end of the entries that wait", sent); err == nil {
		t.Error("entries were sent to nobody")
	}
}
