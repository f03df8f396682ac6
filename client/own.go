package client

import (
	"context"
	"slices"
	"sync"
	"time"
)

// ownLeases are the Leases of a client that are not over, by lease id, and what is under way for a lease id whether
// there is a Lease or not. Of one lease id there may be several: see LeaseID.
type ownLeases struct {
	mu       sync.Mutex
	of       map[string][]*Lease
	renewals map[string][]*renewal
	acquires map[string][]*acquiring // with LeaseID
}

// renewal is a renewal by lease id. The mu of ownLeases guards ended, over, doubtful and told.
type renewal struct {
	names    []string
	ttl      time.Duration // 0: that of the grant, which is not known here
	begun    instant
	ended    instant
	over     bool
	doubtful bool        // an attempt may be carried out late
	told     []*changing // one for each Lease that was told of it
}

// add has calls with its lease id find a Lease. It refuses one without a stream where this client was granted a stream
// with its names, or gave one up, while q asked: which of the two the store has come to last is not known, and q is to
// ask again.
func (o *ownLeases) add(q *acquiring, l *Lease) bool {
	o.mu.Lock()
	if l.attached {
		o.overtakes(q)
	} else if q.overtaken {
		o.mu.Unlock()
		return false
	}
	o.of = with(o.of, l.id, l)
	under := o.renewals[l.id]
	o.mu.Unlock()
	for _, r := range under {
		o.tell(r, l)
	}
	return true
}

// overtaken notes that the stream of an acquire was granted, which takes what others were granted, or ends, which may
// release it.
func (o *ownLeases) overtaken(q *acquiring) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.overtakes(q)
}

// overtakes has the other acquires of the lease id ask again that are under way for the same names. The caller holds mu.
func (o *ownLeases) overtakes(by *acquiring) {
	for _, q := range o.acquires[by.call.leaseID] {
		q.overtaken = q.overtaken || q != by && share(q.names, by.names)
	}
}

func (o *ownLeases) remove(l *Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	without(o.of, l.id, l)
}

// own returns the Leases of this client with a lease id that have any of the names.
func (c *Client) own(leaseID string, names []string) []*Lease {
	c.leases.mu.Lock()
	all := c.leases.of[leaseID]
	c.leases.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(all), func(l *Lease) bool {
		return !share(l.held(), names)
	})
}

// share reports whether two lists have a name in common.
func share(a, b []string) bool {
	return slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
}

// renews notes that a renewal begins, and tells the Leases and acquires of its lease id; those that are added before
// its end too.
func (o *ownLeases) renews(leaseID string, names []string, ttl time.Duration, begun instant) *renewal {
	r := &renewal{names: names, ttl: ttl, begun: begun}
	o.mu.Lock()
	o.renewals = with(o.renewals, leaseID, r)
	for _, q := range o.acquires[leaseID] {
		q.besides(r)
	}
	all := o.of[leaseID]
	o.mu.Unlock()
	for _, l := range all {
		o.tell(r, l)
	}
	return r
}

// tell tells a Lease of a renewal, once, if that is under way. It does so without mu: a Lease is removed under its own lock.
func (o *ownLeases) tell(r *renewal, l *Lease) {
	if !share(l.held(), r.names) {
		return
	}
	ttl := r.ttl
	if ttl == 0 {
		ttl = l.renewsFor()
	}
	one := l.changes(ttl)
	o.mu.Lock()
	again := r.over || slices.ContainsFunc(r.told, func(other *changing) bool { return other.of == l })
	if !again {
		r.told = append(r.told, one)
	}
	doubtful := r.doubtful && !again
	o.mu.Unlock()
	if again { // nothing has come of this one
		l.changed(one, false, true, nil, granted{}, news{}, context.Canceled)
	}
	l.abandons(ttl, doubtful)
}

// abandoned notes that an attempt of a renewal may be carried out late.
func (o *ownLeases) abandoned(leaseID string, r *renewal) {
	o.mu.Lock()
	r.doubtful = true
	told := slices.Clone(r.told)
	for _, q := range o.acquires[leaseID] {
		if share(q.names, r.names) {
			q.abandoned = shorter(q.abandoned, r.ttl)
		}
	}
	o.mu.Unlock()
	for _, one := range told {
		one.of.abandons(one.ttl, true)
	}
}

// renewed notes the end of a renewal and whether it was granted, and returns what the Leases have noted of it.
func (o *ownLeases) renewed(leaseID string, r *renewal, granted bool, now instant) []*changing {
	o.mu.Lock()
	defer o.mu.Unlock()
	r.over, r.ended = true, now
	without(o.renewals, leaseID, r)
	for _, q := range o.acquires[leaseID] {
		q.beside = slices.DeleteFunc(slices.Clone(q.beside), func(other *renewal) bool {
			switch {
			case other == r: // it has changed nothing, or q.abandoned has it
				return !granted
			case !granted || !other.over || r.ttl == 0 || !containsAll(r.names, other.names):
				return false
			}
			return r.ttl <= other.ttl || r.begun.t.After(other.ended.t) // r was carried out last, or leaves less
		})
	}
	return r.told
}

// begins notes that an acquire with LeaseID begins.
func (o *ownLeases) begins(q *acquiring) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acquires = with(o.acquires, q.leaseID, q)
}

func (o *ownLeases) ends(q *acquiring) {
	o.mu.Lock()
	defer o.mu.Unlock()
	without(o.acquires, q.leaseID, q)
}

// asks notes that an acquire with LeaseID sends a request, and has it know what is under way and which Leases there are.
func (o *ownLeases) asks(q *acquiring) {
	if q.leaseID == "" {
		return
	}
	o.mu.Lock()
	q.overtaken, q.beside = false, nil
	for _, r := range o.renewals[q.leaseID] {
		q.besides(r)
	}
	o.mu.Unlock()
	for _, l := range q.c.own(q.leaseID, q.names) { // after that: what has come since overtakes
		if !slices.Contains(q.older, l) {
			q.older = append(q.older, l)
		}
	}
}

// besides notes a renewal that is under way beside a request. The caller holds the mu of ownLeases.
func (q *acquiring) besides(r *renewal) {
	if r.ttl == 0 || !share(q.names, r.names) {
		return
	}
	if q.beside = append(q.beside, r); r.doubtful {
		q.abandoned = shorter(q.abandoned, r.ttl)
	}
}

// beside returns the renewals that were under way beside an acquire's last request and may be carried out after it, and
// the shortest TTL of those that may be carried out late; 0: there are none.
func (o *ownLeases) beside(q *acquiring) (all []*renewal, abandoned time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(q.beside), q.abandoned
}

// shorter returns the shorter of two TTLs, of which 0 is none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

func with[T any](all map[string][]T, id string, one T) map[string][]T {
	if all == nil {
		all = map[string][]T{}
	}
	all[id] = append(slices.Clone(all[id]), one) // a copy: others read what they were given
	return all
}

func without[T comparable](all map[string][]T, id string, one T) {
	if left := slices.DeleteFunc(slices.Clone(all[id]), func(other T) bool { return other == one }); len(left) > 0 {
		all[id] = left
	} else {
		delete(all, id)
	}
}
