package quorum

import (
	"context"
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// maxRounds is how often List asks the nodes for one page: what a minority has left
// behind is not shown, so that a round may come to nothing. maxRoundsSearched is the same
// where the request selects.
const (
	maxRounds         = 8
	maxRoundsSearched = 10
)

// List implements fencing.Store. It shows what a majority holds; a page may have
// fewer locks than asked for. What is looked for is looked for in that: the nodes
// themselves are asked for all, since one may have another end of a lease than is shown.
func (s *Store) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	var page fencing.ListPage
	if r.Waiting {
		return page, fencing.NoQueueError()
	}
	next := fencing.ListRequest{Prefix: r.Prefix, After: r.After, Count: r.Count}
	rounds := maxRounds
	if r.Selects() {
		rounds = maxRoundsSearched
	}
	for range rounds {
		next.Limit = r.Limit
		if !r.Selects() {
			next.Limit -= len(page.Locks)
		}
		locks, more, total, err := s.list(ctx, next)
		if err != nil {
			return fencing.ListPage{}, err
		}
		page.Next = more
		page.Total, next.Count = max(page.Total, total), false
		for i := range locks {
			if len(page.Locks) == r.Limit { // there is one more, perhaps: so there is a next page
				page.Next = page.Locks[r.Limit-1].Name
				break
			}
			if r.Match(&locks[i]) {
				page.Locks = append(page.Locks, locks[i])
			}
		}
		if page.Next == "" || len(page.Locks) == r.Limit {
			break
		}
		next.After = more
	}
	return page, nil
}

// list asks all nodes once. It returns the locks up to the name where the first of
// them stopped, and that name, empty at the end; and of how many a majority knows, which
// counts also what minorities have left behind.
func (s *Store) list(ctx context.Context, r fencing.ListRequest) ([]fencing.Lock, fencing.Name, int, *fencing.Error) {
	began := s.options.Clock()
	pages := make([]*fencing.ListPage, len(s.nodes))
	err := askMajority(ctx, s, s.call, func(ctx context.Context, node fencing.Node) (fencing.ListPage, error) {
		return node.List(ctx, r)
	}, func(node int, page *fencing.ListPage, _ bool) bool {
		pages[node] = page
		return false
	})
	if err != nil {
		return nil, "", 0, err
	}
	var totals []int
	until := fencing.Name("")
	for _, p := range pages {
		if p != nil && p.Next != "" && (until == "" || p.Next < until) {
			until = p.Next
		}
		if p != nil {
			totals = append(totals, p.Total)
		}
	}
	slices.Sort(totals)
	locks := s.mergePages(pages, until, began)
	if len(locks) > r.Limit {
		locks = locks[:r.Limit]
		until = locks[r.Limit-1].Name
	}
	return locks, until, totals[len(totals)-majorityOf(len(s.nodes))], nil
}

func (s *Store) mergePages(pages []*fencing.ListPage, until fencing.Name, now time.Time) []fencing.Lock {
	views := map[fencing.Name][]*fencing.Lock{}
	for i, p := range pages {
		if p == nil {
			continue
		}
		for j := range p.Locks {
			lock := &p.Locks[j]
			if until != "" && lock.Name > until {
				break
			}
			if views[lock.Name] == nil {
				views[lock.Name] = make([]*fencing.Lock, len(pages))
			}
			views[lock.Name][i] = lock
		}
	}
	var locks []fencing.Lock
	for _, name := range slices.Sorted(maps.Keys(views)) {
		of := views[name]
		for i, p := range pages {
			if p != nil && of[i] == nil { // it has answered, and does not have it
				of[i] = &fencing.Lock{Name: name, Now: fencing.InstantOf(now)}
			}
		}
		if lock := s.merge(name, of, now); lock.Held() {
			locks = append(locks, *lock)
		}
	}
	return locks
}
