package redis

import (
	"cmp"
	"context"
	"errors"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// errAnotherServer says that the server is not the one that was to be taken into service.
var errAnotherServer = errors.New("redis: the server was restarted or replaced")

var _ fencing.Node = (*Store)(nil)

// Memory is fencing.Node.Memory. It asks for all on one connection, so of one run of the server.
func (s *Store) Memory(ctx context.Context) (fencing.Memory, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.OperationTimeout, errBudget)
	defer cancel()
	n := s.topology.node(0) // the only one: no member is a Cluster
	if n.client == nil {
		return fencing.Memory{}, s.unavailable(errNoMaster)
	}
	pipe := n.client.Pipeline()
	info, stored := pipe.Info(ctx, identityInfo...), pipe.Get(ctx, s.keys[0].guard)
	_, _ = pipe.Exec(ctx) // the commands hold their errors
	text, err := stored.Result()
	blank := errors.Is(err, goredis.Nil)
	var g guard
	switch {
	case blank:
		err = nil
	case err == nil:
		g, err = decodeGuard(text, s.partitions)
	}
	id, unknown := identify(info.Val())
	if err = cmp.Or(err, info.Err(), unknown); err != nil {
		return fencing.Memory{}, s.unavailable(n.at(err))
	}
	now := fencing.InstantOf(s.options.Clock())
	m := fencing.Memory{
		Server: id.server(), Blank: blank, InService: !blank && g.Server == id.server(),
		Quarantine: max(g.Until.Sub(now), 0), Longest: max(g.Longest(now), s.guards.longest()),
	}
	if !m.InService {
		m.Quarantine = s.options.Quarantine.length(m.Longest)
	}
	return m, nil
}

// Enroll is fencing.Node.Enroll.
func (s *Store) Enroll(ctx context.Context, server string, isNew bool, longest time.Duration) (time.Duration, error) {
	s.guards.noteTTL(longest)
	serves := ""
	decide := func(was *remembered, is *reported) verdict {
		serves = is.server()
		switch {
		case serves != server:
			return withheld
		case is.guard == nil && isNew && was.born == 0:
			return unused
		case is.guard == nil:
			return lost
		}
		asked := *was
		asked.member = false
		if v := reconcile(&asked, is); v != unchanged {
			return v
		}
		return longer // another gateway was first, which may not know of a TTL as long
	}
	n, err := s.topology.node(0), errOvertaken
	for range maxRecoveries {
		if errors.Is(err, errOvertaken) { // by another gateway that enrolls it
			err = s.arriveAt(ctx, n, time.Time{}, decide)
		}
	}
	if err == nil && serves != server {
		err = errAnotherServer
	}
	if err != nil {
		return 0, s.unavailable(n.at(err))
	}
	return s.guards.quarantine(fencing.InstantOf(s.options.Clock())), nil
}
