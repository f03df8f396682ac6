package fencingtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// fact is one thing that an answer says. A case that expects the answer mentions
// every fact with must, and any of the others.
type fact struct {
	key   string
	value any // nil, string, int, time.Duration, fencing.Token, endings or tales
	must  bool
}

// endings are leases that an answer given at now says have ended.
type endings struct {
	ended []fencing.Ended
	now   fencing.Instant
}

// factsOf returns what an answer says, in the order in which it is written.
func factsOf(c *command, r *result, known lexicon) []fact {
	var facts []fact
	add := func(must bool, key string, value any) { facts = append(facts, fact{key, value, must}) }
	switch {
	case r.err != nil:
		if r.err.Late != 0 {
			add(true, "late", r.err.Late)
		}
		if r.err.BreakReason != "" {
			add(true, "break_reason", r.err.BreakReason)
		}
		if r.err.CurrentToken != 0 {
			add(true, "current_token", r.err.CurrentToken)
		}
		if r.err.RetryAfter != 0 {
			add(false, "retry_after", r.err.RetryAfter)
		}
		if r.err.Code == fencing.CodeConflict {
			add(true, "field", r.err.Field)
		}
		if r.err.Position != 0 {
			add(true, "position", r.err.Position)
		}
	case c.verb == "list":
		add(true, "names", listed(r.page.Locks, func(l *fencing.Lock) string { return string(l.Name) }))
		if c.list.Count {
			add(true, "total", r.page.Total)
		}
		add(false, "holders", listed(r.page.Locks, func(l *fencing.Lock) string { return strings.ReplaceAll(leaseLabels(l.Holders, known), ",", "+") }))
		first := func(l *fencing.Lock) string { // of those who wait
			if len(l.Waiters) == 0 {
				return "none"
			}
			return known.leaseLabel(l.Waiters[0].Lease)
		}
		add(false, "waiters", listed(r.page.Locks, first))
		if r.page.Next != "" {
			add(false, "more", nil)
		} else {
			add(false, "end", nil)
		}
	case c.verb == "expire":
		add(false, "ends", len(r.expiry.Ended))
		add(false, "next", r.expiry.Next)
	case c.verb == "stats":
		add(true, "held", r.stats.Held)
		if r.stats.Quarantine > 0 {
			add(true, "quarantine", r.stats.Quarantine)
		}
	case c.verb == "arrive":
		add(true, "quarantine", max(0, r.quarantine.Until.Sub(r.now)))
		add(false, "longest", r.quarantine.Longest(r.now))
	case c.verb == "heartbeat":
		add(false, "has", comma(entryWords(r.entries, known)))
	case c.verb == "heard":
		facts = append(facts, heardFacts(r.heard, known)...)
	default:
		facts = append(facts, gainFacts(c, &r.out, r.now, known)...)
	}
	if f := r.fence(); f != nil {
		if c.verb == "judge" {
			add(true, "verdict", string(f.Verdict))
		}
		add(false, "issued", f.HighestIssued)
		add(false, "admitted", f.HighestAdmitted)
	}
	if lock := r.lock(); lock != nil {
		facts = append(facts, lockFacts(lock, known)...)
	}
	if c.verb == "history" || c.verb == "inspect" {
		past := make([]string, len(r.out.Past))
		for i := range r.out.Past {
			past[i] = known.leaseLabel(r.out.Past[i].Holder.Lease) + ":" + string(r.out.Past[i].Reason)
		}
		add(false, "past", comma(past))
	}
	if ended := r.ended(); len(ended) > 0 {
		add(true, "ended", endings{ended, r.now})
	}
	return append(facts, othersFacts(&r.out, r.now, known)...)
}

// expectation is what a case says about an outcome.
type expectation struct {
	code   fencing.Code
	reason fencing.Reason // of lease_lost
	items  []item
}

func parseExpectation(text string) (*expectation, error) {
	words, err := splitWords(text)
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("an expectation starts with ok or a code")
	}
	e := &expectation{code: fencing.Code(words[0])}
	if e.code != fencing.CodeOK && !slices.Contains(fencing.Codes(), e.code) {
		return nil, fmt.Errorf("%q is not a code", words[0])
	}
	words = words[1:]
	if e.code == fencing.CodeLeaseLost {
		if len(words) == 0 || !slices.Contains(fencing.Reasons(), fencing.Reason(words[0])) {
			return nil, fmt.Errorf("lease_lost is followed by one of %v", fencing.Reasons())
		}
		e.reason, words = fencing.Reason(words[0]), words[1:]
	}
	for _, word := range words {
		it, err := parseItem(word)
		if err != nil {
			return nil, err
		}
		e.items = append(e.items, it)
	}
	return e, nil
}

// lexicon knows the words that stand for tokens and leases in a case.
type lexicon interface {
	bind(label string, name fencing.Name, token fencing.Token) error // from now on label stands for token
	resolve(label string) (fencing.Token, bool)
	tokenLabel(name fencing.Name, token fencing.Token) string
	leaseLabel(fencing.LeasePublic) string
	stampLabel(fencing.Stamp) string
}

