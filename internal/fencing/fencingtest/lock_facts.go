package fencingtest

import (
	"maps"
	"slices"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// gainFacts are what an answer says of the lease or the place that it is about.
func gainFacts(c *command, out *fencing.Outcome, now fencing.Instant, known lexicon) []fact {
	var facts []fact
	add := func(must bool, key string, value any) { facts = append(facts, fact{key, value, must}) }
	if out.Fresh {
		add(true, "fresh", nil)
	}
	if c.verb == "renew" {
		add(false, "margin", out.Margin)
	}
	if c.verb == "acquire" && out.Waits() {
		add(true, "waits", nil)
	}
	if out.Joined {
		add(true, "joined", nil)
	}
	if p := out.Place; p != nil {
		add(true, "position", p.Position)
		add(false, "waiting_for", p.Waiting)
	}
	if h := &out.Holder; h.Token != 0 {
		if h.Provisional {
			add(true, "provisional", nil)
		}
		if h.Claimed {
			add(true, "claimed", nil)
		}
		for _, f := range holderFacts(h, now) {
			f.must = f.key == "hold" && c.verb == "release" || f.key == "breaks_in"
			facts = append(facts, f)
		}
	}
	return facts
}

// others are the grants of a step to others than its caller.
func others(out *fencing.Outcome) []fencing.Holder {
	var holders []fencing.Holder
	for i := range out.Granted {
		if h := &out.Granted[i].Holder; h.Token != out.Holder.Token {
			holders = append(holders, *h)
		}
	}
	return holders
}

// othersFacts are what an answer says of others than its caller.
func othersFacts(out *fencing.Outcome, now fencing.Instant, known lexicon) []fact {
	var facts []fact
	if out.Replaced != nil {
		facts = append(facts, fact{"replaced", known.stampLabel(out.Replaced.Stamp), true})
	}
	if granted := others(out); len(granted) > 0 {
		facts = append(facts, fact{"granted", leaseLabels(granted, known), true})
		for i := range granted {
			facts = append(facts, prefixed(&granted[i], now, known)...)
		}
	}
	if out.Evicted != nil {
		facts = append(facts, fact{"evicted", known.leaseLabel(out.Evicted.Waiter.Lease), true})
		if asks := out.Evicted.Request; asks != nil {
			facts = append(facts, fact{"asks", known.stampLabel(asks.Stamp), false})
		}
	}
	if len(out.Left) > 0 {
		left := make([]string, len(out.Left))
		for i := range out.Left {
			left[i] = known.leaseLabel(out.Left[i].Lease)
		}
		facts = append(facts, fact{"left", comma(left), true})
	}
	return facts
}

// lockFacts are what a view says. Without a prefix they are about the first of
// several holders.
func lockFacts(lock *fencing.Lock, known lexicon) []fact {
	var facts []fact
	add := func(must bool, key string, value any) { facts = append(facts, fact{key, value, must}) }
	if lock.Held() {
		add(true, "holder", leaseLabels(lock.Holders, known))
		if len(lock.Holders) > 0 { // else the store shows none of those it counts
			facts = append(facts, holderFacts(&lock.Holders[0], lock.Now)...)
		}
	} else {
		add(true, "free", nil)
	}
	if delayed := lock.Delayed(); delayed != 0 {
		add(true, "delayed", delayed)
	}
	for i := range lock.Holders {
		if i > 0 {
			facts = append(facts, prefixed(&lock.Holders[i], lock.Now, known)...)
		}
	}
	add(false, "waiting", lock.Waiting)
	waiters := make([]string, len(lock.Waiters))
	for i := range lock.Waiters {
		waiters[i] = known.leaseLabel(lock.Waiters[i].Lease)
	}
	add(false, "waiters", comma(waiters))
	add(false, "last_token", lock.LastToken)
	add(false, "admitted", lock.HighestAdmitted)
	return facts
}

// entryWords are the entries of a gateway, in order of names and leases.
func entryWords(entries []fencing.Entry, known lexicon) []string {
	words := make([]string, len(entries))
	for i, e := range entries {
		words[i] = known.leaseLabel(e.Lease)
		if e.Provisional {
			words[i] += "~"
		}
		if e.Attached {
			words[i] += ":" + known.stampLabel(e.Stamp)
		}
	}
	return words
}

// heardFacts are what a gateway was told.
func heardFacts(heard []message, known lexicon) []fact {
	facts := []fact{{"told", tales(heard), true}}
	var replaced, asks []string
	for i := range heard {
		if stamp := heard[i].asks; stamp != "" {
			asks = append(asks, known.stampLabel(stamp))
		}
		if stamp := heard[i].replaced; stamp != "" {
			replaced = append(replaced, known.stampLabel(stamp))
		}
	}
	if len(replaced) > 0 {
		slices.Sort(replaced)
		facts = append(facts, fact{"replaced", comma(replaced), true})
	}
	if len(asks) > 0 {
		slices.Sort(asks)
		facts = append(facts, fact{"asks", comma(asks), true})
	}
	return facts
}

// tales are the messages that a gateway was told; those of grants count.
type tales []message

func (t tales) words(known lexicon) []string {
	var words []string
	for i := range t {
		if t[i].replaced+t[i].asks != "" {
			continue
		}
		h := &t[i].holder
		word := known.leaseLabel(h.Lease)
		if label := known.tokenLabel(t[i].name, h.Token); strings.HasPrefix(label, "#") {
			word += label
		}
		words = append(words, word+mark(h))
	}
	return words
}

// meet compares with a list, in any order, of leases with or without the labels
// of their tokens.
func (t tales) meet(want string, known lexicon) bool {
	words := t.words(known)
	if want == "none" {
		return len(words) == 0
	}
	wanted := strings.Split(want, ",")
	for _, word := range words {
		lease, rest, numbered := strings.Cut(word, "#")
		if numbered && strings.HasSuffix(rest, "~") {
			lease += "~"
		}
		at := slices.IndexFunc(wanted, func(w string) bool { return w == word || w == lease })
		if at < 0 {
			return false
		}
		wanted = slices.Delete(wanted, at, at+1)
	}
	return len(wanted) == 0
}

// holderFacts are what is said of one lease.
func holderFacts(h *fencing.Holder, now fencing.Instant) []fact {
	facts := []fact{
		{key: "token", value: h.Token},
		{key: "mode", value: string(h.Mode)},
		{key: "limit", value: h.Limit},
		{key: "slot", value: h.Slot},
		{key: "permits", value: h.Permits},
		{key: "hold", value: h.Hold},
		{key: "expires_in", value: remaining(h, now)},
		{key: "held_for", value: now.Sub(h.AcquiredAt)},
		{key: "waited", value: h.Waited},
		{key: "ttl", value: h.TTL},
		{key: "granted_ttl", value: h.GrantTTL},
		{key: "max_hold", value: h.MaxHold},
		{key: "owner", value: h.Owner},
	}
	if h.Slot == fencing.NoSlot {
		facts[3].value = "none"
	}
	if h.Slots != "" {
		facts = append(facts, fact{key: "slots", value: string(h.Slots)})
	}
	attached := "no"
	if h.Attached != "" {
		attached = "yes"
	}
	facts = append(facts, fact{key: "attached", value: attached}, fact{key: "epoch", value: int(h.Epoch)})
	if h.BreakAt != 0 {
		facts = append(facts, fact{key: "breaks_in", value: h.BreakAt.Sub(now)}, fact{key: "break_reason", value: h.BreakReason})
	}
	if h.LockDelay != 0 {
		facts = append(facts, fact{key: "lock_delay", value: h.LockDelay})
	}
	metadata := h.Metadata.Map()
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		facts = append(facts, fact{key: "meta." + key, value: metadata[key]})
	}
	return append(facts, fact{key: "entries", value: len(metadata)})
}

// prefixed are holderFacts with the label of the lease before each.
func prefixed(h *fencing.Holder, now fencing.Instant, known lexicon) []fact {
	facts := holderFacts(h, now)
	for i := range facts {
		facts[i].key = known.leaseLabel(h.Lease) + "." + facts[i].key
	}
	return facts
}

// mark tells a provisional lease.
func mark(h *fencing.Holder) string {
	if h.Provisional {
		return "~"
	}
	return ""
}

func leaseLabels(holders []fencing.Holder, known lexicon) string {
	words := make([]string, len(holders))
	for i := range holders {
		words[i] = known.leaseLabel(holders[i].Lease) + mark(&holders[i])
	}
	return comma(words)
}

func listed(locks []fencing.Lock, word func(*fencing.Lock) string) string {
	words := make([]string, len(locks))
	for i := range locks {
		words[i] = word(&locks[i])
	}
	return comma(words)
}

func comma(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ",")
}

// remaining returns the time a holder has left at now.
func remaining(h *fencing.Holder, now fencing.Instant) time.Duration { return h.ExpiresAt.Sub(now) }
