package fencingtest

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"fencepost/internal/fencing"
)

// compare returns how the answer of the store differs from that of the model.
func (d *comparison) compare(c *command, r, want *result) error {
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
		check("Total", r.page.Total, want.page.Total)
		return errors.Join(append(faults, d.comparePage(c, r.page, want.page.Locks))...)
	case "heard":
		return d.compareHeard(r.heard, want.heard)
	case "arrive":
		check("the server", r.quarantine.Server, want.quarantine.Server)
		check("the longest TTL", r.quarantine.Longest(r.now), want.quarantine.Longest(want.now))
		check("the end of the quarantine", max(d.now, r.quarantine.Until), max(d.now, want.quarantine.Until))
		return errors.Join(faults...)
	case "heartbeat":
		check("what the gateway has", r.entries, want.entries) // what else it does is seen in the views, and heard
		return errors.Join(faults...)
	case "expire", "stats":
	default:
		check("Now", r.out.Now, want.out.Now)
	}
	check("Fresh", r.out.Fresh, want.out.Fresh)
	check("Margin", r.out.Margin, want.out.Margin)
	if stats := r.stats; d.skew[c.handle] == 0 { // else it is told by the gateway's clock
		check("Stats", stats, want.stats)
	} else {
		check("Stats.Held", stats.Held, want.stats.Held)
	}
	check("Joined", r.out.Joined, want.out.Joined)
	check("Place", deref(r.out.Place), deref(want.out.Place))
	faults = append(faults, d.compareHolder(c.name, &r.out.Holder, &want.out.Holder),
		d.compareGranted(r.out.Granted, want.out.Granted), d.compareReplaced(r.out.Replaced, want.out.Replaced))
	faults = append(faults, d.compareEvicted(r.out.Evicted, want.out.Evicted))
	if len(r.out.Left) > 0 || len(want.out.Left) > 0 {
		check("Left", r.out.Left, want.out.Left)
	}
	if err := d.compareEnded(r.out.Past, want.out.Past); err != nil {
		faults = append(faults, fmt.Errorf("what is past: %w", err))
	}
	faults = append(faults, d.compareFence(c.name, r.fence(), want.fence()))
	if r.err != nil {
		check("Reason", r.err.Reason, want.err.Reason)
		check("Field", r.err.Field, want.err.Field)
		if want.err.Code == fencing.CodeConflict {
			check("Detail", r.err.Detail, want.err.Detail)
		}
		check("Late", r.err.Late, want.err.Late)
		check("RetryAfter", r.err.RetryAfter, want.err.RetryAfter)
		check("Position", r.err.Position, want.err.Position)
		check("BreakReason", r.err.BreakReason, want.err.BreakReason)
		faults = append(faults, d.compareToken("CurrentToken", c.name, r.err.CurrentToken, want.err.CurrentToken))
	}
	faults = append(faults, d.compareLock(r.lock(), want.lock()), d.compareEnded(r.ended(), want.ended()))
	return errors.Join(faults...)
}

// compareToken compares tokens by the grants they belong to: a store with
// several partitions issues others than the model, which has one.
func (d *comparison) compareToken(what string, name fencing.Name, token, want fencing.Token) error {
	if token == 0 && want == 0 || slices.ContainsFunc(d.grants[name], func(g *grant) bool {
		return g.tokens == [2]fencing.Token{token, want}
	}) {
		return nil
	}
	return fmt.Errorf("%s is %d (%s) instead of %s", what, token, side{d, ofStore}.tokenLabel(name, token), side{d, ofModel}.tokenLabel(name, want))
}

func (d *comparison) compareFence(name fencing.Name, got, want *fencing.Fence) error {
	if got == nil || want == nil {
		if got != want {
			return fmt.Errorf("the fence is %v instead of %v", got, want)
		}
		return nil
	}
	faults := []error{
		d.compareToken("HighestIssued", name, got.HighestIssued, want.HighestIssued),
		d.compareToken("HighestAdmitted", name, got.HighestAdmitted, want.HighestAdmitted),
	}
	if got.Verdict != want.Verdict {
		faults = append(faults, fmt.Errorf("the verdict is %q instead of %q", got.Verdict, want.Verdict))
	}
	return errors.Join(faults...)
}

func (d *comparison) compareHolder(name fencing.Name, got, want *fencing.Holder) error {
	faults := []error{d.compareToken("Token", name, got.Token, want.Token)}
	a, b := reflect.ValueOf(*got), reflect.ValueOf(*want)
	for i := range a.NumField() {
		field := a.Type().Field(i).Name
		if field == "Token" {
			continue
		}
		if x, y := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(x, y) {
			faults = append(faults, fmt.Errorf("%s is %v instead of %v", field, x, y))
		}
	}
	return errors.Join(faults...)
}

