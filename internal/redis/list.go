package redis

import (
	"context"
	"slices"
	"sort"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

// maxPagesSearched bounds how many pages of names one call that selects looks
// at: the caller goes on from Next.
const maxPagesSearched = 10

// List is fencing.Store.List. Names come from the partitions' indexes in order,
// so a page costs the same however many locks there are. The partitions are not
// read at the same instant.
func (s *Store) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	names := newNameMerge(s.partitions, r.Prefix, r.After, r.Limit)
	names.counts = r.Count
	page, err := s.listNames(ctx, names, r)
	page.Total = names.total
	return page, err
}

// listNames makes a page of what names are there.
func (s *Store) listNames(ctx context.Context, names *nameMerge, r fencing.ListRequest) (page fencing.ListPage, err error) {
	for searched := 0; ; {
		batch, err := s.nextNames(ctx, names, r.Limit+1)
		if err != nil {
			return fencing.ListPage{}, err
		}
		locks, err := s.locks(ctx, batch, r.LooksAtWaiters())
		if err != nil {
			return fencing.ListPage{}, err
		}
		for i := range locks {
			if !locks[i].Held() || !r.Match(&locks[i]) {
				continue
			}
			if len(page.Locks) == r.Limit { // there is one more: so there is a next page
				page.Next = page.Locks[r.Limit-1].Name
				return page, nil
			}
			r.Trim(&locks[i])
			page.Locks = append(page.Locks, locks[i])
		}
		if len(batch) <= r.Limit { // fewer than asked for: the end
			return page, nil
		}
		if searched++; r.Selects() && searched == maxPagesSearched {
			page.Next = batch[len(batch)-1]
			return page, nil
		}
	}
}

// locks returns the views of names, in their order; with waiters they list them.
func (s *Store) locks(ctx context.Context, names []fencing.Name, waiters bool) ([]fencing.Lock, error) {
	at := make(map[fencing.Name]int, len(names))
	commands := make([]*command, len(names))
	for i, name := range names {
		at[name], commands[i] = i, s.newCommand(operation{verb: listVerb, name: name, limit: fencing.MaxHoldersShown, waits: waiters}, nil)
	}
	locks := make([]fencing.Lock, len(names))
	err := s.doAll(ctx, commands, func(c *command, r *reply) error {
		locks[at[c.name]] = r.lock
		return nil
	})
	return locks, err
}

// nameMerge walks the names of all partitions in order. It holds a few names of
// each partition, and asks again only those that ran out.
type nameMerge struct {
	min   string // of ZLEXCOUNT
	max   string // of that and ZRANGEBYLEX
	chunk int64  // names to ask a partition for
	runs  []nameRun
	ready []string // in order; every name still in runs or in Redis comes later

	counts bool // total is to be found with the first names
	total  int  // how many names there are from min to max
}

// nameRun is what is known of one partition.
type nameRun struct {
	names []string
	next  string // where to ask on
	end   bool   // Redis has no more than names
}

func newNameMerge(partitions int, prefix string, after fencing.Name, limit int) *nameMerge {
	// Twice the expected share and a few more: the first round trip is nearly
	// always the only one.
	m := &nameMerge{max: "+", chunk: int64(limit/partitions*2 + 4), runs: make([]nameRun, partitions)}
	from := "(" + wholeMark
	if prefix != "" {
		from, m.max = "["+prefix, "("+prefix+"\xff" // names are ASCII
	}
	m.min = from
	if string(after) >= prefix && after != "" {
		from = "(" + string(after)
	}
	for i := range m.runs {
		m.runs[i].next = from
	}
	return m
}

// nextNames returns up to n further names; fewer only at the end.
func (s *Store) nextNames(ctx context.Context, m *nameMerge, n int) ([]fencing.Name, error) {
	for len(m.ready) < n {
		more, err := s.refill(ctx, m)
		if err != nil {
			return nil, err
		}
		m.gather()
		if !more {
			break
		}
	}
	names := make([]fencing.Name, min(n, len(m.ready)))
	for i := range names {
		names[i] = fencing.Name(m.ready[i])
	}
	m.ready = m.ready[len(names):]
	return names, nil
}

// gather makes ready what nothing can come before any more: the names up to the
// first end of a run that goes on.
func (m *nameMerge) gather() {
	horizon := ""
	for i := range m.runs {
		if r := &m.runs[i]; !r.end {
			if last := r.names[len(r.names)-1]; horizon == "" || last < horizon {
				horizon = last
			}
		}
	}
	had := len(m.ready)
	for i := range m.runs {
		r := &m.runs[i]
		n := len(r.names)
		if horizon != "" {
			n = sort.Search(n, func(k int) bool { return r.names[k] > horizon })
		}
		m.ready = append(m.ready, r.names[:n]...)
		r.names = r.names[n:]
	}
	slices.Sort(m.ready[had:])
}

// refill asks the partitions that ran out for more names, in one round trip to
// each master. It reports whether any goes on.
func (s *Store) refill(ctx context.Context, m *nameMerge) (more bool, err error) {
	asked, counted := make([]*goredis.StringSliceCmd, s.partitions), make([]*goredis.IntCmd, s.partitions)
	var out []int
	for i := range m.runs {
		if len(m.runs[i].names) == 0 && !m.runs[i].end {
			out = append(out, i)
		}
	}
	err = s.readPartitions(ctx, out, func(ctx context.Context, pipe goredis.Pipeliner, i int) {
		asked[i] = pipe.ZRangeByLex(ctx, s.keys[i].names, &goredis.ZRangeBy{Min: m.runs[i].next, Max: m.max, Count: m.chunk})
		if m.counts {
			counted[i] = pipe.ZLexCount(ctx, s.keys[i].names, m.min, m.max)
		}
	})
	if err != nil {
		return false, err
	}
	m.counts = false // all partitions were asked
	for i, cmd := range asked {
		if cmd == nil {
			continue
		}
		if counted[i] != nil {
			m.total += int(counted[i].Val())
		}
		r := &m.runs[i]
		r.names = cmd.Val()
		if r.end = int64(len(r.names)) < m.chunk; !r.end {
			r.next = "(" + r.names[len(r.names)-1]
		}
	}
	return m.more(), nil
}

func (m *nameMerge) more() bool {
	return slices.ContainsFunc(m.runs, func(r nameRun) bool { return !r.end })
}
