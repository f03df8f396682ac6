package embedded

import (
	"context"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/index"
)

// List implements fencing.Store. It may show a grant that is not durable yet, and locks at
// more than one instant: see index.Page.
func (s *Store) List(_ context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	if err := s.Cause(); err != nil {
		return fencing.ListPage{}, fencing.Unavailable(err)
	}
	total := 0
	if r.Count {
		total = s.heldBelow(r.Prefix)
	}
	page := index.Page(r, s.views)
	page.Total = total
	return page, nil
}

func (s *Store) views(v index.View, after fencing.Name) ([]*fencing.Lock, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v.Now, v.Guard = s.now(), guard
	return s.index.Views(v, after)
}

func (s *Store) heldBelow(prefix string) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.HeldBelow(prefix)
}
