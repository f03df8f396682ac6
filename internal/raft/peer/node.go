package peer

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// idBytes is the size of an id: no two nodes ever get the same.
const idBytes = 16

// Node is a member of a cluster, or who wants to be one.
type Node struct {
	ID   string // of its data: 32 hexadecimal digits; empty for one that has none, as a command
	Addr string // host:port, as the other nodes reach it
}

// String returns the node as Raft's configuration has it: id@host:port.
func (n Node) String() string { return n.ID + "@" + n.Addr }

// Network is net.Addr.Network.
func (n Node) Network() string { return "tcp" }

// ParseNode reads what String returns.
func ParseNode(text string) (Node, error) {
	id, addr, found := strings.Cut(text, "@")
	if !found {
		return Node{}, fmt.Errorf("%q is not id@host:port", text)
	}
	if err := checkID(id); err != nil {
		return Node{}, err
	}
	return Node{ID: id, Addr: addr}, CheckAddr(addr)
}

// NewID returns an id that no other node has.
func NewID() string {
	var id [idBytes]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

func checkID(id string) error {
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != idBytes || id != strings.ToLower(id) {
		return fmt.Errorf("%q is not the id of a node; it must have %d hexadecimal digits", id, 2*idBytes)
	}
	return nil
}

// CheckAddr says what is wrong with the address of a node: it must be host:port, with a port
// from 1 to 65535.
func CheckAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || strings.ContainsAny(host, "@/?#, ") {
		return fmt.Errorf("%q is not host:port, like node1:7000", addr)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q has no port from 1 to 65535", addr)
	}
	return nil
}

// errExposed is what keeps a cluster without credentials on its machine.
var errExposed = errors.New("it is not a loopback address, and the nodes have neither a secret nor certificates: " +
	"anyone who can reach a node could acquire every lock and change the cluster")

// IsLoopback reports whether only this machine reaches an address by its text: names other
// than localhost may lead anywhere.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
