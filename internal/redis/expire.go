package redis

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// reaperTTL is how long a gateway that reaps keeps the others from it. One
	// that died is replaced after this time.
	reaperTTL = 2 * time.Second

	// maxReapPause is how long Expire lets its caller wait at most. It is below
	// reaperTTL, so the reaper stays the reaper.
	maxReapPause = time.Second

	// dueChunk is how many names of one partition are looked at at once where there are
	// many; of a lone partition it is as many as are wanted.
	dueChunk = 64
)

// Expire is fencing.Store.Expire. Every master is looked after by one of the
// gateways, by its own clock. It also returns CodeClockSkew: an expiry is not
// judged then. A master that fails keeps no other from its part: the error comes
// after that, beside what was done.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	table := s.topology.table.Load()
	if len(table.nodes) == 0 {
		s.topology.refresh()
		return fencing.Expiry{}, s.unavailable(errNoMaster)
	}
	parts := make([]part, len(table.nodes))
	err := inParallel(len(parts), func(i int) (err error) {
		n := table.nodes[i]
		parts[i], err = s.dueAt(ctx, n, table.partitionsOf(n), limit)
		return err
	})
	if err == nil && table.incomplete() {
		s.topology.refresh()
		err = s.unavailable(errNoMaster)
	}
	names, expiry := gatherDue(parts, limit)
	failed := s.expireNames(ctx, names, func(r *reply) {
		expiry.Ended = append(expiry.Ended, r.ended...)
		switch {
		case r.more:
			expiry.Next = 0
		case r.number > 0:
			expiry.Next = min(expiry.Next, r.span())
		}
	})
	return expiry, cmp.Or(err, failed)
}

// part is what is to be done at one node.
type part struct {
	names   []fencing.Name
	next    time.Duration // when to ask again
	standby bool          // another gateway does it
}

// gatherDue puts parts together. Which comes first when limit is too low for all
// is left to chance, so that no node has to wait for long.
func gatherDue(parts []part, limit int) ([]fencing.Name, fencing.Expiry) {
	var names []fencing.Name
	expiry := fencing.Expiry{Standby: true, Next: maxReapPause}
	first := rand.N(len(parts))
	for i := range parts {
		p := &parts[(first+i)%len(parts)]
		expiry.Standby = expiry.Standby && p.standby
		expiry.Next = min(expiry.Next, p.next)
		if room := limit - len(names); len(p.names) > room {
			p.names, expiry.Next = p.names[:room], 0
		}
		names = append(names, p.names...)
	}
	return names, expiry
}

// dueAt returns what is due in the partitions of a node, on up to limit names.
func (s *Store) dueAt(ctx context.Context, n *node, wanted []int, limit int) (part, error) {
	reaper := s.keys[wanted[0]].reaper
	if elected, err := s.elect(ctx, n, reaper); err != nil {
		return part{next: maxReapPause}, err
	} else if !elected {
		return part{next: maxReapPause, standby: true}, nil
	}
	indexing := s.lookAtIndexes(ctx, n, wanted)
	now, first, left, err := s.firstDue(ctx, n, reaper, wanted)
	if err != nil {
		return part{next: maxReapPause}, err
	}
	p := part{}
	p.names, p.next, err = s.due(ctx, n, now, first, limit)
	if indexing {
		p.next = min(p.next, indexingPause)
	}
	if err == nil && left != nil && !moving(left) { // what moves is done where it goes, the next time
		err = s.unavailable(n.at(left))
	}
	return p, err
}

