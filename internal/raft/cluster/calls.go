package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/hashicorp/raft"

	"fencepost/internal/raft/peer"
)

// Whose a call is: its first byte.
const (
	ofStore   byte = 's'
	ofCluster byte = 'c'
)

var errNoHandler = errors.New("the node does not serve yet, or not any more")

// Calls carries the requests of the stores of the nodes.
type Calls struct {
	peer *peer.Peer

	mu      sync.RWMutex // read-locked while a request is handled
	handler func(context.Context, []byte) ([]byte, error)
}

// Call has the node at an address, as in Raft's configuration, handle a request. After an
// error other than peer.ErrNotSent the request may have been handled, or be handled later.
func (c *Calls) Call(ctx context.Context, address string, request []byte) ([]byte, error) {
	node, err := peer.ParseNode(address)
	if err != nil {
		return nil, err
	}
	return c.peer.Call(ctx, node, append([]byte{ofStore}, request...))
}

// Handle says who handles the requests of other nodes from now on; nil is nobody any more. It
// returns when none is being handled by who did before.
func (c *Calls) Handle(handler func(ctx context.Context, request []byte) ([]byte, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handler = handler
}

func (c *Calls) serve(ctx context.Context, request []byte) ([]byte, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.handler == nil {
		return nil, errNoHandler
	}
	return c.handler(ctx, request)
}

// handle answers the calls of other nodes and of commands.
func (c *Cluster) handle(ctx context.Context, from peer.Node, body []byte) ([]byte, error) {
	switch {
	case len(body) > 0 && body[0] == ofStore && from.ID != "":
		return c.calls.serve(ctx, body[1:])
	case len(body) > 0 && body[0] == ofCluster:
		var r request
		if err := json.Unmarshal(body[1:], &r); err != nil {
			return nil, err
		}
		return json.Marshal(c.answer(ctx, r))
	}
	return nil, errors.New("nobody here answers that")
}

// What a request is about.
const (
	doInfo     = "info"     // how the node is
	doStatus   = "status"   // how all members are, as this node sees it
	doVouch    = "vouch"    // that the address of the node that asks, and begins the cluster, leads to it
	doJoin     = "join"     // take in a node without data, in place of the one that had its address
	doAdd      = "add"      // take in a node at a new address
	doRemove   = "remove"   // of a node
	doTransfer = "transfer" // of the leadership
)

// request is what nodes and commands ask a node.
type request struct {
	Do   string `json:"do"`
	By   string `json:"by,omitempty"`   // who asks, as a command says; a label, and no proof
	Node string `json:"node,omitempty"` // which is meant: id@host:port to join or be vouched for, else host:port or an id
}

// response is what comes of it.
type response struct {
	Info   *Info   `json:"info,omitempty"`
	Status *Status `json:"status,omitempty"`
	Error  string  `json:"error,omitempty"`
	Leader string  `json:"leader,omitempty"` // whom to ask instead, host:port
	Again  bool    `json:"again,omitempty"`  // ask anybody again, when there is another leader
	Lost   bool    `json:"lost,omitempty"`   // and it may have been done
	Done   bool    `json:"done,omitempty"`   // there is nothing to do, as when it was done before
}

// refusal is an error of the node that was asked.
type refusal struct {
	text   string
	leader string // host:port of who may do it
	again  bool   // there will be another leader soon
	lost   bool   // this one ceased to lead before it knew what became of it
	done   bool   // it is so already
}

func (r *refusal) Error() string { return r.text }

// ask asks the node at an address.
func ask(ctx context.Context, p *peer.Peer, addr string, r request) (response, error) {
	var got response
	body, err := json.Marshal(r)
	if err != nil {
		return got, err
	}
	answer, err := p.Call(ctx, peer.Node{Addr: addr}, append([]byte{ofCluster}, body...))
	if err != nil {
		return got, err
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		return got, err
	}
	if got.Error != "" {
		return got, &refusal{text: got.Error, leader: got.Leader, again: got.Again, lost: got.Lost, done: got.Done}
	}
	return got, nil
}

// answer does what was asked for.
func (c *Cluster) answer(ctx context.Context, r request) (got response) {
	var err error
	switch r.Do {
	case doInfo:
		info := c.info()
		got.Info = &info
	case doStatus:
		status := c.Status(ctx)
		got.Status = &status
	case doVouch:
		err = c.vouch(ctx, r.Node)
	case doJoin:
		err = c.takeIn(ctx, r.Node)
	case doAdd:
		err = c.add(ctx, r.Node)
	case doRemove:
		err = c.remove(ctx, r.Node)
	case doTransfer:
		err = c.transfer(ctx, r.Node)
	default:
		err = errors.New("the node does not know how to " + r.Do)
	}
	c.auditRequest(ctx, r, err)
	if err != nil {
		got.Error = err.Error()
		var why *refusal
		switch {
		case errors.As(err, &why):
			got.Leader, got.Again, got.Lost, got.Done = why.leader, why.again, why.lost, why.done
		case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrRaftShutdown):
			got.Again, got.Lost = true, true
		case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout):
			got.Again = true
		}
	}
	return got
}
