package fencingtest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// compare returns how the answer of the store differs from that of the model.
func (d *duel) compare(c *command, r, want *result) error {
	if r.code() != want.code() {
		return fmt.Errorf("the code is %s", r.code())
	}
	if r.code() == fencing.CodeClockSkew {
		return d.compareEnded(r.ended(), nil)
	}
	var faults []error
	check := func(what string, got, want any) {
		if !reflect.DeepEqual(got, want) {
			faults = append(faults, fmt.Errorf("%s is %v instead of %v", what, got, want))
		}
	}
	switch c.verb {
	case "list":
		return d.comparePage(c, r.page, want.page.Locks)
	case "expire", "stats":
	default:
		check("Now", r.out.Now, want.out.Now)
	}
	check("Fresh", r.out.Fresh, want.out.Fresh)
	check("Margin", r.out.Margin, want.out.Margin)
	check("Stats", r.stats, want.stats)
	if c.verb == "acquire" || c.verb == "renew" {
		faults = append(faults, d.compareHolder(c.name, &r.out.Holder, &want.out.Holder))
	}
	if r.err != nil {
		check("Reason", r.err.Reason, want.err.Reason)
		check("Late", r.err.Late, want.err.Late)
		check("RetryAfter", r.err.RetryAfter, want.err.RetryAfter)
		faults = append(faults, d.compareToken("CurrentToken", c.name, r.err.CurrentToken, want.err.CurrentToken))
	}
	faults = append(faults, d.compareLock(r.lock(), want.lock()), d.compareEnded(r.ended(), want.ended()))
	return errors.Join(faults...)
}

// compareToken compares tokens by the grants they belong to: a store with
// several partitions issues others than the model, which has one.
func (d *duel) compareToken(what string, name fencing.Name, token, want fencing.Token) error {
	if token == 0 && want == 0 || slices.ContainsFunc(d.grants[name], func(g *grant) bool {
		return g.tokens == [2]fencing.Token{token, want}
	}) {
		return nil
	}
	return fmt.Errorf("%s is %d (%s) instead of %s", what, token, side{d, ofStore}.tokenLabel(name, token), side{d, ofModel}.tokenLabel(name, want))
}

func (d *duel) compareHolder(name fencing.Name, got, want *fencing.Holder) error {
	faults := []error{d.compareToken("Token", name, got.Token, want.Token)}
	a, b := reflect.ValueOf(*got), reflect.ValueOf(*want)
	for i := range a.NumField() {
		field := a.Type().Field(i).Name
		if field == "Token" || field == "Metadata" && len(got.Metadata) == 0 && len(want.Metadata) == 0 {
			continue
		}
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			faults = append(faults, fmt.Errorf("%s is %v instead of %v", field, x, y))
		}
	}
	return errors.Join(faults...)
}

func (d *duel) compareLock(got, want *fencing.Lock) error {
	if got == nil && want == nil {
		return nil
	}
	if got == nil || want == nil {
		return fmt.Errorf("the view is %v instead of %v", got, want)
	}
	if len(got.Holders) != len(want.Holders) {
		return fmt.Errorf("%d holders instead of %d", len(got.Holders), len(want.Holders))
	}
	faults := []error{d.compareToken("LastToken", want.Name, got.LastToken, want.LastToken)}
	for i := range got.Holders {
		faults = append(faults, d.compareHolder(want.Name, &got.Holders[i], &want.Holders[i]))
	}
	a, b := *got, *want
	a.LastToken, a.Holders, b.LastToken, b.Holders = 0, nil, 0, nil
	if len(a.Waiters) == 0 {
		a.Waiters = nil
	}
	if !reflect.DeepEqual(a, b) {
		faults = append(faults, fmt.Errorf("the lock is %+v instead of %+v", a, b))
	}
	return errors.Join(faults...)
}

func (d *duel) compareEnded(got, want []fencing.Ended) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d leases ended instead of %d", len(got), len(want))
	}
	byName := func(a, b fencing.Ended) int { return cmp.Compare(a.Name, b.Name) }
	got, want = slices.SortedStableFunc(slices.Values(got), byName), slices.SortedStableFunc(slices.Values(want), byName)
	var faults []error
	for i := range got {
		g, w := &got[i], &want[i]
		if g.Name != w.Name || g.Reason != w.Reason || g.At != w.At {
			faults = append(faults, fmt.Errorf("ended is %s on %s at %d instead of %s on %s at %d", g.Reason, g.Name, g.At, w.Reason, w.Name, w.At))
		}
		faults = append(faults, d.compareHolder(w.Name, &g.Holder, &w.Holder))
	}
	return errors.Join(faults...)
}

