package client

import (
	"context"
	"slices"
	"sync"
	"time"
)

// ownLeases are the Leases of a client that are not over, by lease id, and what is under way for a lease id whether there is a
// Lease or not. Of one lease id there may be several: see LeaseID.
type ownLeases struct {
	mu       sync.Mutex
	of       map[string][]*Lease
	renewals map[string][]*renewal
	acquires map[string][]*acquiring // with LeaseID
}

// renewal is a renewal by lease id that is under way. The mu of ownLeases guards over and told.
type renewal struct {
	names []string
	ttl   time.Duration // 0: that of the grant, which is not known here
	begun instant
	over  bool
	told  []*changing // one for each Lease that was told of it
}

func (o *ownLeases) add(l *Lease) {
	o.mu.Lock()
	o.of = with(o.of, l.id, l)
	under := o.renewals[l.id]
	o.mu.Unlock()
	for _, r := range under {
		o.tell(r, l)
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
		return !slices.ContainsFunc(l.held(), func(name string) bool { return slices.Contains(names, name) })
	})
}

// renews notes that a renewal begins, and tells the Leases and acquires of its lease id; those that are added before its end too.
func (o *ownLeases) renews(leaseID string, names []string, ttl time.Duration, begun instant) *renewal {
	r := &renewal{names: names, ttl: ttl, begun: begun}
	o.mu.Lock()
	o.renewals = with(o.renewals, leaseID, r)
	for _, q := range o.acquires[leaseID] {
		q.beside = append(q.beside, r)
	}
	all := o.of[leaseID]
	o.mu.Unlock()
	for _, l := range all {
		o.tell(r, l)
	}
	return r
}

// tell tells a Lease of a renewal, once, if that is under way.
func (o *ownLeases) tell(r *renewal, l *Lease) {
	if !slices.ContainsFunc(l.held(), func(name string) bool { return slices.Contains(r.names, name) }) {
		return
	}
	ttl := r.ttl
	if ttl == 0 {
		ttl = l.renewsFor()
	}
	one := l.changes(ttl) // without mu: a Lease is removed under its own lock
	o.mu.Lock()
	again := r.over || slices.ContainsFunc(r.told, func(other *changing) bool { return other.of == l })
	if !again {
		r.told = append(r.told, one)
	}
	o.mu.Unlock()
	if again { // nothing has come of this one
		l.changed(one, false, true, nil, granted{}, news{}, context.Canceled)
	}
}

// abandoned notes that an attempt of a renewal may be carried out late.
func (o *ownLeases) abandoned(leaseID string, r *renewal) {
	o.mu.Lock()
	told := slices.Clone(r.told)
	for _, q := range o.acquires[leaseID] {
		q.abandoned = shorter(q.abandoned, r.ttl)
	}
	o.mu.Unlock()
	for _, one := range told {
		one.of.abandons(one.ttl, true)
	}
}

// renewed notes the end of a renewal, and returns what the Leases have noted of it.
func (o *ownLeases) renewed(leaseID string, r *renewal) []*changing {
	o.mu.Lock()
	defer o.mu.Unlock()
	r.over = true
	without(o.renewals, leaseID, r)
	return r.told
}

// begins notes that an acquire with LeaseID begins.
func (o *ownLeases) begins(q *acquiring) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acquires = with(o.acquires, q.leaseID, q)
	q.beside = slices.Clone(o.renewals[q.leaseID])
}

func (o *ownLeases) ends(q *acquiring) {
	o.mu.Lock()
	defer o.mu.Unlock()
	without(o.acquires, q.leaseID, q)
}

// beside returns the renewals that were under way beside an acquire, and the shortest TTL of those that may be carried out late; 0: there
// are none.
func (o *ownLeases) beside(q *acquiring) (all []*renewal, abandoned time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return q.beside, q.abandoned
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
