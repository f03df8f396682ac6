package embedded

import (
	"context"

	"fencepost/internal/fencing"
)

const (
	// examinedPerPage bounds how many locks one page looks at, in multiples of the page's
	// limit.
	examinedPerPage = 10

	// examinedAtOnce is how many locks a page looks at before others may write: that many
	// take less than a millisecond.
	examinedAtOnce = 128
)

// List implements fencing.Store. It may show a grant that is not durable yet, and locks at
// more than one instant: what is looked for is looked for while others write.
func (s *Store) List(_ context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	var page fencing.ListPage
	if err := s.Cause(); err != nil {
		return page, fencing.Unavailable(err)
	}
	if r.Count {
		page.Total = s.countHeld(r.Prefix)
	}
	after := r.After
	for left := r.Limit * examinedPerPage; left > 0; {
		n := min(left, examinedAtOnce)
		if !r.Selects() {
			n = min(n, r.Limit-len(page.Locks))
		}
		locks, more := s.views(r.Prefix, after, n, r.Query != "")
		left -= len(locks)
		for i, lock := range locks {
			after = lock.Name
			if lock.Held() && r.Match(lock) {
				lock.Waiters = nil
				page.Locks = append(page.Locks, *lock)
			}
			if len(page.Locks) == r.Limit {
				more, left = more || i+1 < len(locks), 0
				break
			}
		}
		if !more {
			return page, nil
		}
	}
	page.Next = after
	return page, nil
}

// views is index.views, now.
func (s *Store) views(prefix string, after fencing.Name, limit int, waiters bool) ([]*fencing.Lock, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.views(s.state, s.now(), prefix, after, limit, waiters)
}

func (s *Store) countHeld(prefix string) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.countHeld(prefix)
}
