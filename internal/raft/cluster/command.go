package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fencepost/internal/raft/peer"
)

// Command is who asks a cluster something, or changes it, without being a node of it.
type Command struct {
	peer  *peer.Peer
	nodes []string
}

// NewCommand returns one that asks the node at the first address that answers.
func NewCommand(nodes []string, credentials *peer.Credentials) (*Command, error) {
	p, err := peer.Open(peer.Options{Self: peer.Node{Addr: nodes[0]}, Credentials: credentials})
	return &Command{peer: p, nodes: nodes}, err
}

// Close closes its connections.
func (c *Command) Close() error { return c.peer.Close() }

// Status asks how the cluster is.
func (c *Command) Status(ctx context.Context) (Status, error) {
	got, err := c.anybody(ctx, request{Do: doStatus})
	if err == nil && got.Status == nil {
		err = errors.New("the node does not say how the cluster is")
	}
	if err != nil {
		return Status{}, err
	}
	return *got.Status, nil
}

// anybody asks one node after the other until one answers.
func (c *Command) anybody(ctx context.Context, r request) (response, error) {
	var all []error
	for _, addr := range c.nodes {
		of, cancel := context.WithTimeout(ctx, 3*askTimeout)
		got, err := ask(of, c.peer, addr, r)
		cancel()
		var refused *refusal
		if err == nil || errors.As(err, &refused) {
			return got, err
		}
		all = append(all, fmt.Errorf("%s: %w", addr, err))
	}
	return response{}, fmt.Errorf("no node of the cluster can be asked:\n%w", errors.Join(all...))
}

// electTimeout bounds how long a command waits for a leader.
const electTimeout = 15 * time.Second

// leader has the leader do something: whoever is asked first names it.
func (c *Command) leader(ctx context.Context, r request) error {
	begun := time.Now()
	for addr := ""; ; {
		var err error
		if addr == "" {
			_, err = c.anybody(ctx, r)
		} else {
			_, err = ask(ctx, c.peer, addr, r)
		}
		var refused *refusal
		if !errors.As(err, &refused) || refused.leader == "" && !refused.again {
			return err
		}
		if refused.again || addr == refused.leader { // or it does not know yet that it leads
			if time.Since(begun) > electTimeout || pause(ctx, tendInterval) != nil {
				return refused
			}
		}
		addr = refused.leader
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Add takes in the node at an address, and returns when it has its vote.
func (c *Command) Add(ctx context.Context, addr string) (Status, error) {
	if err := c.leader(ctx, request{Do: doAdd, Node: addr}); err != nil {
		return Status{}, err
	}
	return c.await(ctx, func(s Status) bool {
		for _, m := range s.Members {
			if m.Addr == addr && m.Voter {
				return true
			}
		}
		return false
	}, addr+" was added, and has no vote yet, for it has not all entries")
}

// Remove has a member, by address or id, be one no more.
func (c *Command) Remove(ctx context.Context, which string) (Status, error) {
	if err := c.leader(ctx, request{Do: doRemove, Node: which}); err != nil {
		return Status{}, err
	}
	return c.await(ctx, func(s Status) bool {
		for _, m := range s.Members {
			if m.Addr == which || m.ID == which {
				return false
			}
		}
		return s.Leader != ""
	}, which+" was removed, and the node that was asked does not know yet")
}

// Transfer hands the leadership to a member, by address or id, or to any other.
func (c *Command) Transfer(ctx context.Context, which string) (Status, error) {
	before, err := c.Status(ctx)
	if err != nil {
		return before, err
	}
	if err := c.leader(ctx, request{Do: doTransfer, Node: which}); err != nil {
		return Status{}, err
	}
	return c.await(ctx, func(s Status) bool { return handedOver(before, s, which) },
		"the leadership was handed over, and the node that was asked does not know yet")
}

// handedOver reports whether a status is of after a transfer to a member, or to any. To any it is by its term: the
// leadership may have moved before the transfer too, and that have brought it back.
func handedOver(before, after Status, which string) bool {
	if which == "" {
		return after.Leader != "" && after.Term > before.Term
	}
	return slices.ContainsFunc(after.Members, func(m Member) bool {
		return (m.Addr == which || m.ID == which) && m.Addr == after.Leader
	})
}

// await asks until the cluster is as it is to be; otherwise says how it is instead.
func (c *Command) await(ctx context.Context, done func(Status) bool, otherwise string) (Status, error) {
	for {
		status, err := c.Status(ctx)
		if err == nil && done(status) {
			return status, nil
		}
		if pause(ctx, tendInterval) != nil {
			return status, errors.Join(errors.New(otherwise), err)
		}
	}
}
