package peer

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	maxHello = 4 << 10 // bytes of who one is
	version  = 1       // of what is said on a connection
)

// What a connection is for.
const (
	forRaft = "raft" // Raft's own messages
	forCall = "call" // calls
	forID   = "id"   // to be told who answers
)

// hello is the first that is said on a connection, by the side that made it.
type hello struct {
	Version int    `json:"version"`
	Format  int    `json:"format"` // Options.Format of who asks
	For     string `json:"for"`
	ID      string `json:"id"`   // of who asks; empty for a command
	Addr    string `json:"addr"` // of who asks
	To      string `json:"to"`   // the id of who is meant; empty for whoever answers
}

// welcome answers a hello.
type welcome struct {
	ID      string `json:"id"`      // of who answers
	Addr    string `json:"addr"`    // of who answers, as others reach it
	Refused string `json:"refused"` // why there is nothing more to say; empty if there is
}

// Refused says that a node was reached that did not want this one, or is not the one that was
// meant.
type Refused struct {
	Node   Node // who answered
	Reason string
}

func (r *Refused) Error() string { return r.Node.Addr + " refused: " + r.Reason }

// errOther is the reason of who is asked for as another node.
const errOther = "the node that was meant is not here; another one has its address, because its data was lost or replaced"

func writeMessage(w io.Writer, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func readMessage(r io.Reader, message any) error {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxHello {
		return errors.New("the other side did not send a hello")
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, message)
}

// introduce has a connection that was made to a node lead to that one, and to no other.
func (p *Peer) introduce(conn net.Conn, to Node, what string) (Node, error) {
	own := p.options.Self
	if err := writeMessage(conn, hello{Version: version, Format: p.options.Format, For: what, ID: own.ID, Addr: own.Addr, To: to.ID}); err != nil {
		return Node{}, err
	}
	var answer welcome
	if err := readMessage(conn, &answer); err != nil {
		if p.options.Credentials == nil {
			err = fmt.Errorf("it may want a secret or a certificate, and this side has none: %w", err)
		}
		return Node{}, fmt.Errorf("%s does not say who it is: %w", to.Addr, err)
	}
	found := Node{ID: answer.ID, Addr: answer.Addr}
	switch {
	case answer.Refused != "":
		return found, &Refused{Node: found, Reason: answer.Refused}
	case checkID(answer.ID) != nil:
		return found, checkID(answer.ID)
	case to.ID != "" && answer.ID != to.ID:
		return found, &Refused{Node: found, Reason: errOther}
	}
	return found, nil
}

// meet finds out who has made a connection, and tells who answers.
func (p *Peer) meet(conn net.Conn) (said hello, err error) {
	if err := readMessage(conn, &said); err != nil {
		return said, err
	}
	own := p.options.Self
	answer := welcome{ID: own.ID, Addr: own.Addr}
	if err := p.judge(conn, said); err != nil {
		answer.Refused = err.Error()
	}
	if err := writeMessage(conn, answer); err != nil {
		return said, err
	}
	if answer.Refused != "" {
		return said, errors.New(answer.Refused)
	}
	return said, nil
}

// judge says why a node is not let in.
func (p *Peer) judge(conn net.Conn, said hello) error {
	switch {
	case said.Version != version:
		return fmt.Errorf("the two nodes are of versions that do not understand each other (%d and %d)", said.Version, version)
	case said.For != forRaft && said.For != forCall && said.For != forID:
		return fmt.Errorf("a connection for %q is not known here", said.For)
	case said.ID != "" && checkID(said.ID) != nil:
		return checkID(said.ID)
	case said.ID != "" && said.Format != p.options.Format:
		return fmt.Errorf("the log of %s has format %d, and that of %s format %d: nodes of two such versions can't be in one cluster (docs/operations.md, Upgrade)",
			said.Addr, said.Format, p.options.Self.Addr, p.options.Format)
	case said.For == forRaft && (said.ID == "" || said.To == ""):
		return errors.New("messages of Raft are between nodes that know each other")
	case said.To != "" && said.To != p.options.Self.ID:
		return errors.New(errOther)
	case said.ID != "" && said.ID == p.options.Self.ID && said.Addr != p.options.Self.Addr:
		return errors.New("it has the id of this node: the data of one was copied to the other")
	}
	if err := p.options.Credentials.checkName(conn, said.Addr); err != nil {
		return fmt.Errorf("the certificate is not for the address of its node: %w", err)
	}
	return nil
}

// within gives a connection until then for what is to be said next; 0: for ever.
func within(conn net.Conn, d time.Duration) {
	var deadline time.Time
	if d > 0 {
		deadline = time.Now().Add(d)
	}
	_ = conn.SetDeadline(deadline) // a connection that is closed says so at the next read
}
