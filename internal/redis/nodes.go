package redis

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// group is what is for one node, in the order in which it was.
type group[T any] struct {
	node *node
	of   []T
}

// groupByNode sorts by nodes. At least one group comes back.
func groupByNode[T any](all []T, nodeOf func(T) *node) []group[T] {
	groups := make([]group[T], 0, 1)
	for _, one := range all {
		n := nodeOf(one)
		at := 0
		for at < len(groups) && groups[at].node != n {
			at++
		}
		if at == len(groups) {
			groups = append(groups, group[T]{node: n})
		}
		groups[at].of = append(groups[at].of, one)
	}
	if len(groups) == 0 {
		groups = append(groups, group[T]{})
	}
	return groups
}

// inParallel does n things at once and returns the first of their errors, in
// order, when all are done.
func inParallel(n int, do func(int) error) error {
	if n == 1 {
		return do(0)
	}
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = do(i) })
	}
	running.Wait()
	return cmp.Or(errs...)
}

// readPartitions runs a plain reading command for each of some partitions, at the
// nodes that have them, again while they fail in passing. It fails if one of them
// can't be read.
func (s *Store) readPartitions(ctx context.Context, wanted []int, command func(context.Context, goredis.Pipeliner, int)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.OperationTimeout, errBudget)
	defer cancel()
	for attempt := 0; len(wanted) > 0; attempt++ {
		groups := groupByNode(wanted, s.topology.node)
		failed := make([][]int, len(groups))
		err := inParallel(len(groups), func(i int) (err error) {
			failed[i], err = s.readOnce(ctx, groups[i].node, groups[i].of, command)
			return err
		})
		if err == nil {
			return nil
		}
		if !retryable(err) || pause(ctx, nil, attempt) != nil {
			return s.unavailable(err)
		}
		wanted = wanted[:0:0]
		for _, some := range failed {
			wanted = append(wanted, some...)
		}
	}
	return nil
}

// readOnce runs a command for each of some partitions of a node. It returns those
// that failed, with the first error.
func (s *Store) readOnce(ctx context.Context, n *node, wanted []int, command func(context.Context, goredis.Pipeliner, int)) ([]int, error) {
	if n.client == nil {
		s.topology.refresh()
		return wanted, errNoMaster
	}
	pipe := n.client.Pipeline()
	for _, partition := range wanted {
		command(ctx, pipe, partition)
	}
	cmds, err := pipe.Exec(ctx)
	if err = s.topology.nodeError(n, firstError(cmds, err)); err == nil {
		return nil, nil
	}
	if len(cmds) != len(wanted) {
		return wanted, err
	}
	var failed []int
	for i, cmd := range cmds {
		if e := cmd.Err(); e != nil && !errors.Is(e, goredis.Nil) {
			failed = append(failed, wanted[i])
		}
	}
	return failed, err
}

// nodeError returns the error of a command at a node, with the address, and has the
// topology looked at if it suggests that.
func (t *topology) nodeError(n *node, err error) error {
	if err == nil {
		return nil
	}
	if mayHaveMoved(err) {
		t.refresh()
	}
	if errors.Is(err, goredis.ErrClosed) && n.retired() {
		return errRetired
	}
	return n.at(err)
}

// nodeTimeout is how long a node is waited for by what does the same at all nodes
// and comes again soon: not so long that the others suffer.
func (s *Store) nodeTimeout() time.Duration {
	if len(s.topology.nodes()) > 1 {
		return s.options.OperationTimeout / 8
	}
	return s.options.OperationTimeout
}

// readNode runs plain commands on a node, again while that fails in passing,
// within s.patience(). What is refused because a slot is moving is left in its
// command.
func (s *Store) readNode(ctx context.Context, n *node, commands func(context.Context, goredis.Pipeliner)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.nodeTimeout(), errBudget)
	defer cancel()
	for attempt := 0; ; attempt++ {
		pipe := n.client.Pipeline()
		commands(ctx, pipe)
		cmds, err := pipe.Exec(ctx)
		stay := cmds[:0:0]
		for _, cmd := range cmds {
			if moving(cmd.Err()) {
				s.topology.refresh()
				err = nil // it may be the first of them, which Exec returns
			} else {
				stay = append(stay, cmd)
			}
		}
		if err = s.topology.nodeError(n, firstError(stay, err)); err == nil {
			return nil
		}
		if !retryable(err) || n.retired() || pause(ctx, nil, attempt) != nil {
			return s.unavailable(err)
		}
	}
}

// moving reports whether a node refused a command because of its slot alone.
func moving(err error) bool {
	return goredis.HasErrorPrefix(err, "MOVED") || goredis.HasErrorPrefix(err, "ASK") || goredis.HasErrorPrefix(err, "TRYAGAIN")
}

// countHeld returns how many names are held, as far as has been noticed.
func (s *Store) countHeld(ctx context.Context) (int, error) {
	counts := make([]*goredis.IntCmd, s.partitions)
	err := s.readPartitions(ctx, s.everyPartition(), func(ctx context.Context, pipe goredis.Pipeliner, n int) {
		counts[n] = pipe.ZLexCount(ctx, s.keys[n].names, "("+wholeMark, "+")
	})
	if err != nil {
		return 0, err
	}
	held := 0
	for _, count := range counts {
		held += int(count.Val())
	}
	return held, nil
}

func (s *Store) everyPartition() []int {
	all := make([]int, s.partitions)
	for n := range all {
		all[n] = n
	}
	return all
}

// checkNodes asks every master whether it would run what grants. A
// partition without a master fails as one that does not answer.
func (s *Store) checkNodes(ctx context.Context) error {
	owners := groupByNode(s.everyPartition(), s.topology.node)
	return inParallel(len(owners), func(i int) error {
		_, err := s.run(ctx, s.newPartitionCommand(owners[i].of[0], operation{verb: checkVerb}, nil)).result()
		var refusal *fencing.Error
		if cause := errors.Unwrap(err); cause != nil && errors.As(err, &refusal) && refusal.Code == fencing.CodeUnavailable {
			return s.unavailable(owners[i].node.at(cause))
		}
		return err
	})
}
