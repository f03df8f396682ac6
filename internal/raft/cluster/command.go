package cluster

import (
	"cmp"
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

// Status asks how the cluster is: one node after the other until one answers, and then the leader that it knows, for
// it may be behind. If that does not answer it is the word of the other.
func (c *Command) Status(ctx context.Context) (Status, error) {
	of := func(addr string) (Status, error) {
		ctx, cancel := context.WithTimeout(ctx, 3*askTimeout)
		defer cancel()
		return statusOf(ask(ctx, c.peer, addr, request{Do: doStatus}))
	}
	var all []error
	for _, addr := range c.nodes {
		status, err := of(addr)
		if err == nil {
			if status.Leader != "" && status.Leader != status.Node {
				if leaders, err := of(status.Leader); err == nil {
					return leaders, nil
				}
			}
			return status, nil
		}
		all = append(all, fmt.Errorf("%s: %w", addr, err))
	}
	return Status{}, fmt.Errorf("no node of the cluster can be reached:\n%w", errors.Join(all...))
}

func statusOf(got response, err error) (Status, error) {
	switch {
	case err != nil:
		return Status{}, err
	case got.Status == nil:
		return Status{}, errors.New("the node does not report the state of the cluster")
	}
	return *got.Status, nil
}

// electTimeout bounds how long a command waits for a leader.
const electTimeout = 15 * time.Second

// lead returns who leads: whom most name, else of what the nodes say that of the latest term.
func (c *Command) lead(ctx context.Context) (leader string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*askTimeout)
	defer cancel()
	answers := make(chan asked, len(c.nodes))
	for _, addr := range c.nodes {
		go func() {
			got, err := ask(ctx, c.peer, addr, request{Do: doInfo})
			if err == nil && got.Info == nil {
				err = errors.New("the node does not report its state")
			}
			if err != nil {
				answers <- asked{err: fmt.Errorf("%s: %w", addr, err)}
			} else {
				answers <- asked{info: *got.Info}
			}
		}()
	}
	type named struct {
		leader string
		term   uint64
	}
	var failed, idle []error
	var latest uint64
	count := map[named]int{}
	for range c.nodes {
		of := <-answers
		switch by := (named{of.info.Leader, of.info.Term}); {
		case of.err != nil:
			failed = append(failed, of.err)
		case by.leader == "":
			idle = append(idle, fmt.Errorf("%s: %s", of.info.Addr, cmp.Or(of.info.Condition, "it knows of no leader")))
		default:
			if count[by]++; count[by] > len(c.nodes)/2 {
				return by.leader, nil
			}
			if by.term >= latest {
				leader, latest = by.leader, by.term
			}
		}
	}
	switch {
	case leader != "":
		return leader, nil
	case len(idle) == 0:
		return "", fmt.Errorf("no node of the cluster can be reached:\n%w", errors.Join(failed...))
	}
	return "", &refusal{text: "there is no leader:\n" + errors.Join(append(idle, failed...)...).Error(), again: true}
}

// leader has the leader do something, and another one if that dies: nothing is done twice.
func (c *Command) leader(ctx context.Context, r request) (got response, err error) {
	begun := time.Now()
	r.By = whoami()
	var lost error // why an answer has not come: what was asked for may have been done
	for {
		addr, err := c.lead(ctx)
		sent := err == nil
		if sent {
			got, err = ask(ctx, c.peer, addr, r)
		}
		var refused *refusal
		switch refuses := errors.As(err, &refused); {
		case err == nil, refuses && refused.done: // before, or by the one that did not answer
			return got, nil
		case refuses && !refused.again && refused.leader == "":
			return got, err
		case refuses && refused.lost, !refuses && sent && !errors.Is(err, peer.ErrNotSent):
			lost = err
		}
		if time.Since(begun) > electTimeout || pause(ctx, tendInterval) != nil || refused == nil && !sent {
			if lost != nil {
				err = fmt.Errorf("it is unknown whether it was done, because the leader was lost before it answered; "+
					"repeat the command, it is not done twice: %w", lost)
			}
			return got, err
		}
	}
}

// status asks the leader how the cluster is.
func (c *Command) status(ctx context.Context) (Status, error) {
	return statusOf(c.leader(ctx, request{Do: doStatus}))
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

// Add takes in the node at an address, and returns when it has its vote; at once if it has that already.
func (c *Command) Add(ctx context.Context, addr string) (Status, error) {
	if _, err := c.leader(ctx, request{Do: doAdd, Node: addr}); err != nil {
		return Status{}, err
	}
	return c.await(ctx, func(s Status) bool {
		return slices.ContainsFunc(s.Members, func(m Member) bool { return m.Addr == addr && m.Voter })
	}, addr+" was added, but has no vote yet: it gets one by itself once it has caught up")
}

// Remove has a member, by address or id, be one no more. Who is none needs no removal, so it may be repeated.
func (c *Command) Remove(ctx context.Context, which string) (Status, error) {
	if _, err := c.leader(ctx, request{Do: doRemove, Node: which}); err != nil {
		return Status{}, err
	}
	return c.await(ctx, func(s Status) bool {
		return s.Leader != "" && !slices.ContainsFunc(s.Members, func(m Member) bool { return m.Addr == which || m.ID == which })
	}, which+" was removed, but the leader still lists it")
}

// Transfer hands the leadership to a member, by address or id, or to any other.
func (c *Command) Transfer(ctx context.Context, which string) (Status, error) {
	before, err := c.status(ctx)
	if err != nil {
		return before, err
	}
	if _, err := c.leader(ctx, request{Do: doTransfer, Node: which}); err != nil {
		return Status{}, err
	}
	return c.await(ctx, func(s Status) bool { return handedOver(before, s, which) },
		"the leadership was handed over, but there is no new leader yet")
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

// await asks the leader until the cluster is as it is to be; otherwise says how it is instead.
func (c *Command) await(ctx context.Context, done func(Status) bool, otherwise string) (Status, error) {
	for {
		status, err := c.status(ctx)
		if err == nil && done(status) {
			return status, nil
		}
		if pause(ctx, tendInterval) != nil {
			return status, errors.Join(errors.New(otherwise), err)
		}
	}
}
