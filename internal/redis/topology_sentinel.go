package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// sentinelEvery is how often the Sentinels are asked though nothing failed. It
// bounds how long a gateway goes on with a master that was cut off from the
// Sentinels but not from the gateway.
const sentinelEvery = time.Second

// staleEpochGrace is for how long Sentinels that only know of earlier fail-overs than others
// did are not believed: the others may be busy. Sentinels that were set up anew
// count from the beginning.
const staleEpochGrace = 10 * time.Second

// sentinels are those who are asked for the master.
type sentinels struct {
	*topology
	epoch int64     // of the last answer that was used
	used  time.Time // when it was
}

var errOutdated = errors.New("redis: the Sentinels that answer know only of earlier fail-overs")

// sentinelReply is what a Sentinel says.
type sentinelReply struct {
	addr  string // of the master
	epoch int64  // grows with every fail-over
	err   error
}

// discover asks all Sentinels and believes the one who knows of the latest
// fail-over: one that was cut off, or has not been told yet, names a master of the
// past.
func (s *sentinels) discover(ctx context.Context) (masterAddrs, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.DialTimeout)
	defer cancel()
	addrs := s.location.addrs
	replies := make([]sentinelReply, len(addrs))
	var asking sync.WaitGroup
	for i, addr := range addrs {
		asking.Go(func() { replies[i] = askSentinel(ctx, s.discoveryClient(addr), s.location.master) })
	}
	asking.Wait()
	said := slices.DeleteFunc(slices.Clone(replies), func(v sentinelReply) bool { return v.err != nil })
	if len(said) == 0 {
		var errs []error
		for i, v := range replies {
			errs = append(errs, fmt.Errorf("the Sentinel at %s: %w", addrs[i], v.err))
		}
		return masterAddrs{}, errors.Join(errs...)
	}
	latest := slices.MaxFunc(said, func(a, b sentinelReply) int { return int(a.epoch - b.epoch) })
	now := time.Now()
	if latest.epoch < s.epoch && now.Sub(s.used) < staleEpochGrace {
		return masterAddrs{}, errOutdated
	}
	s.epoch, s.used = latest.epoch, now
	return slices.Repeat(masterAddrs{latest.addr}, s.location.partitions()), nil
}

// askSentinel asks one. Both commands are needed: in the middle of a fail-over
// the first already names the next master, and only the second tells the epoch.
func askSentinel(ctx context.Context, client *goredis.Client, master string) sentinelReply {
	pipe := client.Pipeline()
	where := goredis.NewStringSliceCmd(ctx, "sentinel", "get-master-addr-by-name", master)
	what := goredis.NewMapStringStringCmd(ctx, "sentinel", "master", master)
	_ = pipe.Process(ctx, where)
	_ = pipe.Process(ctx, what)
	_, err := pipe.Exec(ctx) // without a connection it alone says why: no command has an error
	addr, unknown := where.Result()
	if errors.Is(unknown, goredis.Nil) {
		return sentinelReply{err: errors.New("it watches no master of that name")}
	}
	if err == nil && len(addr) != 2 {
		err = errReply
	}
	if err != nil {
		return sentinelReply{err: err}
	}
	epoch, err := strconv.ParseInt(what.Val()["config-epoch"], 10, 64)
	return sentinelReply{addr: net.JoinHostPort(addr[0], addr[1]), epoch: epoch, err: err}
}
