package redis

import (
	"cmp"
	"context"
	"time"

	"fencepost/internal/fencing"
)

const (
	// dueAtOnce is how many due names a heartbeat looks at, over all partitions, and at
	// least dueChunk in each.
	dueAtOnce = 1024

	// heartbeatPage is how many entries of a gateway one operation reads: Redis takes
	// about 0.3 ms for them (BenchmarkInstructions).
	heartbeatPage = 512

	// heartbeatPatience is for how long a heartbeat asks for further pages; the next one goes
	// on, so that a Redis that is far away hears each in time.
	heartbeatPatience = fencing.HeartbeatInterval / 2
)

// staleTelling is how old an unfinished telling is that is begun anew: what has come
// before its place meanwhile would be told of too late.
const staleTelling = 2 * fencing.HeartbeatInterval

// telling is how far the listener has been told what there is for this gateway in a
// partition: leases, and behind them places.
type telling struct {
	names  []fencing.Name // of the heartbeat under way
	after  string         // the last entry that was told of
	since  time.Time      // when the first was asked for
	paused time.Time      // when the heartbeat ended that did not finish it
	leases bool           // leases alone, for another one goes on behind them
	done   bool
}

// Heartbeat is fencing.Store.Heartbeat: one operation a partition, which is the sign of
// life and tells a page of what there is for the gateway, then one for each name where
// something is due, and then further pages. Each begins with the leases, for a message
// about one may be lost. It also returns CodeClockSkew. A master that fails keeps no other from its part.
func (s *Store) Heartbeat(ctx context.Context, names []fencing.Name) error {
	told, of := map[int]*telling{}, map[*command]*telling{}
	var commands []*command
	ask := func(n int, t *telling, due int) *command {
		c := s.newHeartbeatCommand(n, t.after, due)
		of[c] = t
		return c
	}
	patience := time.Now().Add(s.heartbeatPatience)
	for _, name := range names {
		n := s.partitionOf(name)
		if told[n] == nil {
			told[n] = s.beginTelling(n)
			commands = append(commands, ask(n, told[n], max(dueChunk, dueAtOnce/s.partitions)))
			if told[n].after != "" {
				commands = append(commands, ask(n, &telling{after: leaseEntry, since: time.Now(), leases: true}, 0))
			}
		}
		told[n].names = append(told[n].names, name)
	}
	groups := groupByNode(commands, func(c *command) *node { return s.topology.node(c.partition) })
	err := inParallel(len(groups), func(i int) (err error) {
		page, telling := groups[i].of, map[*command]*telling{}
		for _, c := range page {
			telling[c] = of[c]
		}
		for len(page) > 0 {
			var next []*command
			var due []fencing.Name
			failed := s.doAll(ctx, page, func(c *command, r *reply) error {
				if r.code != fencing.CodeOK {
					return s.refusal(c, r)
				}
				t := telling[c]
				due = append(due, t.due(r)...)
				if s.tell(t, r); !t.done && time.Now().Before(patience) {
					further := s.newHeartbeatCommand(c.partition, t.after, 0)
					telling[further] = t
					next = append(next, further)
				}
				return nil
			})
			err, page = cmp.Or(err, failed, s.attend(ctx, due, nil)), next
		}
		return err
	})
	for n, t := range told {
		if !t.done && t.after != "" {
			t.paused = time.Now()
			s.tellings.Store(n, t)
		}
	}
	return err
}

// beginTelling goes on where the last heartbeat ended, or begins anew.
func (s *Store) beginTelling(partition int) *telling {
	if t, unfinished := s.tellings.LoadAndDelete(partition); unfinished {
		if t := t.(*telling); time.Since(t.paused) < staleTelling {
			t.names = nil
			return t
		}
	}
	return &telling{since: time.Now()}
}

// tell passes a page on.
func (s *Store) tell(t *telling, r *reply) {
	var complete []fencing.Name
	t.after = cmp.Or(r.last, t.after)
	if t.done = !r.more || t.leases && t.after[:1] != leaseEntry; t.done {
		complete = t.names
	}
	if hears := s.hears(); hears != nil && (len(r.entries) > 0 || complete != nil) {
		hears.Has(complete, t.since, r.entries)
	}
}

// due returns those of the names where something is due.
func (t *telling) due(r *reply) (due []fencing.Name) {
	is := map[fencing.Name]bool{}
	for _, name := range r.due {
		is[name] = true
	}
	for _, name := range t.names {
		if is[name] {
			due = append(due, name)
		}
	}
	return due
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
