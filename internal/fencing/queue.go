package fencing

import (
	"cmp"
	"maps"
	"slices"
)

// Place is a place in the queue of a name.
type Place struct {
	Ask      AcquireRequest // as it was first asked; Lease has its public part only
	Secret   SecretHash
	Stamp    Stamp // of the request that waits here, or was the last to
	Gateway  Gateway
	Seq      Instant // the order of arrival: the instant, and later than any before
	JoinedAt Instant
	RestTill Instant // 0: its request is connected
	SetAt    Instant // of a RestTill that was set while the clocks differed when that was, by the store's clock
	SentAt   Instant // and by the gateway's; 0: they agreed
}

// lease returns the public part of the lease id.
func (p *Place) lease() LeasePublic { return p.Ask.Lease.Public() }

// permits returns how many permits it asks for.
func (p *Place) permits() int { return max(1, p.Ask.Permits) }

// over reports whether it rests, and its rest is over at now.
func (p *Place) over(now Instant) bool { return p.RestTill != 0 && p.RestTill <= now }

// compare orders by arrival.
func (p *Place) compare(q *Place) int {
	return cmp.Or(cmp.Compare(p.Seq, q.Seq), cmp.Compare(p.lease(), q.lease()))
}

// waiter returns the public view.
func (p *Place) waiter(now Instant, position int) Waiter {
	return Waiter{Lease: p.lease(), Owner: p.Ask.Owner, Mode: p.Ask.Mode, Limit: p.Ask.Limit, Permits: p.permits(), Position: position, Waiting: now.Sub(p.JoinedAt)}
}

// Queue is the places of a name. The zero Queue is empty, and takes no more room than a pointer: most names never have a place.
type Queue struct{ *places }

// places is what there is of a queue.
type places struct {
	order    []*Place // the connected ones, by arrival
	byLease  map[LeasePublic]*Place
	gateways map[Gateway]int // how many connected ones each has
	resting  map[LeasePublic]*Place
	restTill Instant // no rest ends before; without meaning while no place rests
	last     Instant // the highest Seq given; forgotten when no place is left
}

// look returns the places, which are only to be looked at.
func (q *Queue) look() *places {
	if q.places == nil {
		return &noPlaces
	}
	return q.places
}

var noPlaces places

// use makes room for places.
func (q *Queue) use() {
	if q.places == nil {
		q.places = &places{byLease: map[LeasePublic]*Place{}, gateways: map[Gateway]int{}}
	}
}

// Len returns how many connected places there are, those included whose gateway
// has died unnoticed.
func (q *Queue) Len() int { return len(q.look().order) }

// Places returns how many places there are, connected or resting.
func (q *Queue) Places() int { return len(q.look().byLease) }

// Empty reports whether there is no place, not even a resting one.
func (q *Queue) Empty() bool { return q.Places() == 0 }

// Waiting returns copies of the connected places, in order of arrival.
func (q *Queue) Waiting() []Place {
	places := make([]Place, q.Len())
	for i, p := range q.look().order {
		places[i] = *p
	}
	return places
}

// Resting returns copies of the resting places, in order of arrival.
func (q *Queue) Resting() []Place {
	places := make([]Place, 0, len(q.look().resting))
	for _, p := range q.look().resting {
		places = append(places, *p)
	}
	slices.SortFunc(places, func(a, b Place) int { return a.compare(&b) })
	return places
}

// LastSeq returns the highest Seq given to a place since there was none.
func (q *Queue) LastSeq() Instant { return q.look().last }

// RestoredQueue returns the queue of which Waiting, Resting and LastSeq returned these.
func RestoredQueue(waiting, resting []Place, last Instant) Queue {
	var q Queue
	for i := range waiting {
		q.enter(&waiting[i])
	}
	for i := range resting {
		q.addResting(&resting[i])
	}
	if q.places != nil {
		q.last = last
	}
	return q
}

func (q *Queue) find(lease LeasePublic) *Place { return q.look().byLease[lease] }

// next returns the Seq of an arrival at now.
func (q *Queue) next(now Instant) Instant { return max(q.LastSeq(), now) + 1 }