// comparePage compares a page with all the locks that belong on it and on those
// that follow.
func (d *duel) comparePage(c *command, page fencing.ListPage, all []fencing.Lock) error {
	n := len(page.Locks)
	if n > len(all) {
		return fmt.Errorf("%d locks instead of %d", n, len(all))
	}
	for i := range n {
		if err := d.compareLock(&page.Locks[i], &all[i]); err != nil {
			return fmt.Errorf("lock %d: %w", i, err)
		}
	}
	switch {
	case page.Next == "" && n < len(all):
		return fmt.Errorf("the list ends after %d locks instead of %d", n, len(all))
	case page.Next != "" && n > 0 && page.Next < page.Locks[n-1].Name:
		return fmt.Errorf("the next page starts at %q and repeats what was on this one", page.Next)
	case page.Next != "" && n < len(all) && page.Next >= all[n].Name:
		return fmt.Errorf("the next page starts at %q and leaves out %q", page.Next, all[n].Name)
	case page.Next != "" && page.Next <= c.list.After:
		return fmt.Errorf("the next page starts at %q, where this one did", page.Next)
	}
	return nil
}

// expireModel ends in the model what the store says it has ended, and checks
// that the store was right to leave the rest.
func (d *duel) expireModel(c *command, r *result) (result, error) {
	want := result{now: d.now, err: r.err}
	state := d.model.memory().state
	due := slices.ContainsFunc(slices.Collect(maps.Values(state.Records)), func(record *fencing.Record) bool {
		return len(record.Holders) > 0 && record.Due() <= d.now
	})
	switch {
	case r.err != nil && (!d.skewed(c.handle) || r.err.Code != fencing.CodeClockSkew):
		return want, fmt.Errorf("it can't fail so here: %w", r.err)
	case r.err != nil:
		d.swept[c.handle] = false // what it can't do, it leaves to the other
		return want, nil
	case r.expiry.Standby:
		if !d.swept[1-c.handle] || len(r.expiry.Ended) > 0 {
			return want, errors.New("standby, but the other handle did not do the work when it was last asked, or this one did some")
		}
		want.expiry = r.expiry
		return want, nil
	}
	d.swept[c.handle] = true
	if d.skewed(c.handle) {
		if due {
			return want, errors.New("a lease is due; out of skew it can't be judged, which is to be said")
		}
		r.err = &fencing.Error{Code: fencing.CodeClockSkew} // as well said as not, with nothing to do
		want.err = r.err
		return want, nil
	}

	var names []fencing.Name
	for _, e := range r.expiry.Ended {
		if !slices.Contains(names, e.Name) {
			names = append(names, e.Name)
		}
	}
	for _, name := range names {
		out := fencing.Step(state, d.now, fencing.Guard{}, fencing.ExpireRequest{Name: name})
		want.expiry.Ended = append(want.expiry.Ended, out.Ended...)
	}
	return want, d.checkNext(r.expiry, state)
}

// checkNext checks when the store wants to be called again, against what is left.
func (d *duel) checkNext(expiry fencing.Expiry, left *fencing.State) error {
	var next time.Duration = 1<<63 - 1
	idle := false // a record may be forgotten, which no caller can tell
	for _, record := range left.Records {
		if len(record.Holders) > 0 {
			next = min(next, record.Due().Sub(d.now))
		} else if record.Due() <= d.now {
			idle = true
		}
	}
	switch {
	case expiry.Next > 0 && next <= 0:
		return fmt.Errorf("a lease is left that ran out %s ago, and the next call is only in %s", -next, expiry.Next)
	case expiry.Next > 0 && expiry.Next > next:
		return fmt.Errorf("the next call is in %s, and a lease runs out in %s", expiry.Next, next)
	case expiry.Next == 0 && next > 0 && !idle && len(expiry.Ended) == 0:
		return errors.New("the next call is to be at once, and nothing is due")
	}
	return nil
}
