package client

import (
	"cmp"
	"time"
)

const (
	// maxDoubt bounds how long it is asked, or read, whether a lease is held on which its client does not count
	// meanwhile, until its context is cancelled; twice that after it was replaced. See Lease.judge. It is what an
	// answer may take, and enough for the election of a cluster's new leader.
	maxDoubt = answerTimeout

	// longestLook is how far apart two looks at a lease are at most, unless this process has stood still.
	longestLook = 2 * maxLook
)

// news is what an answer or an event says of how long a lease lives, by this client's clocks.
type news struct {
	sent instant       // when the request was sent that was answered
	at   time.Duration // how long after that it was said, at the earliest
	from time.Duration // how long after that it came about, as far as is known: of an event when it was said
	read instant       // when it was read
	left time.Duration // how long the lease lived when it was said
	ttl  time.Duration // what it was renewed with; 0: an event that does not say

	until  instant       // when the last answer was read that was older, and under way beside it
	quiet  time.Duration // for how long its gateway had said nothing then, where it is this client that has shortened it
	capped bool          // it is less than what was said, for another renewal was under way
}

// remaining returns how long the lease lives from now on at least. It was said no later than it was read, and no
// sooner than the gateway's clock has counted from when the request came: the earlier of the two counts, so
// that a difference of the two clocks adds up for no longer than from one event to the next.
func (n news) remaining(now instant) time.Duration {
	return n.left - max(now.since(n.sent)-n.at, now.since(n.read))
}

// after returns how long after other it was said.
func (n news) after(other news) time.Duration {
	if n.sent.t.Before(other.sent.t) {
		return n.at - other.sent.since(n.sent) - other.at
	}
	return n.sent.since(other.sent) + n.at - other.at
}

// overlaps reports whether nobody knows which of the two came about last: both requests were under way at once.
// So they are where one of the two was under way beside a third, of which other has kept no more than that.
func (n news) overlaps(other news) bool {
	known := other.read
	if other.until.t.After(known.t) {
		known = other.until
	}
	return known.since(n.sent) > n.from && n.read.since(other.sent) > other.from
}

// answered returns what the answer to a request says that was sent then, and read now.
func (c *Client) answered(g granted, sent instant) news {
	return news{sent: sent, at: g.since(), read: c.now(), left: millis(g.ExpiresIn), ttl: g.ttl()}
}

// told returns what an event says that was read then. Where more time has passed for the gateway since the
// request came than for this client since it sent it, this client's clocks are slow, or stood still: that much
// was said sooner, and so is what follows.
func (s *stream) told(g granted, read instant) news {
	at := g.since()
	s.ahead = max(s.ahead, at-read.since(s.sent))
	return news{sent: s.sent, at: at - s.ahead, from: at - s.ahead, read: read, left: millis(g.ExpiresIn), ttl: g.ttl()}
}

// remaining returns how long the lease can be counted on from now on. This is the one place that knows its
// deadline: that of the newest answer or event; once the stream on which it hangs has ended, as far as its gateway
// keeps it after an end that it has seen, too, which is Linger at most. The caller holds mu.
func (l *Lease) remaining(now instant) time.Duration {
	n := l.said()
	if end := l.cut(); end != nil {
		n.left = min(n.left, l.keptAfter(*end)-n.quiet)
	}
	return n.remaining(now)
}

// keptAfter returns for how long a gateway keeps the lease at least that has seen the end of a stream of it, which this
// client read then. The caller holds mu, and the lease hangs on one.
func (l *Lease) keptAfter(end instant) time.Duration {
	switch {
	case l.hangs.taken.Load() != nil: // by what may have no Linger
		return 0
	case l.mayBeLate(end):
		return l.lingerLate
	}
	return l.linger
}

// said returns the newest that was said, as far as it can be counted on whatever is carried out late. The caller holds mu.
func (l *Lease) said() news {
	n := l.news
	n.left = min(n.left, l.most())
	return n
}

// cut returns when this client has seen the stream end on which the lease hangs, or may hang, unless its gateway has said
// that it keeps the lease; nil: it has not. The caller holds mu.
func (l *Lease) cut() *instant {
	if l.hangs == nil {
		return nil
	}
	if end := l.endOf(l.hangs); end != nil {
		return end
	}
	if taken := l.hangs.taken.Load(); taken != nil && l.c.now().since(*taken) > minSlack { // by its own take-over, unless that has no answer yet
		return taken
	}
	for _, s := range l.beside {
		if end := l.endOf(s); end != nil {
			return end
		}
	}
	return nil
}

// endOf returns when the end of a stream was read, or that it was replaced by what may have ended unseen. The caller
// holds mu.
func (l *Lease) endOf(s *stream) *instant {
	if end := s.cut.Load(); end != nil {
		return end
	}
	return l.takenUnseen(s)
}

