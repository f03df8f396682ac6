package fencing

import (
	"fmt"
	"strings"
	"time"
)

// AdviceCode says what an Advice is about.
type AdviceCode string

// The kinds of advice.
const (
	AdviceRenewalLate     AdviceCode = "renewal_late"     // a holder that has renewed is about to run out
	AdviceHeldLong        AdviceCode = "held_long"        // a holder renews, but holds much longer than others did
	AdviceTTLShort        AdviceCode = "ttl_short"        // leases ran out that had not been renewed
	AdviceNotReleased     AdviceCode = "not_released"     // the same, though what was released was released early
	AdviceRenewalsStopped AdviceCode = "renewals_stopped" // leases ran out that had been renewed
	AdviceHeldBeyondTTL   AdviceCode = "held_beyond_ttl"  // leases are mostly held for longer than the TTL
	AdviceTTLLong         AdviceCode = "ttl_long"         // leases are held for a small part of the TTL
)

// AdviceCodes lists every kind of advice.
func AdviceCodes() []AdviceCode {
	return []AdviceCode{
		AdviceRenewalLate, AdviceHeldLong, AdviceTTLShort, AdviceNotReleased, AdviceRenewalsStopped, AdviceHeldBeyondTTL, AdviceTTLLong,
	}
}

// Advice is a remark on how one lock is used, for people. Nothing follows from it.
type Advice struct {
	Code AdviceCode
	Text string // a sentence; nothing in it comes from a client

	Lease LeasePublic   // the live holder that it is about; empty: it is about leases that have ended
	Count int           // how many of the leases that were looked at are so
	Of    int           // how many were looked at: live holders, or ended leases with the TTL; MaxHistory at most of these
	TTL   time.Duration // of the holder; that the ended leases were granted with
	Held  time.Duration // how long the holder has had the lock; the longest time that those of Count were held, or for AdviceNotReleased and AdviceTTLLong those that were released
}

const (
	// adviceLeast is of how many ended leases a remark can be made: fewer are chance.
	adviceLeast = 4

	// adviceShare is the part of the ended leases, one in so many, that has to have run out
	// before that is remarked on, and it has to be more than one.
	adviceShare = 4

	// adviceFactor is how much longer than the longest of the ended leases something has to
	// be before it is called long: a holder's time, or a TTL.
	adviceFactor = 10

	// adviceSlack is what part, one in so many, of a TTL counts for nothing: what a quorum
	// shows of a lease is put together from answers that came one after the other.
	adviceSlack = 20

	// adviceLong is what is never called long: the wait for a holder that has died is
	// bearable, and nobody is stuck.
	adviceLong = time.Minute
)

// Advise remarks on how a lock is used, as can be told from the view of it and the
// leases that ended last, the newest first, as Inspect returns both. A lease counts as
// renewed if it was to end later than its grant said; so does one that has outlived a
// restart of the embedded store.
func Advise(lock *Lock, past []Ended) []Advice {
	var all []Advice
	add := func(a Advice, found bool) {
		if found {
			all = append(all, a)
		}
	}
	add(adviseRenewal(lock))
	add(adviseStuck(lock, past))
	s := sample(lock, past)
	if s.of >= adviceLeast {
		add(s.ranOut())
		add(s.stopped())
		add(s.beyond())
		add(s.long())
	}
	return all
}

// adviseRenewal finds the holder that has least left of its TTL, of those that have missed
// a renewal: one is due when two thirds are left, and a second one could have been tried.
func adviseRenewal(lock *Lock) (a Advice, found bool) {
	var least time.Duration
	for i := range lock.Holders {
		h := &lock.Holders[i]
		left := h.ExpiresAt.Sub(lock.Now)
		if h.Provisional || !h.renewed() || h.bounded() || left >= h.TTL/3 {
			continue
		}
		a.Count++
		if found && left >= least {
			continue
		}
		found, least = true, left
		a.Lease, a.TTL, a.Held = h.Lease, h.TTL, lock.Now.Sub(h.AcquiredAt)
	}
	a.Code, a.Of = AdviceRenewalLate, lock.HolderCount
	a.Text = fmt.Sprintf("a holder that renewed before has %s of its TTL of %s left: it should have renewed with two thirds left",
		spell(least), spell(a.TTL))
	return a, found
}

// adviseStuck finds the holder that has had the lock for longest, if that is much longer
// than others have had it: it renews, and may do nothing else.
func adviseStuck(lock *Lock, past []Ended) (a Advice, found bool) {
	longest := longestOf(past)
	for i := range lock.Holders {
		h := &lock.Holders[i]
		held := lock.Now.Sub(h.AcquiredAt)
		if h.Provisional || h.Left() || !h.renewed() || held <= max(adviceLong, h.TTL, adviceFactor*longest) {
			continue
		}
		a.Count++
		if held > a.Held {
			a.Lease, a.TTL, a.Held = h.Lease, h.TTL, held
		}
	}
	a.Code, a.Of = AdviceHeldLong, lock.HolderCount
	a.Text = fmt.Sprintf("a holder has had the lock for %s, while the last %d leases were held for at most %s: it renews, but may be stuck",
		spell(a.Held), len(past), spell(longest))
	return a, a.Count > 0 && len(past) >= adviceLeast
}

