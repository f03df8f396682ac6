package quorum

import (
	"context"
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// maxRounds is how often List asks the nodes for one page: what a minority has left
// behind is not shown, so that a round may come to nothing.
const maxRounds = 8

// List implements fencing.Store. It shows what a majority holds; a page may have
// fewer locks than asked for.
func (s *Store) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	var page fencing.ListPage
	if r.Waiting {
		return page, fencing.NoQueueError()
	}
	next := r
	for range maxRounds {
		next.Limit = r.Limit - len(page.Locks)
		locks, more, total, err := s.list(ctx, next)
		if err != nil {
			return fencing.ListPage{}, err
		}
		page.Locks, page.Next = append(page.Locks, locks...), more
		page.Total, next.Count = max(page.Total, total), false
		if more == "" || len(page.Locks) == r.Limit {
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
