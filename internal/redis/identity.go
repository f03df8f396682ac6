package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// identity is who serves, as INFO says.
type identity struct {
	run      string // of the process
	promoted string // the replication id that it had as a replica; empty if it was none
	master   bool
	sentinel bool  // it is none of Redis at all
	evicted  int64 // keys, in this run
	uptime   time.Duration
	asked    time.Time // before it answered
	since    time.Time // by then it was this server: it ran, or, once promoted, was checked
}

// server names who serves: another name means that what was there may be behind.
// A server that is promoted again, which may have missed what others granted
// meanwhile, has another one too.
func (i *identity) server() string {
	if i.promoted == "" {
		return i.run
	}
	return i.run + ":" + i.promoted
}

// same reports whether a server of an earlier name has lost nothing since: the
// memory of a promotion goes when there have been no replicas for long.
func (i *identity) same(server string) bool {
	return server == i.server() || i.promoted == "" && runOf(server) == i.run
}

// runOf returns which run of a process a server's name is of.
func runOf(server string) string {
	run, _, _ := strings.Cut(server, ":")
	return run
}

// identityInfo are the sections of INFO that identify reads.
var identityInfo = []string{"server", "replication", "stats"}

// identify reads INFO.
func identify(info string) (identity, error) {
	fields := parseInfo(info)
	i := identity{
		run: fields["run_id"], promoted: fields["master_replid2"],
		master: fields["role"] == "master", sentinel: fields["redis_mode"] == "sentinel",
	}
	i.evicted, _ = strconv.ParseInt(fields["evicted_keys"], 10, 64)
	if s, _ := strconv.ParseInt(fields["uptime_in_seconds"], 10, 64); s > 1 { // a difference of whole seconds
		i.uptime = time.Duration(s-1) * time.Second
	}
	if strings.Trim(i.promoted, "0") == "" {
		i.promoted = ""
	}
	if i.run == "" {
		return i, errReply
	}
	return i, nil
}

// errReplica says that a server is no master (any more): nothing has been run.
var errReplica = errors.New("redis: the server is a replica")

// errSentinel says that a server is a Sentinel.
var errSentinel = errors.New("redis: the server is a Sentinel")

// askIdentity asks who serves at the other end of a connection. Only a master is no error.
func (s *Store) askIdentity(ctx context.Context, conn *goredis.Conn) (identity, error) {
	asked := s.options.Clock()
	info, err := conn.Info(ctx, identityInfo...).Result()
	if err != nil {
		return identity{}, err
	}
	id, err := identify(info)
	if err != nil {
		return id, err
	}
	s.topology.answered.Store(true)
	id.asked, id.since = asked, s.options.Clock()
	if known := s.guards.server(id.run); id.same(known.name) {
		id.since = known.since
	} else if id.promoted == "" {
		id.since = id.since.Add(-id.uptime)
	}
	switch {
	case id.sentinel:
		return id, errSentinel
	case !id.master:
		return id, errReplica
	}
	return id, nil
}