// sampled is what is known of the ended leases of a name that were granted with one TTL.
type sampled struct {
	ttl      time.Duration
	of       int
	released []Ended
	unheard  []Ended // they ran out, and had never been renewed
	fallen   []Ended // they ran out, and had been renewed
	outlived []Ended // they were held for longer than the TTL
}

// sample sorts the ended leases that were granted with the TTL that the newest lease was
// granted with: who has changed it wants to hear of that one.
func sample(lock *Lock, past []Ended) (s sampled) {
	switch {
	case len(lock.Holders) > 0:
		s.ttl = lock.Holders[len(lock.Holders)-1].GrantTTL
	case len(past) > 0:
		s.ttl = past[0].Holder.GrantTTL
	}
	for i := range past {
		e := &past[i]
		if e.Holder.GrantTTL != s.ttl {
			continue
		}
		s.of++
		switch {
		case e.Reason == ReasonReleased:
			s.released = append(s.released, *e)
		case e.Reason == ReasonExpired && e.Holder.bounded(): // as its holder wanted it
		case e.Reason == ReasonExpired && e.Holder.renewed():
			s.fallen = append(s.fallen, *e)
		case e.Reason == ReasonExpired:
			s.unheard = append(s.unheard, *e)
		}
		if e.Held() > s.ttl+s.ttl/adviceSlack && !e.Holder.Left() {
			s.outlived = append(s.outlived, *e)
		}
	}
	return s
}

// several reports whether so many are enough to remark on.
func (s *sampled) several(count int) bool { return count > 1 && count*adviceShare >= s.of }

// ranOut remarks on leases that nobody renewed or released: the TTL is too short for
// the work, unless it is known to be long enough.
func (s *sampled) ranOut() (Advice, bool) {
	longest := longestOf(s.released)
	if len(s.released) > 0 && longest <= s.ttl/2 {
		return s.advice(AdviceNotReleased, len(s.unheard), longest, fmt.Sprintf(
			"%s expired, though released ones were held for at most %s: their holders died or did not release, and kept others out for the whole TTL",
			s.last(len(s.unheard)), spell(longest))), s.several(len(s.unheard))
	}
	return s.advice(AdviceTTLShort, len(s.unheard), longestOf(s.unheard), fmt.Sprintf(
		"%s expired without a renewal: if the work takes longer, renew or use a longer TTL",
		s.last(len(s.unheard)))), s.several(len(s.unheard))
}

func (s *sampled) stopped() (Advice, bool) {
	return s.advice(AdviceRenewalsStopped, len(s.fallen), longestOf(s.fallen), fmt.Sprintf(
		"%s expired after a renewal: their holders died, were paused, or renew too late; renew when renew_in_ms says",
		s.last(len(s.fallen)))), s.several(len(s.fallen))
}

func (s *sampled) beyond() (Advice, bool) {
	longest := longestOf(s.outlived)
	return s.advice(AdviceHeldBeyondTTL, len(s.outlived), longest, fmt.Sprintf(
		"%s were held for longer than that, up to %s: they depend on renewals in time",
		s.last(len(s.outlived)), spell(longest))), 2*len(s.outlived) >= s.of
}

// long remarks on a TTL that only a holder that has died would use.
func (s *sampled) long() (Advice, bool) {
	longest := longestOf(s.released)
	return s.advice(AdviceTTLLong, len(s.released), longest, fmt.Sprintf(
		"the last %d leases with a TTL of %s were released after at most %s: if a holder dies, others wait for up to the whole TTL",
		s.of, spell(s.ttl), spell(longest))), len(s.released) == s.of && s.ttl > adviceLong && longest <= s.ttl/adviceFactor
}

func (s *sampled) last(count int) string {
	return fmt.Sprintf("%d of the last %d leases with a TTL of %s", count, s.of, spell(s.ttl))
}

func (s *sampled) advice(code AdviceCode, count int, held time.Duration, text string) Advice {
	return Advice{Code: code, Text: text, Count: count, Of: s.of, TTL: s.ttl, Held: held}
}

func longestOf(past []Ended) (longest time.Duration) {
	for i := range past {
		longest = max(longest, past[i].Held())
	}
	return longest
}

// renewed reports whether a lease ends later than its grant said.
func (h *Holder) renewed() bool {
	return h.ExpiresAt.Sub(h.AcquiredAt) > h.GrantTTL+h.GrantTTL/adviceSlack
}

// bounded reports whether a lease ends when it does because its holder wanted that.
func (h *Holder) bounded() bool {
	return h.Left() || h.MaxHold > 0 && h.ExpiresAt.Sub(h.AcquiredAt) >= h.MaxHold-h.MaxHold/adviceSlack
}

// spell writes a duration for people, rounded up: it stands behind "at most".
func spell(d time.Duration) string {
	unit := time.Second
	switch {
	case d < time.Second:
		unit = time.Millisecond
	case d < 10*time.Second:
		unit = 100 * time.Millisecond
	}
	if rest := d % unit; rest > 0 {
		d += unit - rest
	}
	return roundTimes.Replace(d.String())
}

// roundTimes leaves out the zeros behind whole hours and minutes.
var roundTimes = strings.NewReplacer("h0m0s", "h", "m0s", "m")
