package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// The two indexes of a partition, of the names that are held and of when something is due,
// have nothing that the records do not say. One that was evicted or deleted can't be told from
// one that is empty, which Redis doesn't keep: so each has a mark, which is no name, and one
// without it is made anew. The score of the mark tells whether that has come to its end.
const (
	wholeMark = "" // it comes before every name

	// markScore is that of the mark in the whole index of what is due, where it never is. In
	// that of names, whose order is by the name as long as all have one score, it is 0.
	markScore = 1<<53 - 1

	indexLookPause = 500 * time.Millisecond // from one look at the marks of a node to the next
	indexingPause  = 50 * time.Millisecond  // from one Expire to the next while indexes are made anew: what is due may be in them

	scanCount = 1000 // how many keys Redis looks at at a time: about 0.2 ms
)

// lookAtIndexes has the indexes of a node made anew that are not whole, of the partitions that
// it is to have, and reports whether that is under way.
func (s *Store) lookAtIndexes(ctx context.Context, n *node, wanted []int) bool {
	now, seen := time.Now().UnixNano(), n.indexesSeen.Load()
	if n.indexing.Load() {
		return true
	} else if now-seen < int64(indexLookPause) || !n.indexesSeen.CompareAndSwap(seen, now) {
		return false
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.nodeTimeout(), errBudget)
	defer cancel()
	pipe := n.client.Pipeline()
	names, expiry := make([]*goredis.FloatCmd, len(wanted)), make([]*goredis.FloatCmd, len(wanted))
	for i, p := range wanted {
		names[i], expiry[i] = pipe.ZScore(ctx, s.keys[p].names, wholeMark), pipe.ZScore(ctx, s.keys[p].expiry, wholeMark)
	}
	_, _ = pipe.Exec(ctx) // the commands hold their errors
	var broken []int
	for i, p := range wanted {
		if isBroken(names[i], 0) || isBroken(expiry[i], markScore) {
			broken = append(broken, p)
		}
	}
	if len(broken) == 0 {
		return false
	}
	s.guards.mu.Lock()
	defer s.guards.mu.Unlock()
	if s.guards.ctx.Err() != nil {
		return false
	}
	n.indexing.Store(true)
	s.guards.running.Go(func() {
		defer n.indexing.Store(false)
		if err := s.makeIndexes(s.guards.ctx, n, broken); err != nil && s.guards.ctx.Err() == nil {
			s.options.Logger.Warn("indexes of names can't be rebuilt; retrying", "error", s.topology.nodeError(n, err))
		}
	})
	return true
}

// isBroken reports whether an index is known not to be whole: by the score of its mark.
func isBroken(mark *goredis.FloatCmd, whole float64) bool {
	score, err := mark.Result()
	return err == nil && score != whole || errors.Is(err, goredis.Nil) || goredis.HasErrorPrefix(err, "WRONGTYPE")
}

// makeIndexes puts into the indexes of some partitions of a node what the records say. It looks
// at all keys there are.
func (s *Store) makeIndexes(ctx context.Context, n *node, partitions []int) error {
	begun := s.beginIndexes(ctx, n, partitions)
	is := map[int]bool{}
	for _, p := range begun {
		is[p] = true
	}
	of := "*"
	if len(s.keys) == 1 {
		of = "0"
	}
	put := int64(0)
	for cursor, more := uint64(0), len(begun) > 0; more; more = cursor != 0 {
		keys, next, err := n.client.Scan(ctx, cursor, "fencepost:{"+of+"}:lock:*", scanCount).Result()
		if err != nil {
			return err
		}
		var commands []*command
		for _, key := range keys {
			if p, name, ok := s.nameOf(key); ok && is[p] {
				commands = append(commands, s.newCommand(operation{verb: indexVerb, name: name}, nil))
			}
		}
		if err := s.doAll(ctx, commands, func(_ *command, r *reply) error {
			put += r.number
			return nil
		}); err != nil {
			return err
		}
		cursor = next
	}
	if put > 0 {
		s.options.Logger.Warn("an index of names was evicted or deleted; it was rebuilt from the records", "partitions", len(begun), "entries", put)
	}
	return s.endIndexes(ctx, n, begun)
}

// nameOf returns the partition and the name of the key of a record.
func (s *Store) nameOf(key string) (partition int, name fencing.Name, ok bool) {
	tag, rest, found := strings.Cut(strings.TrimPrefix(key, "fencepost:{"), "}:lock:")
	partition, err := strconv.Atoi(tag)
	name = fencing.Name(rest)
	return partition, name, found && err == nil && s.partitionOf(name) == partition
}

// beginIndexes marks the indexes of partitions as those that are being made anew, and returns
// the partitions where that was done.
func (s *Store) beginIndexes(ctx context.Context, n *node, partitions []int) (begun []int) {
	mark := func(index func(*keyspace) string, score float64) {
		pipe := n.client.Pipeline()
		marked := make([]*goredis.IntCmd, len(partitions))
		for i, p := range partitions {
			marked[i] = pipe.ZAdd(ctx, index(&s.keys[p]), goredis.Z{Score: score, Member: wholeMark})
		}
		_, _ = pipe.Exec(ctx) // the commands hold their errors
		begun = nil
		for i, p := range partitions {
			err := marked[i].Err()
			if goredis.HasErrorPrefix(err, "WRONGTYPE") { // it is no index
				key := index(&s.keys[p])
				if err = n.client.Del(ctx, key).Err(); err == nil {
					err = n.client.ZAdd(ctx, key, goredis.Z{Score: score, Member: wholeMark}).Err()
				}
			}
			if err == nil {
				begun = append(begun, p)
			}
		}
		partitions = begun
	}
	mark(func(k *keyspace) string { return k.names }, -1)
	mark(func(k *keyspace) string { return k.expiry }, markScore-1)
	return begun
}

// endIndexes marks the indexes of partitions as whole, but those that were lost meanwhile.
func (s *Store) endIndexes(ctx context.Context, n *node, partitions []int) error {
	if len(partitions) == 0 {
		return nil
	}
	pipe := n.client.Pipeline()
	for _, p := range partitions {
		pipe.ZAddXX(ctx, s.keys[p].names, goredis.Z{Score: 0, Member: wholeMark})
		pipe.ZAddXX(ctx, s.keys[p].expiry, goredis.Z{Score: markScore, Member: wholeMark})
	}
	cmds, err := pipe.Exec(ctx)
	return firstError(cmds, err)
}