// marginNow returns how long before the deadline the context ends: by default a tenth of what was said, so that clocks
// which differ by as much do no harm to up to 10 s; never more than half of the TTL. The caller holds mu.
func (l *Lease) marginNow() time.Duration {
	left, most := l.said().left, min(l.most(), l.news.ttl)/2
	if l.news.capped {
		most = min(most, left/2)
	}
	return min(cmp.Or(l.margin, min(max(l.news.ttl, left)/10, maxMargin)), most)
}

// judge says whether the lease may be counted on, and in what time its context has to be cancelled, 0 or less: now.
// These are two things while it can be known in a moment whether it is held, as that may be longer than this client can
// count on: it has seen the end of the stream, and takes the lease over, or this process has stood still, and what the
// stream has said meanwhile is to be read; or nobody has the lease yet, and it is renewed first. It has maxDoubt for
// that, or twice that, and after the end of a stream no longer than it would have counted on the lease otherwise. The
// caller holds mu.
func (l *Lease) judge(now instant) (in time.Duration, counted bool) {
	asleep := now.since(l.looked) > longestLook
	l.looked = now
	left, end := l.remaining(now)-l.marginNow(), l.cut()
	if end != nil && l.hangs.cut.Load() == nil && l.hangs.taken.Load() == nil { // of another stream: who listens to this one does not know
		l.detach()
	}
	if left > 0 {
		l.woken = nil
		return left, true
	}
	if since := l.unproven; since != nil && now.since(*since) < maxDoubt {
		return maxDoubt - now.since(*since), false
	}
	if end != nil {
		patience := maxDoubt
		if taken := l.hangs.taken.Load(); taken != nil { // an answer may have been waited for already when it was read, for maxDoubt at most
			patience, end = 2*maxDoubt, taken
		}
		return min(patience-now.since(*end), l.said().remaining(now)-l.marginNow()), false
	}
	if asleep && l.hangs != nil && l.woken == nil { // of a process that is starved each look is late
		l.woken = &now
	}
	if l.woken != nil {
		return maxDoubt - now.since(*l.woken), false
	}
	return 0, false
}

// look judges the lease, and ends it when its time has come. Of one that is over it returns 0 and false.
func (l *Lease) look(now instant) (in time.Duration, counted bool) {
	l.mu.Lock()
	over := l.over != nil
	if !over {
		in, counted = l.judge(now)
	}
	l.mu.Unlock()
	if !over && in <= 0 {
		l.finish(l.unknown())
	}
	return max(0, in), counted
}

// chance returns how long it is until the context has to be cancelled, 0 or less: it is time, or over.
func (l *Lease) chance() time.Duration {
	in, _ := l.look(l.c.now())
	return in
}

// isOver reports whether the lease is over for good. While Err is not nil it may still be asked for.
func (l *Lease) isOver() bool { return l.chance() <= 0 }

// settled waits until it is known whether the lease may be counted on, for twice maxDoubt at most, and returns what Err
// does.
func (l *Lease) settled() error {
	for {
		in, counted := l.look(l.c.now())
		if counted || in <= 0 {
			return l.Err()
		}
		sleep(l.kept, min(in, minLook))
	}
}

// renewed takes over what an answer or an event says, unless newer ones are known. A lease that is over stays so.
func (l *Lease) renewed(g granted, n news) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.take(g, n)
}

// take is renewed. Of two renewals with different TTLs that were under way at once the store may have carried out either
// last: what lasts shorter counts, and where that is much less, the lease is renewed at once. The caller holds mu.
func (l *Lease) take(g granted, n news) {
	if n.ttl == 0 {
		if l.renewsWith() < l.granted { // its gateway may not have known: the answers to this client's renewals count
			return
		}
		if n.ttl = min(l.granted, n.left); l.bounded || l.notice != nil { // its end comes sooner, whatever it was renewed with
			n.ttl = l.granted
		}
	} else {
		l.isTold(n.ttl)
	}
	n.left, n.ttl = min(n.left, l.renewsWith()), min(n.ttl, l.renewsWith())
	last := l.news
	longer, passed := n.remaining(n.read)-last.remaining(n.read), n.after(last)
	if n.overlaps(last) && n.ttl != last.ttl {
		if passed < 0 && n.ttl < last.ttl {
			l.news.left, l.news.ttl, l.news.capped = last.left+min(0, longer), n.ttl, true
		} else if passed >= 0 && n.ttl > last.ttl {
			n.left, n.ttl, n.capped = n.left-max(0, longer), last.ttl, true
		}
		if less := min(n.remaining(n.read), last.remaining(n.read)); max(longer, -longer) > less/4 {
			l.hurry()
		}
	}
	if passed < 0 {
		if n.overlaps(last) {
			l.news.until = n.read
		}
		return
	}
	l.takeNotice(g, n)
	if l.bounded && passed > minSlack/10 {
		l.ends = longer < passed/2
	}
	l.unproven = nil
	l.news, l.due, l.last = n, n.at+cmp.Or(millis(g.RenewIn), n.ttl/3), nil
}
