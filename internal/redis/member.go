package redis

import (
	"context"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

var _ fencing.Node = (*Store)(nil)

// Blank is fencing.Node.Blank.
func (s *Store) Blank(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.OperationTimeout, errBudget)
	defer cancel()
	nodes := s.topology.nodes()
	if len(nodes) == 0 {
		return false, s.unavailable(errNowhere)
	}
	for _, n := range nodes {
		var guards []*goredis.IntCmd
		pipe := n.client.Pipeline()
		for _, p := range s.topology.chart.Load().partitionsOf(n) {
			guards = append(guards, pipe.Exists(ctx, s.keys[p].guard))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return false, s.unavailable(n.at(err))
		}
		for _, guard := range guards {
			if guard.Val() != 0 {
				return false, nil
			}
		}
	}
	return true, nil
}

// admitted fails while a partition has no guard, so that nothing is granted there.
func (s *Store) admitted(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.OperationTimeout, errBudget)
	defer cancel()
	for _, n := range s.topology.nodes() {
		var guards []string
		for _, p := range s.topology.chart.Load().partitionsOf(n) {
			guards = append(guards, s.keys[p].guard)
		}
		switch there, err := n.client.Exists(ctx, guards...).Result(); {
		case err != nil:
			return s.unavailable(n.at(err))
		case int(there) < len(guards):
			return &fencing.Error{Code: fencing.CodeQuarantined, Detail: "the node was not taken into service yet"}
		}
	}
	return nil
}

// Enroll is fencing.Node.Enroll.
func (s *Store) Enroll(ctx context.Context, isNew bool, longest time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.OperationTimeout, errBudget)
	defer cancel()
	how := arriveCareful
	if isNew {
		how = arriveNew
	}
	for _, n := range s.topology.nodes() {
		info, err := n.client.Info(ctx, identityInfo...).Result()
		if err != nil {
			return s.unavailable(n.at(err))
		}
		id, err := identify(info)
		if err != nil {
			return s.unavailable(n.at(err))
		}
		var arrivals []*command
		for _, p := range s.topology.chart.Load().partitionsOf(n) {
			arrivals = append(arrivals, s.newArriveCommand(p, id.server(), how, longest))
		}
		if err := s.arriveAt(ctx, n, arrivals); err != nil {
			return s.unavailable(n.at(err))
		}
	}
	return nil
}
