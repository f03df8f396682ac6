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

// askReplicas adds to calls in a pipeline that as many replicas as are demanded say that
// they have them; what it returns tells whether they did. They are asked by the connection
// that wrote, and a key is written first: so they answer for all that was written
// before, also by others, and a retry that changes nothing is answered for as well.
func (s *sender) askReplicas(ctx context.Context, pipe goredis.Pipeliner, partition int) func() bool {
	marked := pipe.Set(ctx, s.keys[partition].acked, "", 0)
	acked := goredis.NewIntCmd(ctx, "wait", s.acks, ackTimeout.Milliseconds())
	_ = pipe.Process(ctx, acked)
	return func() bool { return marked.Err() == nil && acked.Err() == nil && acked.Val() >= int64(s.acks) }
}

// needsAcks reports whether a batch may grant something.
func (s *sender) needsAcks(batch []*command) bool {
	return slices.ContainsFunc(batch, s.waits)
}

// waits reports whether a command may grant something, so that replicas have to
// confirm it.
func (s *sender) waits(c *command) bool {
	return s.acks > 0 && c.verb.rules() && c.verb != renewVerb && c.verb != claimVerb
}

// unreplicated returns the error of a command whose lease too few replicas have
// heard of; nil if it has none. Who gets the error is to take the lease back.
func unreplicated(c *command, r *reply) error {
	if !c.unacked || r.code != fencing.CodeOK {
		return nil
	}
	switch c.verb {
	case admitVerb:
		return &fencing.Error{
			Code:   fencing.CodeNotReplicated,
			Detail: fmt.Sprintf("too few replicas confirmed within %s that the token was admitted; repeat the request", ackTimeout),
		}
	case acquireVerb, confirmVerb, leaveVerb:
		if r.holder != nil {
			return &fencing.Error{
				Code:   fencing.CodeNotReplicated,
				Detail: fmt.Sprintf("too few replicas confirmed the lease within %s; it is taken back", ackTimeout),
			}
		}
	}
	return nil
}
