package redis

import (
	"cmp"
	"context"
	"time"

	"fencepost/internal/fencing"
)

// dueAtOnce is how many due names a heartbeat looks at, over all partitions, and at
// least dueChunk in each.
const dueAtOnce = 1024

// Heartbeat is fencing.Store.Heartbeat: one operation a partition, and one for each
// name where something is due. It also returns CodeClockSkew. A master that fails
// keeps no other from its part: the error comes after that.
func (s *Store) Heartbeat(ctx context.Context, names []fencing.Name) error {
	byPartition := map[int][]fencing.Name{}
	var commands []*command
	for _, name := range names {
		n := s.partitionOf(name)
		if byPartition[n] == nil {
			commands = append(commands, s.newHeartbeatCommand(n))
		}
		byPartition[n] = append(byPartition[n], name)
	}
	hears := s.hears()
	due := map[fencing.Name]bool{}
	err := s.doAll(ctx, commands, func(c *command, r *reply) error {
		if r.code != fencing.CodeOK {
			return s.refusal(c, r)
		}
		for _, name := range r.due {
			due[name] = true
		}
		if hears == nil {
			return nil
		}
		for _, g := range r.missed {
			hears.Granted(g, r.now, time.Time{})
		}
		if r.lapsed || c.missed {
			hears.Recheck(byPartition[c.partition])
		}
		return nil
	})
	var attend []fencing.Name
	for _, name := range names {
		if due[name] {
			attend = append(attend, name)
			delete(due, name)
		}
	}
	return cmp.Or(err, s.attend(ctx, attend, nil))
}

// attend has done on names what time has brought about, and passes each reply to
// got, unless that is nil.
func (s *Store) attend(ctx context.Context, names []fencing.Name, got func(*reply)) error {
	commands := make([]*command, len(names))
	for i, name := range names {
		commands[i] = s.newCommand(operation{verb: expireVerb, name: name}, nil)
	}
	return s.doAll(ctx, commands, func(c *command, r *reply) error {
		s.announce(c, r)
		if got != nil {
			got(r)
		}
		if r.skewed {
			return fencing.SkewError(fencing.Guard{Sent: c.sent, MaxSkew: s.options.MaxSkew}, r.now)
		}
		return nil
	})
}
