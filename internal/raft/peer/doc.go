// Package peer connects the nodes of a cluster: one port a node, and nobody comes in who
// can't prove that they belong to it. It knows TLS and connections, and nothing of locks.
//
// Every connection is TLS 1.3 with both sides authenticated ([Credentials]), or, where there
// are no credentials, plain and between loopback addresses only. Then both sides say who they
// are ([Node]): the id of a node stands for its data, so who has lost that is another node,
// and is neither taken for the old one nor asked as it. A connection is for Raft's own
// messages ([Peer.StreamLayer]) or for calls ([Peer.Call]).
package peer