// compareGranted compares what a step granted, in order.
func (d *comparison) compareGranted(got, want []fencing.Grant) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d leases were granted instead of %d", len(got), len(want))
	}
	var faults []error
	for i := range got {
		g, w := &got[i], &want[i]
		if g.Name != w.Name || g.Stamp != w.Stamp {
			faults = append(faults, fmt.Errorf("granted is %s to the request %s instead of %s to %s", g.Name, g.Stamp, w.Name, w.Stamp))
		}
		faults = append(faults, d.compareGateway(g.Gateway, w.Gateway), d.compareHolder(w.Name, &g.Holder, &w.Holder))
	}
	return errors.Join(faults...)
}

func (d *comparison) compareReplaced(got, want *fencing.Parked) error {
	switch {
	case d.caps.Quorum && got == nil: // it tells the gateway alone
		return nil
	case got == nil && want == nil:
		return nil
	case got == nil || want == nil:
		return fmt.Errorf("Replaced is %v instead of %v", got, want)
	case got.Stamp != want.Stamp:
		return fmt.Errorf("Replaced is the request %s instead of %s", got.Stamp, want.Stamp)
	}
	return d.compareGateway(got.Gateway, want.Gateway)
}

func (d *comparison) compareEvicted(got, want *fencing.Eviction) error {
	switch {
	case got == nil && want == nil:
		return nil
	case got == nil || want == nil:
		return fmt.Errorf("the eviction is %v instead of %v", got, want)
	case got.Waiter != want.Waiter || got.Reason != want.Reason:
		return fmt.Errorf("evicted is %v for %q instead of %v for %q", got.Waiter, got.Reason, want.Waiter, want.Reason)
	case (got.Request == nil) != (want.Request == nil):
		return fmt.Errorf("the request that was evicted is %v instead of %v", got.Request, want.Request)
	case got.Request == nil:
		return nil
	case got.Request.Stamp != want.Request.Stamp:
		return fmt.Errorf("evicted is the request %s instead of %s", got.Request.Stamp, want.Request.Stamp)
	}
	return d.compareGateway(got.Request.Gateway, want.Request.Gateway)
}

// compareGateway learns how the store names the gateways of its handles, and
// checks that it keeps to it.
func (d *comparison) compareGateway(got, want fencing.Gateway) error {
	handle := 0
	if d.model.handles[0].gateway != want {
		handle = 1
	}
	if got == "" || d.gateways[1-handle] == got || d.gateways[handle] != "" && d.gateways[handle] != got {
		return fmt.Errorf("the gateway %q is not that of handle %d", got, handle+1)
	}
	d.gateways[handle] = got
	return nil
}

// compareHeard compares what a gateway was told.
func (d *comparison) compareHeard(got, want []message) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d messages instead of %d", len(got), len(want))
	}
	var faults []error
	for i := range want {
		w := &want[i]
		at := slices.IndexFunc(got, func(m message) bool { return m.same(w) })
		if at < 0 {
			faults = append(faults, fmt.Errorf("no message about %s, lease %s, request %s", w.name, w.holder.Lease, w.replaced+w.asks))
			continue
		}
		if got[at].untimed {
			faults = append(faults, errors.New("a firm grant is told without the time at which it was asked for"))
		}
		faults = append(faults, d.compareHolder(w.name, &got[at].holder, &w.holder))
	}
	return errors.Join(faults...)
}

func (d *comparison) compareLock(got, want *fencing.Lock) error {
	if got == nil && want == nil {
		return nil
	}
	if got == nil || want == nil {
		return fmt.Errorf("the view is %v instead of %v", got, want)
	}
	if len(got.Holders) != len(want.Holders) {
		return fmt.Errorf("%d holders instead of %d", len(got.Holders), len(want.Holders))
	}
	faults := []error{
		d.compareToken("LastToken", want.Name, got.LastToken, want.LastToken),
		d.compareToken("HighestAdmitted", want.Name, got.HighestAdmitted, want.HighestAdmitted),
	}
	for i := range got.Holders {
		faults = append(faults, d.compareHolder(want.Name, &got.Holders[i], &want.Holders[i]))
	}
	a, b := *got, *want
	a.LastToken, a.HighestAdmitted, a.Holders, b.LastToken, b.HighestAdmitted, b.Holders = 0, 0, nil, 0, 0, nil
	if len(a.Waiters) == 0 {
		a.Waiters = nil
	}
	if !reflect.DeepEqual(a, b) {
		faults = append(faults, fmt.Errorf("the lock is %+v instead of %+v", a, b))
	}
	return errors.Join(faults...)
}

func (d *comparison) compareEnded(got, want []fencing.Ended) error {
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
		if g.BreakReason != w.BreakReason {
			faults = append(faults, fmt.Errorf("it was broken for %q instead of %q", g.BreakReason, w.BreakReason))
		}
		faults = append(faults, d.compareHolder(w.Name, &g.Holder, &w.Holder))
	}
	return errors.Join(faults...)
}

// comparePage compares a page with all the locks that belong on it and on those
// that follow.
func (d *comparison) comparePage(c *command, page fencing.ListPage, all []fencing.Lock) error {
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

func compareGrants(name fencing.Name, token fencing.Token, otherName fencing.Name, otherToken fencing.Token) int {
	return cmp.Or(cmp.Compare(name, otherName), cmp.Compare(token, otherToken))
}

// deref returns what p points to, for messages that show it.
func deref[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}
