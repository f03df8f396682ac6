package cluster

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"

	"fencepost/internal/raft/peer"
	"fencepost/internal/redis/redistest"
)

// A transfer is over when somebody leads in a later term: also who led before it, where the leadership moved once
// more beside it.
func TestWhenATransferIsOver(t *testing.T) {
	members := []Member{{Seat: Seat{ID: "1", Addr: "a"}}, {Seat: Seat{ID: "2", Addr: "b"}}}
	before := Status{Leader: "a", Term: 5, Members: members}
	for _, c := range []struct {
		what  string
		after Status
		which string
		is    bool
	}{
		{"nothing has happened", Status{Leader: "a", Term: 5}, "", false},
		{"nobody leads", Status{Term: 6}, "", false},
		{"another leads", Status{Leader: "b", Term: 6}, "", true},
		{"it went to another and back", Status{Leader: "a", Term: 7}, "", true},
		{"the member leads", Status{Leader: "b", Term: 6}, "2", true},
		{"another member leads", Status{Leader: "a", Term: 7}, "b", false},
	} {
		c.after.Members = members
		if got := handedOver(before, c.after, c.which); got != c.is {
			t.Errorf("%s: %v, want %v", c.what, got, c.is)
		}
	}
}

// nodeThat starts a node that answers as it is told to: an answer of nil never comes, for the node dies.
func nodeThat(t *testing.T, answers func(self *peer.Peer, r request) *response) *peer.Peer {
	t.Helper()
	var node *peer.Peer
	ready := make(chan struct{})
	node, err := peer.Open(peer.Options{
		Self: peer.Node{ID: peer.NewID(), Addr: redistest.FreeAddr(t)},
		Handler: func(ctx context.Context, _ peer.Node, body []byte) ([]byte, error) {
			<-ready
			var r request
			if err := json.Unmarshal(body[1:], &r); err != nil {
				return nil, err
			}
			if a := answers(node, r); a != nil {
				return json.Marshal(a)
			}
			go node.Close()
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	close(ready)
	t.Cleanup(func() { node.Close() })
	return node
}

// Where the leader dies before it has answered, the next one is asked. That it was done already is no error.
func TestAnAnswerIsLost(t *testing.T) {
	for _, c := range []struct {
		what        string
		first, then *response // of the leader, and of the next one
		fails       bool
	}{
		{"it was done", nil, &response{Error: "no member", Done: true}, false},
		{"it was not done", nil, &response{}, false},
		{"it ceased to lead, and it was done", &response{Error: "lost", Again: true, Lost: true}, &response{Error: "no member", Done: true}, false},
		{"it ceased to lead before it began", &response{Error: "not the leader", Again: true}, &response{Error: "no"}, true},
		{"there was nothing to do", &response{Error: "no member", Done: true}, &response{Error: "no"}, false},
		{"it is refused afterwards", nil, &response{Error: "no"}, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var asked atomic.Bool // the leader was, so that another one leads
			first := nodeThat(t, func(self *peer.Peer, r request) *response {
				if r.Do == doInfo {
					i := Info{Addr: self.Self().Addr, Leader: self.Self().Addr, Term: 1}
					if asked.Load() {
						i.Leader = ""
					}
					return &response{Info: &i}
				}
				asked.Store(true)
				return c.first
			})
			second := nodeThat(t, func(self *peer.Peer, r request) *response {
				switch r.Do {
				case doInfo:
					i := Info{Addr: self.Self().Addr, Term: 2}
					if asked.Load() {
						i.Leader = i.Addr
					}
					return &response{Info: &i}
				case doStatus:
					return &response{Status: &Status{Leader: self.Self().Addr}}
				}
				return c.then
			})
			command, err := NewCommand([]string{first.Self().Addr, second.Self().Addr}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer command.Close()
			if _, err := command.Remove(ctx, "127.0.0.1:1"); (err != nil) != c.fails {
				t.Errorf("%v", err)
			}
		})
	}
}
