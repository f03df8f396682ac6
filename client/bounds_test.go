package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// nobody is a transport that nothing comes through; it counts the requests.
type nobody struct{ asked atomic.Int64 }

func (u *nobody) RoundTrip(*http.Request) (*http.Response, error) {
	u.asked.Add(1)
	return nil, errors.New("nobody is there")
}

// An option that is out of its range is refused, by name, before anything is sent: one that
// was left away instead would ask for something else.
func TestOptionsOutOfRange(t *testing.T) {
	c := connect(t, "http://127.0.0.1:1")
	none := &nobody{}
	c.http.Transport = none
	many := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprint("n", i))
		}
		return names
	}
	entries := map[string]string{}
	for _, key := range many(17) {
		entries[key] = ""
	}
	const day = 24 * time.Hour
	for _, bad := range []struct {
		field   string
		options []Option
	}{
		{"ttl_ms", []Option{TTL(-1)}},
		{"ttl_ms", []Option{TTL(-time.Second)}},
		{"ttl_ms", []Option{TTL(time.Microsecond)}},
		{"ttl_ms", []Option{TTL(99 * time.Millisecond)}},
		{"ttl_ms", []Option{TTL(day + 1)}},
		{"ttl_ms", []Option{TTL(math.MaxInt64)}},
		{"ttl_ms", []Option{TTL(math.MinInt64)}},
		{"limit", []Option{Permit(0)}},
		{"limit", []Option{Permit(-1)}},
		{"limit", []Option{Permit(10_001)}},
		{"limit", []Option{Permits(1, 0)}},
		{"limit", []Option{Permits(0, 0)}},
		{"permits", []Option{Permits(0, 3)}},
		{"permits", []Option{Permits(-1, 3)}},
		{"permits", []Option{Permits(4, 3)}},
		{"names", []Option{Also("a")}},
		{"names", []Option{Also("b", "b")}},
		{"names", []Option{Also(many(64)...)}},
		{"name", []Option{Also("")}},
		{"name", []Option{Also("..")}},
		{"owner", []Option{Owner(strings.Repeat("x", 257))}},
		{"owner", []Option{Owner("a\n")}},
		{"owner", []Option{Owner("\xff")}},
		{"metadata", []Option{Metadata(entries)}},
		{"metadata", []Option{Metadata(map[string]string{"": "a"})}},
		{"metadata", []Option{Metadata(map[string]string{strings.Repeat("x", 65): "a"})}},
		{"metadata", []Option{Metadata(map[string]string{"a": strings.Repeat("x", 257)})}},
		{"metadata", []Option{Metadata(map[string]string{"a": "\x00"})}},
		{"max_hold_ms", []Option{MaxHold(-1)}},
		{"max_hold_ms", []Option{MaxHold(time.Millisecond)}},
		{"max_hold_ms", []Option{MaxHold(time.Second), TTL(2 * time.Second)}},
		{"max_hold_ms", []Option{MaxHold(30*day + 1)}},
		{"lock_delay_ms", []Option{LockDelay(-1)}},
		{"lock_delay_ms", []Option{LockDelay(time.Minute + 1)}},
		{"linger_ms", []Option{Attached(), Linger(-1)}},
		{"linger_ms", []Option{Attached(), Linger(day + 1)}},
		{"linger_ms", []Option{Attached(), Linger(3 * time.Second), TTL(2 * time.Second)}},
		{"linger_ms", []Option{Linger(time.Second)}},
		{"AtLeast", []Option{AtLeast(-1)}},
		{"AtLeast", []Option{AtLeast(day + 1)}},
		{"AtLeast", []Option{AtLeast(time.Minute + 1), MaxHold(time.Minute)}},
		{"AtLeast", []Option{AtLeast(time.Minute), Attached()}},
		{"StopEarly", []Option{StopEarly(-1)}},
		{"StopEarly", []Option{StopEarly(time.Second + 1), TTL(2 * time.Second)}},
		{"StopEarly", []Option{StopEarly(day)}},
		{"Lease-Id", []Option{LeaseID("")}},
		{"Lease-Id", []Option{LeaseID("nonsense")}},
	} {
		for call, f := range map[string]func() error{
			"Acquire":    func() error { _, err := c.Acquire(t.Context(), "a", bad.options...); return err },
			"TryAcquire": func() error { _, err := c.TryAcquire(t.Context(), "a", bad.options...); return err },
			"Do": func() error {
				return c.Do(t.Context(), "a", func(context.Context, *Lease) error { t.Error("it runs"); return nil }, bad.options...)
			},
		} {
			if err := f(); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != bad.field || refusal(err).Detail == "" {
				t.Errorf("%s, %s: %v", call, bad.field, err)
			}
		}
	}
	id := NewLeaseID()
	for name, f := range map[string]func() error{
		"limit":           func() error { _, err := c.SetLimit(t.Context(), id, 0, "a"); return err },
		"limit, too high": func() error { _, err := c.Change(t.Context(), id, Change{Limit: 10_001}, "a"); return err },
		"permits":         func() error { _, err := c.KeepPermits(t.Context(), id, 0, "a"); return err },
		"permits of a change": func() error {
			_, err := c.Change(t.Context(), id, Change{Permits: -1}, "a")
			return err
		},
		"permits, too many": func() error { _, err := c.KeepPermits(t.Context(), id, 10_001, "a"); return err },
		"ttl_ms":            func() error { _, err := c.Renew(t.Context(), id, -1, "a"); return err },
		"ttl_ms, too long":  func() error { _, err := c.Renew(t.Context(), id, day+1, "a"); return err },
		"owner": func() error {
			_, err := c.Relabel(t.Context(), id, Labels{Owner: "a\x00"}, "a")
			return err
		},
		"metadata": func() error { _, err := c.Relabel(t.Context(), id, Labels{Metadata: entries}, "a"); return err },
		"notice_ms": func() error {
			_, _, err := c.BreakWithNotice(t.Context(), "a", 1, 0, "")
			return err
		},
		"notice_ms, too short": func() error { _, _, err := c.BreakWithNotice(t.Context(), "a", 1, time.Millisecond, ""); return err },
		"notice_ms, uneven": func() error {
			_, _, err := c.BreakWithNotice(t.Context(), "a", 1, time.Second+1, "")
			return err
		},
	} {
		field, _, _ := strings.Cut(name, ",")
		field, _, _ = strings.Cut(field, " ")
		if err := f(); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := none.asked.Load(); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
	key, config := func() (string, error) { return "", nil }, func() (*tls.Config, error) { return nil, nil }
	for _, bad := range []Options{{Patience: -1}, {Transport: none, TLS: &tls.Config{}}, {Transport: none, TLSFunc: config}, {TLS: &tls.Config{}, TLSFunc: config}, {Key: "a", KeyFunc: key}, {Owner: strings.Repeat("x", 257)}, {Owner: "a\n"}} {
		if bad.Addresses = []string{"http://127.0.0.1:1"}; newFails(bad) == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func newFails(o Options) error {
	c, err := New(o)
	if err == nil {
		c.Close()
	}
	return err
}

// What is at the edge of its range is asked for.
func TestOptionsInRange(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for name, options := range map[string][]Option{
		"none":   {TTL(0), MaxHold(0), LockDelay(0), Linger(0), StopEarly(0), Also(), Metadata(nil), Owner("")},
		"most":   {TTL(24 * time.Hour), MaxHold(30 * 24 * time.Hour), LockDelay(time.Minute), StopEarly(12 * time.Hour), Permits(10_000, 10_000)},
		"linger": {Attached(), TTL(time.Minute), Linger(time.Minute)},
	} {
		l, err := c.TryAcquire(t.Context(), name, options...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = l.Release(t.Context())
	}
	var least acquisition // of which a gateway's lease is soon over
	for _, option := range []Option{TTL(100 * time.Millisecond), MaxHold(100 * time.Millisecond), Permits(1, 1)} {
		option(&least)
	}
	if _, err := least.call([]string{"a"}); err != nil {
		t.Error(err)
	}
}

// Who has no time to wait does not wait.
func TestNoTimeToWait(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	must[*Lease](t)(c.Acquire(t.Context(), "a"))
	for _, wait := range []time.Duration{0, -1, -time.Hour, math.MinInt64} {
		for _, options := range [][]Option{nil, {Attached()}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, err := c.Acquire(ctx, "a", append(slices.Clone(options), Wait(wait))...); !errors.Is(err, CodeLocked) {
				t.Errorf("Wait(%s): %v", wait, err)
			}
			cancel()
		}
	}
}

// Nothing is sent for a context that has ended.
func TestEndedContextAsksNobody(t *testing.T) {
	c := connect(t, "http://127.0.0.1:1")
	none := &nobody{}
	c.http.Transport = none
	enough := errors.New("enough")
	ctx, end := context.WithCancelCause(t.Context())
	end(enough)
	id := NewLeaseID()
	calls := map[string]func() error{
		"Acquire":     func() error { _, err := c.Acquire(ctx, "a"); return err },
		"attached":    func() error { _, err := c.Acquire(ctx, "a", Attached()); return err },
		"several":     func() error { _, err := c.Acquire(ctx, "a", Also("b")); return err },
		"TryAcquire":  func() error { _, err := c.TryAcquire(ctx, "a"); return err },
		"Do":          func() error { return c.Do(ctx, "a", func(context.Context, *Lease) error { return nil }) },
		"Renew":       func() error { _, err := c.Renew(ctx, id, 0, "a"); return err },
		"Relabel":     func() error { _, err := c.Relabel(ctx, id, Labels{}, "a"); return err },
		"SetLimit":    func() error { _, err := c.SetLimit(ctx, id, 1, "a"); return err },
		"KeepPermits": func() error { _, err := c.KeepPermits(ctx, id, 1, "a"); return err },
		"Inspect":     func() error { _, err := c.Inspect(ctx, "a"); return err },
		"History":     func() error { _, err := c.History(ctx, "a"); return err },
		"Break":       func() error { return c.Break(ctx, "a", 1, "") },
		"Evict":       func() error { return c.Evict(ctx, "a", PublicPart(id), "") },
		"Judge":       func() error { _, err := c.Judge(ctx, "a", 1); return err },
		"Admit":       func() error { _, err := c.Admit(ctx, "a", 1, NoSlot); return err },
		"List": func() (last error) {
			for _, err := range c.List(ctx, "a") {
				last = err
			}
			return last
		},
		"Events": func() (last error) {
			for _, err := range c.Events(ctx, "a") {
				last = err
			}
			return last
		},
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		if err := calls[name](); !errors.Is(err, enough) {
			t.Errorf("%s: %v", name, err)
		}
		if n := none.asked.Swap(0); n > 0 {
			t.Errorf("%s: %d requests were sent", name, n)
		}
	}
	if all := c.Examine(ctx); len(all) != 1 || all[0].Ready || none.asked.Load() > 0 {
		t.Errorf("%+v, %d requests", all, none.asked.Load())
	}
}
