package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

var errTooLate = errors.New("redis: the answer took so long that nothing was left of the lease")

// Acquire is fencing.Store.Acquire.
func (s *Store) Acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	tail, err := encodeTail(&r)
	if err != nil {
		return fencing.Outcome{}, err
	}
	c := s.newLeaseCommand(acquireScript, r.Name, r.Lease.Public())
	c.claim, c.tail = encodeClaim(c.claim, r.Lease, r.Stamp), tail
	c.ttl = r.TTL.Microseconds()
	if r.MaxHold > 0 {
		c.ttl = min(c.ttl, r.MaxHold.Microseconds())
	}
	return s.lease(ctx, c, &r)
}

// Renew is fencing.Store.Renew.
func (s *Store) Renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, error) {
	c := s.newLeaseCommand(renewScript, r.Name, r.Lease.Public())
	c.claim, c.ttl = encodeHolder(c.claim, r.Lease), r.TTL.Microseconds()
	return s.lease(ctx, c, nil)
}

// Release is fencing.Store.Release.
func (s *Store) Release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	c := s.newLeaseCommand(releaseScript, r.Name, r.Lease.Public())
	c.claim = encodeHolder(c.claim, r.Lease)
	return s.run(ctx, c).result()
}

// TakeBack is fencing.Store.TakeBack.
func (s *Store) TakeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, error) {
	c := s.newLeaseCommand(takeBackScript, r.Name, r.Lease.Public())
	c.claim = encodeClaim(c.claim, r.Lease, r.Stamp)
	return s.run(ctx, c).result()
}

// Break is fencing.Store.Break.
func (s *Store) Break(ctx context.Context, r fencing.BreakRequest) (fencing.Outcome, error) {
	c := s.newCommand(breakScript, r.Name)
	c.claim = fmt.Appendf(c.claim[:0], "%016d", r.Token)
	return s.run(ctx, c).result()
}

// Inspect is fencing.Store.Inspect.
func (s *Store) Inspect(ctx context.Context, r fencing.InspectRequest) (fencing.Outcome, error) {
	a := s.run(ctx, s.newCommand(inspectScript, r.Name))
	if a.err == nil {
		a.Lock = a.record.View(r.Name, a.Now)
	}
	return a.result()
}

// answer is what a command came to.
type answer struct {
	fencing.Outcome
	record  *fencing.Record // if the script showed it
	granted grant
	took    time.Duration // since it was sent
	err     error         // the store could not be asked
}

func (a answer) result() (fencing.Outcome, error) {
	if a.err != nil {
		return fencing.Outcome{}, a.err
	}
	return a.Outcome.Result()
}

// lease runs a command whose success is a lease; asked is what an acquire asked
// for. One that is over by the time the answer is here is not handed on: P9.
func (s *Store) lease(ctx context.Context, c *command, asked *fencing.AcquireRequest) (fencing.Outcome, error) {
	a := s.run(ctx, c)
	if a.err != nil || a.Err != nil {
		return a.result()
	}
	switch {
	case a.granted.token != 0 && asked != nil:
		a.Holder = fencing.Holder{
			Lease: asked.Lease.Public(), Owner: asked.Owner, Metadata: asked.Metadata,
			Mode: fencing.ModeExclusive, Limit: 1, Slot: fencing.NoSlot, Hold: 1, Token: a.granted.token,
			TTL: asked.TTL, GrantTTL: asked.TTL, MaxHold: asked.MaxHold, AcquiredAt: a.Now, ExpiresAt: a.granted.expiresAt,
		}
	case a.record != nil && len(a.record.Holders) == 1:
		a.Holder = a.record.Holders[0].Holder
	default:
		return fencing.Outcome{}, fencing.Unavailable(errReply)
	}
	if a.took >= a.Holder.ExpiresAt.Sub(a.Now) {
		return fencing.Outcome{}, fencing.Unavailable(errTooLate)
	}
	return a.result()
}

// run runs a command and lets go of it.
func (s *Store) run(ctx context.Context, c *command) answer {
	r, err := s.do(ctx, c)
	if err != nil {
		return answer{err: err}
	}
	defer s.free(c)
	a := answer{took: s.options.Clock().Sub(c.sentAt), granted: r.granted}
	if a.record, err = r.record(0); err != nil {
		return answer{err: fencing.Unavailable(err)}
	}
	if a.record != nil {
		s.sender.saw(c.partition, a.record.LastToken)
	}
	s.sender.saw(c.partition, r.granted.token)
	a.Outcome = fencing.Outcome{Now: r.now, Fresh: r.fresh, Margin: r.margin, Ended: r.ended}
	if r.code != fencing.CodeOK {
		a.Err = s.refusal(c, &r, a.record)
	}
	return a
}

// Stats is fencing.Store.Stats. It asks every partition, in one round trip.
func (s *Store) Stats(ctx context.Context) (fencing.Stats, error) {
	var counts [partitions]*goredis.IntCmd
	err := s.read(ctx, func(ctx context.Context, pipe goredis.Pipeliner) {
		for i := range counts {
			counts[i] = pipe.ZCard(ctx, s.keys[i].names.(string))
		}
	})
	if err != nil {
		return fencing.Stats{}, err
	}
	var stats fencing.Stats
	for _, count := range counts {
		stats.Held += int(count.Val())
	}
	return stats, nil
}

// Check is fencing.Store.Check. It also returns CodeClockSkew: a store whose
// clock differs grants nothing.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.run(ctx, s.newCommand(checkScript, "")).result()
	return err
}
