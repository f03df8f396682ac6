package redis

import (
	"context"
	"errors"
	"time"

	"fencepost/internal/fencing"
)

var _ fencing.Node = (*Store)(nil)

// Blank is fencing.Node.Blank.
func (s *Store) Blank(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.OperationTimeout, errBudget)
	defer cancel()
	n := s.topology.node(0) // the only one: no member is a Cluster
	if n.client == nil {
		return false, s.unavailable(errNoMaster)
	}
	there, err := n.client.Exists(ctx, s.keys[0].guard).Result()
	if err != nil {
		return false, s.unavailable(n.at(err))
	}
	return there == 0, nil
}

// Enroll is fencing.Node.Enroll.
func (s *Store) Enroll(ctx context.Context, isNew bool, longest time.Duration) error {
	s.guards.noteTTL(longest)
	decide := func(was *remembered, is *reported) verdict {
		switch v := reconcile(was, is); {
		case v == unchanged: // another gateway was first, which may not know of a TTL as long
			return longer
		case v != withheld:
			return v
		case isNew && was.born == 0:
			return unused
		}
		return lost
	}
	n, err := s.topology.node(0), errOvertaken
	for range maxRecoveries {
		if errors.Is(err, errOvertaken) { // by another gateway that enrolls it
			err = s.arriveAt(ctx, n, time.Time{}, decide)
		}
	}
	if err != nil {
		return s.unavailable(n.at(err))
	}
	return nil
}