// elect makes this handle the reaper of a node, or lets it stay so. One whose
// clock differs from the store's can't judge an expiry: it leaves the work to
// others. While the slot of the key is moving everybody is elected, which is of
// no harm: what is due is decided by the rules.
func (s *Store) elect(ctx context.Context, n *node, key string) (bool, error) {
	var set *goredis.StatusCmd
	var clock *goredis.TimeCmd
	guard := fencing.Guard{MaxSkew: s.options.MaxSkew}
	err := s.readNode(ctx, n, func(ctx context.Context, pipe goredis.Pipeliner) {
		guard.Sent = fencing.InstantOf(s.options.Clock())
		clock = pipe.Time(ctx)
		set = pipe.SetArgs(ctx, key, s.handle, goredis.SetArgs{Mode: "NX", TTL: reaperTTL, Get: true})
	})
	if err != nil {
		return false, err
	}
	received := fencing.InstantOf(s.options.Clock())
	reaper, err := set.Result()
	if !errors.Is(err, goredis.Nil) && !moving(err) && reaper != s.handle {
		return false, nil
	}
	now := s.storeNow(clock)
	if now >= guard.Sent.Add(-guard.MaxSkew) && now <= received.Add(guard.MaxSkew) {
		return true, nil
	}
	err = s.readNode(ctx, n, func(ctx context.Context, pipe goredis.Pipeliner) { pipe.Del(ctx, key) })
	if err != nil {
		return false, err
	}
	return false, fencing.SkewError(guard, now)
}

// storeNow returns the store's clock, of which a test may have its own idea.
func (s *Store) storeNow(clock *goredis.TimeCmd) fencing.Instant {
	if s.options.Now != nil {
		return s.options.Now()
	}
	return fencing.InstantOf(clock.Val())
}

// firstDue returns the node's clock and the first expiry of each of its
// partitions, 0 for none. A partition that is moving is left out, and why is the
// error left. Extending the reaper's time goes along: should another have become
// it just now, both work once, which harms nobody.
func (s *Store) firstDue(ctx context.Context, n *node, reaper string, wanted []int) (now fencing.Instant, due []fencing.Instant, left, err error) {
	var clock *goredis.TimeCmd
	firsts := make([]*goredis.ZSliceCmd, s.partitions)
	err = s.readNode(ctx, n, func(ctx context.Context, pipe goredis.Pipeliner) {
		pipe.PExpire(ctx, reaper, reaperTTL)
		clock = pipe.Time(ctx)
		for _, i := range wanted {
			firsts[i] = pipe.ZRangeWithScores(ctx, s.keys[i].expiry, 0, 0)
		}
	})
	if err != nil {
		return 0, nil, nil, err
	}
	due = make([]fencing.Instant, s.partitions)
	for _, i := range wanted {
		if z, err := firsts[i].Result(); err != nil {
			left = err
		} else if len(z) > 0 {
			due[i] = fencing.Instant(z[0].Score)
		}
	}
	return s.storeNow(clock), due, left, nil
}

// due returns up to limit names of a node whose time has run out, and when to ask
// again.
func (s *Store) due(ctx context.Context, n *node, now fencing.Instant, first []fencing.Instant, limit int) ([]fencing.Name, time.Duration, error) {
	next := maxReapPause
	asked := make([]*goredis.ZSliceCmd, s.partitions)
	chunk := max(dueChunk, limit/s.partitions)
	some := false
	for _, at := range first {
		switch {
		case at == 0:
		case at <= now:
			some = true
		default:
			next = min(next, at.Sub(now))
		}
	}
	if !some {
		return nil, next, nil
	}
	err := s.readNode(ctx, n, func(ctx context.Context, pipe goredis.Pipeliner) {
		for i, at := range first {
			if at != 0 && at <= now {
				asked[i] = pipe.ZRangeWithScores(ctx, s.keys[i].expiry, 0, int64(chunk-1))
			}
		}
	})
	if err != nil {
		return nil, 0, err
	}
	var names []fencing.Name
	for _, cmd := range asked {
		if cmd == nil {
			continue
		}
		entries := cmd.Val()
		for _, z := range entries {
			if at := fencing.Instant(z.Score); at > now {
				next = min(next, at.Sub(now))
				break
			}
			if len(names) == limit {
				return names, 0, nil
			}
			names = append(names, fencing.Name(z.Member.(string)))
		}
		if len(entries) == chunk && fencing.Instant(entries[chunk-1].Score) <= now {
			next = 0 // there may be more of them
		}
	}
	return names, next, nil
}
