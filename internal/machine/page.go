package machine

import "fencepost/internal/fencing"

const (
	// examinedPerPage bounds how many locks one page looks at, in multiples of the page's
	// limit.
	examinedPerPage = 10

	// ExaminedAtOnce is how many locks Page looks at before others may write: that many
	// take less than a millisecond.
	ExaminedAtOnce = 128
)

// Page returns the page that is asked for. It may show locks at more than one instant: what
// is looked for is looked for while others write. views is Machine.Views now, for a request: it
// has the state to itself, or shares it with others that look, only until it returns.
func Page(r fencing.ListRequest, views func(v View, after fencing.Name) ([]*fencing.Lock, bool)) (page fencing.ListPage) {
	after := r.After
	for left := r.Limit * examinedPerPage; left > 0; {
		n := min(left, ExaminedAtOnce)
		if !r.Selects() {
			n = min(n, r.Limit-len(page.Locks))
		}
		locks, more := views(View{Prefix: r.Prefix, Limit: n, Waiters: r.LooksAtWaiters()}, after)
		left -= len(locks)
		for i, lock := range locks {
			after = lock.Name
			if lock.Held() && r.Match(lock) {
				r.Trim(lock)
				page.Locks = append(page.Locks, *lock)
			}
			if len(page.Locks) == r.Limit {
				more, left = more || i+1 < len(locks), 0
				break
			}
		}
		if !more {
			return page
		}
	}
	page.Next = after
	return page
}
