package client

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/verify/system"
)

// lostName waits for the end of a lease's context, and looks at why.
func lostName(t *testing.T, l *Lease, reason Reason, name string) {
	t.Helper()
	if e := refusal(cause(t, l)); e == nil || e.Code != CodeLeaseLost || e.Reason != reason || e.Name != name {
		t.Errorf("lost by %+v", e)
	}
}

// attachedTo waits until a lease is renewed by the events of a stream, and by nothing else.
func attachedTo(t *testing.T, l *Lease, direct *Client) {
	t.Helper()
	for _, g := range l.Grants() {
		until(t, g.Name+" hangs on a stream", func() bool {
			if err := context.Cause(l.Context()); err != nil {
				t.Fatal(err)
			}
			seen := must[Lock](t)(direct.Inspect(t.Context(), g.Name))
			return len(seen.Holders) == 1 && seen.Holders[0].Token == g.Token && seen.Holders[0].Attached
		})
	}
	renewed(t, l)
}

func renewed(t *testing.T, l *Lease) {
	t.Helper()
	life := l.Remaining()
	until(t, "it is renewed", func() bool {
		if err := context.Cause(l.Context()); err != nil {
			t.Fatal(err)
		}
		now, was := l.Remaining(), life
		life = now
		return now > was
	})
}

// Several names hang on one stream, which goes on at the other gateway when its own drains,
// is killed or stands still, and may have requests of this client's to come to late. The TTL is longer than a gateway takes to start
// beside one that stands still.
func TestSystemAttachedSet(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Gateways: 2, Env: []string{"FENCEPOST_DEFAULT_TTL=2s", "FENCEPOST_MAX_TTL=20s"}})
	a, b := s.Gateways[0], s.Gateways[1]
	attachedSetThrough(t, s, 20*time.Second, [][]func() error{{a.Stop}, {a.Start, b.Kill}, {b.Start, a.Pause}, {a.Resume}, {a.Pause, b.Kill, b.Start}, {a.Resume}})
}

// So it does when one drains, or is killed.
func TestAttachedSet(t *testing.T) {
	t.Parallel()
	s := two(t)
	a, b := s.Gateways[0], s.Gateways[1]
	attachedSetThrough(t, s, 6*time.Second, [][]func() error{{a.Stop}, {a.Start, b.Kill}, {b.Start}})
}

func attachedSetThrough(t *testing.T, s *system.System, ttl time.Duration, all [][]func() error) {
	a, b := s.Gateways[0], s.Gateways[1]
	c, other := connect(t, a.URL(), b.URL()), connect(t, b.URL())
	var puts atomic.Int64
	c.http.Transport = counted{c.http.Transport, func(r *http.Request) {
		if r.Method == http.MethodPut {
			puts.Add(1)
		}
	}}
	l := must[*Lease](t)(c.Acquire(t.Context(), "b", Also("a", "c"), Attached(), TTL(ttl)))
	before := l.Grants()
	if len(before) != 3 || before[0].Name != "b" || before[1].Name != "a" || before[2].Name != "c" {
		t.Fatalf("%+v", before)
	}
	attachedTo(t, l, other)
	if n := puts.Load(); n != 0 {
		t.Errorf("the client has renewed by itself %d times", n)
	}
	for _, harms := range all {
		for _, harm := range harms {
			if err := harm(); err != nil {
				t.Fatal(err)
			}
		}
		renewed(t, l)
	}
	attachedTo(t, l, other)
	if after := l.Grants(); !slices.EqualFunc(before, after, func(a, b Grant) bool { return a.Name == b.Name && a.Token == b.Token }) {
		t.Errorf("%+v became %+v", before, after)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	must[*Lease](t)(other.TryAcquire(t.Context(), "a", Also("b", "c")))
}

// One that is lost ends all, and the others are kept while the work stops.
func TestAttachedSetHasOneFate(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Attached()))
	if err := c.Break(t.Context(), "b", l.Grants()[1].Token, "why"); err != nil {
		t.Fatal(err)
	}
	lostName(t, l, ReasonBroken, "b")
	if _, err := c.TryAcquire(t.Context(), "a"); !errors.Is(err, CodeLocked) {
		t.Errorf("the other name is not kept: %v", err)
	}
	if err := l.Release(t.Context()); !errors.Is(err, CodeLeaseLost) {
		t.Error(err)
	}
	must[*Lease](t)(c.TryAcquire(t.Context(), "a", Also("b")))
}

// A name that is released by itself is no loss; the last one is.
func TestAttachedSetReleasedByName(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Attached()))
	if err := c.Release(t.Context(), l.ID(), "a"); err != nil {
		t.Fatal(err)
	}
	until(t, "the name is gone", func() bool { return len(l.Grants()) == 1 })
	if err := l.Err(); err != nil || l.Name() != "b" {
		t.Errorf("%s is left: %v", l.Name(), err)
	}
	if err := connect(t, c.options.Addresses...).Release(t.Context(), l.ID(), "b"); err != nil {
		t.Fatal(err)
	}
	lostName(t, l, ReasonReleased, "b")
}

// With Linger the names outlive a stream whose end only the gateway has seen; without, they are lost.
func TestAttachedSetLingers(t *testing.T) {
	t.Parallel()
	_, direct := start(t)
	for name, linger := range map[string]time.Duration{"lingers": 6 * time.Second, "released": 0} {
		c := connect(t, direct.options.Addresses[0])
		m := muted(c)
		l := must[*Lease](t)(c.Acquire(t.Context(), name+"/a", Also(name+"/b"), Attached(), TTL(6*time.Second), Linger(linger)))
		m.fallSilent()
		m.cut()
		if linger == 0 {
			if err := cause(t, l); !errors.Is(err, CodeLeaseLost) || refusal(err).Reason != ReasonReleased {
				t.Error(err)
			}
			continue
		}
		attachedTo(t, l, direct)
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A stream that is silent, and ends after this client has another one, releases nothing.
func TestAttachedSetTakenOver(t *testing.T) {
	t.Parallel()
	_, direct := start(t)
	c := connect(t, direct.options.Addresses[0])
	m := muted(c)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Attached(), TTL(4*time.Second), Owner("first"), Permits(3, 4)))
	if _, err := direct.Change(t.Context(), l.ID(), Change{Limit: 6, Permits: 2, Labels: Labels{Owner: "second"}}, "a", "b"); err != nil {
		t.Fatal(err)
	}
	m.fallSilent()
	until(t, "there is another stream", func() bool { return m.streams() == 2 })
	m.cut()
	attachedTo(t, l, direct)
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
