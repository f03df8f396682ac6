package redis

import (
	"context"
	"fmt"
	"slices"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// ackTimeout is how long replicas have to say that they have a grant. It is below
// ReadTimeout, or the answer to the grant would not be waited for.
const ackTimeout = 500 * time.Millisecond

// withAcks runs a batch, and has as many replicas say that they have it as are
// demanded. They are asked by the connection that wrote, and a key is written first:
// so they answer for all that was written before, also by others, and a retry that
// changes nothing is answered for as well.
func (s *sender) withAcks(ctx context.Context, n *node, batch []*command) {
	pipe := n.client.Pipeline()
	for _, c := range batch {
		_ = pipe.Process(ctx, c.cmd)
	}
	marked := pipe.Set(ctx, s.ackKeys[batch[len(batch)-1].partition].acked, "", 0)
	acked := goredis.NewIntCmd(ctx, "wait", s.acks, ackTimeout.Milliseconds())
	_ = pipe.Process(ctx, acked)
	_, err := pipe.Exec(ctx)
	failed(batch, err)
	ok := marked.Err() == nil && acked.Err() == nil && acked.Val() >= int64(s.acks)
	for _, c := range batch {
		c.unacked = !ok
	}
}

// needsAcks reports whether a batch may grant something.
func (s *sender) needsAcks(batch []*command) bool {
	return slices.ContainsFunc(batch, s.waits)
}

// waits reports whether a command may grant something, so that replicas have to
// confirm it.
func (s *sender) waits(c *command) bool {
	return s.acks > 0 && c.script.rules() && c.script != renewScript && c.script != claimScript
}

// unreplicated returns the error of a command whose lease too few replicas have
// heard of; nil if it has none. Who gets the error is to take the lease back.
func unreplicated(c *command, r *reply) error {
	if !c.unacked || r.code != fencing.CodeOK {
		return nil
	}
	switch c.script {
	case acquireScript, confirmScript, leaveScript:
		if r.made || r.holder != nil || r.place == nil && r.shown.record != nil && len(r.shown.record.holdings) == 1 {
			return &fencing.Error{
				Code:   fencing.CodeNotReplicated,
				Detail: fmt.Sprintf("too few replicas have confirmed the lease within %s; it is taken back", ackTimeout),
			}
		}
	}
	return nil
}