// enter puts a connected place where its Seq belongs.
func (q *Queue) enter(p *Place) {
	q.use()
	p.RestTill, p.SetAt, p.SentAt = 0, 0, 0
	q.last = max(q.last, p.Seq)
	q.byLease[p.lease()] = p
	q.gateways[p.Gateway]++
	i := len(q.order)
	if i > 0 && p.compare(q.order[i-1]) < 0 {
		i, _ = slices.BinarySearchFunc(q.order, p, (*Place).compare)
	}
	q.order = slices.Insert(q.order, i, p)
}

// rest puts a place that is not in the queue to rest.
func (t *step) rest(p *Place) {
	p.RestTill = t.now.Add(RestTTL)
	p.SetAt, p.SentAt = t.setNow()
	t.record.Queue.addResting(p)
}

// addResting adds a place that rests.
func (q *Queue) addResting(p *Place) {
	q.use()
	if q.resting == nil {
		q.resting = map[LeasePublic]*Place{}
	}
	if len(q.resting) == 0 {
		q.restTill = p.RestTill
	}
	q.restTill = min(q.restTill, p.RestTill)
	q.last = max(q.last, p.Seq)
	q.byLease[p.lease()], q.resting[p.lease()] = p, p
}

// remove takes a place out, connected or resting.
func (q *Queue) remove(p *Place) {
	delete(q.byLease, p.lease())
	if q.Empty() {
		q.last = 0
	}
	if p.RestTill != 0 {
		delete(q.resting, p.lease())
		return
	}
	if q.gateways[p.Gateway]--; q.gateways[p.Gateway] == 0 {
		delete(q.gateways, p.Gateway)
	}
	if q.order[0] == p {
		q.order[0] = nil
		q.order = q.order[1:]
		return
	}
	i, _ := slices.BinarySearchFunc(q.order, p, (*Place).compare)
	q.order = slices.Delete(q.order, i, i+1)
}

// removeAll takes out the connected places of some gateways, the first ones up to
// most, and returns them in order of arrival, and whether there are more.
func (q *Queue) removeAll(of map[Gateway]bool, most int) (removed []*Place, more bool) {
	if q.places == nil {
		return nil, false
	}
	q.order = slices.DeleteFunc(q.order, func(p *Place) bool {
		switch {
		case !of[p.Gateway]:
			return false
		case len(removed) == most:
			more = true
			return false
		}
		removed = append(removed, p)
		delete(q.byLease, p.lease())
		if q.gateways[p.Gateway]--; q.gateways[p.Gateway] == 0 {
			delete(q.gateways, p.Gateway)
		}
		return true
	})
	if q.Empty() {
		q.last = 0
	}
	return removed, more
}

// position returns the place of p among the connected ones, from 1.
func (q *Queue) position(p *Place) int {
	i, _ := slices.BinarySearchFunc(q.order, p, (*Place).compare)
	return i + 1
}

// wake drops places whose rest is over at now, those first that were over first and
// most at most. It returns how many, and whether there are more.
func (q *Queue) wake(now Instant, most int) (dropped int, more bool) {
	if len(q.look().resting) == 0 || now < q.restTill {
		return 0, false
	}
	var over []*Place
	for _, p := range q.resting {
		if p.over(now) {
			over = append(over, p)
		}
	}
	if more = len(over) > most; more {
		slices.SortFunc(over, func(a, b *Place) int {
			return cmp.Or(cmp.Compare(a.RestTill, b.RestTill), cmp.Compare(a.lease(), b.lease()))
		})
		over = over[:most]
	}
	for _, p := range over {
		delete(q.resting, p.lease())
		delete(q.byLease, p.lease())
	}
	q.restTill = 0
	for _, p := range q.resting {
		if q.restTill == 0 || p.RestTill < q.restTill {
			q.restTill = p.RestTill
		}
	}
	if q.Empty() {
		q.last = 0
	}
	return len(over), more
}

func (q *Queue) clone() Queue {
	if q.places == nil {
		return Queue{}
	}
	c := *q.places
	c.order = slices.Clone(q.order)
	c.byLease, c.gateways, c.resting = maps.Clone(q.byLease), maps.Clone(q.gateways), maps.Clone(q.resting)
	for i, p := range q.order {
		copied := *p
		c.order[i], c.byLease[p.lease()] = &copied, &copied
	}
	for lease, p := range q.resting {
		copied := *p
		c.resting[lease], c.byLease[lease] = &copied, &copied
	}
	return Queue{&c}
}