// check returns what is wrong with an answer.
func (e *expectation) check(c *command, r *result, known lexicon) error {
	if r.code() != e.code {
		return fmt.Errorf("the outcome is not %s", e.code)
	}
	if r.err != nil && r.err.Reason != e.reason {
		return fmt.Errorf("the reason is not %s", e.reason)
	}
	facts := factsOf(c, r, known)
	for _, f := range facts {
		mentioned := slices.ContainsFunc(e.items, func(it item) bool { return it.key == f.key })
		if f.must && !mentioned {
			return fmt.Errorf("%s is not expected", f.key)
		}
	}
	for _, it := range e.items {
		if it.key == "ended" && it.value == "none" && len(r.ended()) == 0 || it.key == "granted" && it.value == "none" && len(others(&r.out)) == 0 {
			continue
		}
		i := slices.IndexFunc(facts, func(f fact) bool { return f.key == it.key })
		if i < 0 {
			return fmt.Errorf("nothing is said of %s", it.key)
		}
		if err := facts[i].meets(it, c.name, known); err != nil {
			return fmt.Errorf("%s: %w", it.key, err)
		}
	}
	return nil
}

// meets reports whether a fact is as expected. A malformed expectation is an
// error as well.
func (f *fact) meets(it item, name fencing.Name, known lexicon) error {
	var equal, related bool
	switch value := f.value.(type) {
	case nil:
		equal = it.op == ""
	case string:
		equal = value == it.value
	case int:
		want, err := strconv.Atoi(it.value)
		if err != nil {
			return err
		}
		equal, related = value == want, value <= want
	case time.Duration:
		want, err := parseDuration(it.value)
		if err != nil {
			return err
		}
		equal, related = value == want, value > 0 && value <= want
	case fencing.Token:
		return tokenMeets(value, it, name, known)
	case endings:
		equal = value.meet(it.value, known)
	case tales:
		equal = value.meet(it.value, known)
	}
	if it.op == "<=" && related || it.op != "<=" && it.op != ">" && equal {
		return nil
	}
	return fmt.Errorf("not as expected")
}

func tokenMeets(token fencing.Token, it item, name fencing.Name, known lexicon) error {
	if it.value == "none" {
		if token != 0 {
			return fmt.Errorf("there is one")
		}
		return nil
	}
	if it.op == "=" {
		return known.bind(it.value, name, token)
	}
	other, ok := known.resolve(it.value)
	if !ok {
		return fmt.Errorf("%s was not seen yet", it.value)
	}
	if it.op != ">" || token <= other {
		return fmt.Errorf("it is not %s %s", it.op, it.value)
	}
	return nil
}

// meet compares with a list, in any order, of lease:reason or
// lease:reason:how long ago.
func (e endings) meet(want string, known lexicon) bool {
	wanted := strings.Split(want, ",")
	for i, word := range wanted {
		if at := strings.LastIndex(word, ":"); at > strings.Index(word, ":") {
			if ago, err := parseDuration(word[at+1:]); err == nil {
				wanted[i] = word[:at+1] + short(ago)
			}
		}
	}
	if len(e.ended) != len(wanted) {
		return false
	}
	for _, word := range e.words(known) {
		at := slices.IndexFunc(wanted, func(w string) bool {
			return w == word || strings.HasPrefix(word, w+":")
		})
		if at < 0 {
			return false
		}
		wanted = slices.Delete(wanted, at, at+1)
	}
	return true
}

func (e endings) words(known lexicon) []string {
	words := make([]string, len(e.ended))
	for i := range e.ended {
		words[i] = fmt.Sprintf("%s:%s:%s", known.leaseLabel(e.ended[i].Holder.Lease), e.ended[i].Reason, short(e.now.Sub(e.ended[i].At)))
	}
	slices.Sort(words)
	return words
}

// describe writes an answer as a case would expect it.
func describe(c *command, r *result, known lexicon) string {
	b := &strings.Builder{}
	b.WriteString(string(r.code()))
	if r.err != nil && r.err.Reason != "" {
		b.WriteString(" " + string(r.err.Reason))
	}
	for _, f := range factsOf(c, r, known) {
		b.WriteString(" " + f.key)
		switch value := f.value.(type) {
		case nil:
		case string:
			b.WriteString("=" + quote(value))
		case time.Duration:
			b.WriteString("=" + short(value))
		case fencing.Token:
			if value == 0 {
				b.WriteString("=none")
			} else {
				b.WriteString("=" + known.tokenLabel(c.name, value))
			}
		case endings:
			b.WriteString("=" + strings.Join(value.words(known), ","))
		case tales:
			b.WriteString("=" + comma(value.words(known)))
		default:
			fmt.Fprintf(b, "=%v", value)
		}
	}
	return b.String()
}
