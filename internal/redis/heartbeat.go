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

	// heartbeatPage is how many entries of a gateway one operation reads: Redis takes about 0.3 ms for
	// those of a few names (BenchmarkInstructions), and 1.5 ms if each is of a name of its own.
	heartbeatPage = 512

	// heartbeatBudget is for how long a heartbeat asks for further pages; the next one goes
	// on, so that a Redis that is far away hears each in time.
	heartbeatBudget = fencing.HeartbeatInterval / 2
)

// staleCursor is how old a cursor is that is begun anew: what has come before it
// meanwhile would be told of too late.
const staleCursor = 2 * fencing.HeartbeatInterval

// cursor is how far the listener has been told what there is for this gateway in a
// partition: leases that are not confirmed, behind them places, and then what hangs on streams.
type cursor struct {
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
	cursors, of := map[int]*cursor{}, map[*command]*cursor{}
	var commands []*command
	ask := func(n int, t *cursor, due int) *command {
		c := s.newHeartbeatCommand(n, t.after, due)
		of[c] = t
		return c
	}
	until := time.Now().Add(s.heartbeatBudget)
	for _, name := range names {
		n := s.partitionOf(name)
		if cursors[n] == nil {
			cursors[n] = s.takeCursor(n)
			commands = append(commands, ask(n, cursors[n], max(dueChunk, dueAtOnce/s.partitions)))
			if cursors[n].after != "" {
				commands = append(commands, ask(n, &cursor{after: leaseEntry, since: time.Now(), leases: true}, 0))
			}
		}
		cursors[n].names = append(cursors[n].names, name)
	}
	groups := groupByNode(commands, func(c *command) *node { return s.topology.node(c.partition) })
	err := inParallel(len(groups), func(i int) (err error) {
		page, here := groups[i].of, map[*command]*cursor{}
		for _, c := range page {
			here[c] = of[c]
		}
		for len(page) > 0 {
			var next []*command
			var due []fencing.Name
			failed := s.doAll(ctx, page, func(c *command, r *reply) error {
				if r.code != fencing.CodeOK {
					return s.refusal(c, r)
				}
				t := here[c]
				due = append(due, t.due(r)...)
				if s.report(t, r); !t.done && time.Now().Before(until) {
					further := s.newHeartbeatCommand(c.partition, t.after, 0)
					here[further] = t
					next = append(next, further)
				}
				return nil
			})
			err, page = cmp.Or(err, failed, s.expireNames(ctx, due, nil)), next
		}
		return err
	})
	for n, t := range cursors {
		if !t.done && t.after != "" {
			t.paused = time.Now()
			s.cursors.Store(n, t)
		}
	}
	return err
}

// takeCursor goes on where the last heartbeat ended, or begins anew.
func (s *Store) takeCursor(partition int) *cursor {
	if t, unfinished := s.cursors.LoadAndDelete(partition); unfinished {
		if t := t.(*cursor); time.Since(t.paused) < staleCursor {
			t.names = nil
			return t
		}
	}
	return &cursor{since: time.Now()}
}

// report passes a page on.
func (s *Store) report(t *cursor, r *reply) {
	var complete []fencing.Name
	t.after = cmp.Or(r.last, t.after)
	if t.done = !r.more || t.leases && t.after[:1] != leaseEntry; t.done {
		complete = t.names
	}
	if listener := s.currentListener(); listener != nil && (len(r.entries) > 0 || complete != nil) {
		listener.Has(complete, t.since, r.entries)
	}
}

// due returns those of the names where something is due.
func (t *cursor) due(r *reply) (due []fencing.Name) {
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

// expireNames has done on names what time has brought about, and passes each reply to
// got, unless that is nil.
func (s *Store) expireNames(ctx context.Context, names []fencing.Name, got func(*reply)) error {
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
