package redis

import (
	"context"
	"errors"
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

	// dueChunk is how many names of one partition a call looks at.
	dueChunk = 64
)

// Expire is fencing.Store.Expire. Of several gateways on one Redis one does the
// work. It also returns CodeClockSkew: an expiry is not judged then.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	if elected, err := s.elect(ctx); err != nil {
		return fencing.Expiry{}, err
	} else if !elected {
		return fencing.Expiry{Standby: true, Next: maxReapPause}, nil
	}
	now, first, err := s.firstDue(ctx)
	if err != nil {
		return fencing.Expiry{}, err
	}
	names, next, err := s.due(ctx, now, first, limit)
	if err != nil {
		return fencing.Expiry{}, err
	}
	expiry := fencing.Expiry{Next: next}
	err = s.attend(ctx, names, func(r *reply) {
		expiry.Ended = append(expiry.Ended, r.ended...)
		if r.span > 0 {
			expiry.Next = min(expiry.Next, r.span)
		}
	})
	return expiry, err
}

// elect makes this handle the reaper, or lets it stay so. One whose clock
// differs from the store's can't judge an expiry: it leaves the work to others.
func (s *Store) elect(ctx context.Context) (bool, error) {
	var set *goredis.StatusCmd
	var clock *goredis.TimeCmd
	guard := fencing.Guard{MaxSkew: s.options.MaxSkew}
	err := s.read(ctx, func(ctx context.Context, pipe goredis.Pipeliner) {
		guard.Sent = fencing.InstantOf(s.options.Clock())
		clock = pipe.Time(ctx)
		set = pipe.SetArgs(ctx, reaperKey, s.handle, goredis.SetArgs{Mode: "NX", TTL: reaperTTL, Get: true})
	})
	if err != nil {
		return false, err
	}
	received := fencing.InstantOf(s.options.Clock())
	reaper, err := set.Result()
	if !errors.Is(err, goredis.Nil) && reaper != s.handle {
		return false, nil
	}
	now := s.storeNow(clock)
	if now >= guard.Sent.Add(-guard.MaxSkew) && now <= received.Add(guard.MaxSkew) {
		return true, nil
	}
	err = s.read(ctx, func(ctx context.Context, pipe goredis.Pipeliner) { pipe.Del(ctx, reaperKey) })
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

// firstDue returns the store's clock and the first expiry of each partition, 0
// for none. Extending the reaper's time goes along: should another have become
// it just now, both work once, which harms nobody.
func (s *Store) firstDue(ctx context.Context) (fencing.Instant, *[partitions]fencing.Instant, error) {
	var clock *goredis.TimeCmd
	var firsts [partitions]*goredis.ZSliceCmd
	err := s.read(ctx, func(ctx context.Context, pipe goredis.Pipeliner) {
		pipe.PExpire(ctx, reaperKey, reaperTTL)
		clock = pipe.Time(ctx)
		for i := range firsts {
			firsts[i] = pipe.ZRangeWithScores(ctx, s.keys[i].expiry.(string), 0, 0)
		}
	})
	if err != nil {
		return 0, nil, err
	}
	var due [partitions]fencing.Instant
	for i, first := range firsts {
		if z := first.Val(); len(z) > 0 {
			due[i] = fencing.Instant(z[0].Score)
		}
	}
	return s.storeNow(clock), &due, nil
}

// due returns up to limit names whose time has run out, and when to ask again.
func (s *Store) due(ctx context.Context, now fencing.Instant, first *[partitions]fencing.Instant, limit int) ([]fencing.Name, time.Duration, error) {
	next := maxReapPause
	var asked [partitions]*goredis.ZSliceCmd
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
	err := s.read(ctx, func(ctx context.Context, pipe goredis.Pipeliner) {
		for i, at := range first {
			if at != 0 && at <= now {
				asked[i] = pipe.ZRangeWithScores(ctx, s.keys[i].expiry.(string), 0, dueChunk-1)
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
		if len(entries) == dueChunk && fencing.Instant(entries[dueChunk-1].Score) <= now {
			next = 0 // there may be more of them
		}
	}
	return names, next, nil
}
