package client

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRelabel: what people are told of a lease changes, each by itself, and in the history too.
func TestRelabel(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Owner("first"), Metadata(map[string]string{"step": "1"})))
	want := func(owner string, metadata map[string]string) {
		t.Helper()
		h := must[Lock](t)(c.Inspect(t.Context(), "a")).Holders[0]
		if h.Owner != owner || !maps.Equal(h.Metadata, metadata) || h.Token != l.Token() {
			t.Errorf("%+v", h)
		}
	}
	relabel := func(labels Labels) {
		t.Helper()
		if err := l.Relabel(t.Context(), labels); err != nil {
			t.Error(err)
		}
	}
	relabel(Labels{Owner: "second"})
	want("second", map[string]string{"step": "1"})
	relabel(Labels{Metadata: map[string]string{"of": "9"}})
	want("second", map[string]string{"of": "9"})
	relabel(Labels{})
	want("second", map[string]string{"of": "9"})
	relabel(Labels{Metadata: map[string]string{}})
	want("second", map[string]string{})
	if _, err := c.Relabel(t.Context(), NewLeaseID(), Labels{Owner: "other"}, "a"); !errors.Is(err, CodeLeaseLost) {
		t.Errorf("with another lease id: %v", err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if past := must[[]Past](t)(c.History(t.Context(), "a")); len(past) != 1 || past[0].Owner != "second" {
		t.Errorf("%+v", past)
	}
}

// TestRelabelKeepsTheTTL that Client.Renew has shortened the lease to.
func TestRelabelKeepsTheTTL(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", TTL(time.Minute), NotRenewed()))
	if _, err := c.Renew(t.Context(), l.ID(), 5*time.Second, "a"); err != nil {
		t.Fatal(err)
	}
	if left, err := c.Relabel(t.Context(), l.ID(), Labels{Owner: "second"}, "a"); err != nil || left > 5*time.Second {
		t.Errorf("%s, %v", left, err)
	}
}

// TestChange: a renewal changes all at once, so that nothing shortens the lease meanwhile; what
// is refused changes nothing.
func TestChange(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Permits(3, 4), TTL(10*time.Second), NotRenewed()))
	all := Change{TTL: time.Hour, Permits: 2, Labels: Labels{Owner: "second", Metadata: map[string]string{"step": "2"}}}
	for range 2 {
		if left, err := c.Change(t.Context(), l.ID(), all, "a"); err != nil || left < 50*time.Minute || !slices.Equal(l.Slots(), []int{0, 1}) {
			t.Errorf("%s, %v, slots %v", left, err, l.Slots())
		}
	}
	for field, bad := range map[string]Change{"permits": {Permits: -1}, "ttl_ms": {TTL: -time.Second}, "owner": {Labels: Labels{Owner: strings.Repeat("x", 257)}, Permits: 1}} {
		if _, err := c.Change(t.Context(), l.ID(), bad, "a"); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	h := must[Lock](t)(c.Inspect(t.Context(), "a")).Holders[0]
	if h.Owner != "second" || h.Metadata["step"] != "2" || h.Permits != 2 || !slices.Equal(l.Slots(), []int{0, 1}) || h.TTL != time.Hour.Milliseconds() {
		t.Errorf("%+v, slots %v", h, l.Slots())
	}
}

// TestAnOwnerByDefaultContradictsNothing: who finds its lease again may be another process by
// now, or have changed the label. An owner that was named for this acquire does contradict.
func TestAnOwnerByDefaultContradictsNothing(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	restarted, err := New(Options{Addresses: []string{s.Gateways[0].URL()}, Patience: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { restarted.Close() })
	id := NewLeaseID()
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(id), NotRenewed()))
	for range 2 {
		again, err := restarted.TryAcquire(t.Context(), "a", LeaseID(id), NotRenewed())
		if err != nil || again.Token() != l.Token() {
			t.Fatalf("%v, %v", again, err)
		}
		if attached, err := c.TryAcquire(t.Context(), "a", LeaseID(id), Attached(), Linger(10*time.Second), TTL(10*time.Second)); err != nil || attached.Token() != l.Token() {
			t.Fatalf("%v, %v", attached, err)
		}
		if _, err := c.TryAcquire(t.Context(), "a", LeaseID(id), Owner("another")); !errors.Is(err, CodeConflict) || refusal(err).Field != "owner" {
			t.Errorf("an owner that was named: %v", err)
		}
		if err := l.Relabel(t.Context(), Labels{Owner: "changed"}); err != nil {
			t.Fatal(err)
		}
	}
}
