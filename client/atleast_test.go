package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/verify/system"
)

// requests records what a gateway is asked after the grant, as METHOD and TTL.
type requests struct {
	mu      sync.Mutex
	asked   []string
	refuses func(what string) (*http.Response, error) // by query and body; nil: it does not
}

// begin forgets what was asked.
func (a *requests) begin(refuses func(string) (*http.Response, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked, a.refuses = nil, refuses
}

func (a *requests) all() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.asked, " ")
}

func (a *requests) answer(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost {
		return grants(r)
	}
	body := ""
	if r.Body != nil {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(text)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, strings.TrimSpace(r.Method+" "+r.URL.RawQuery+body))
	switch {
	case a.refuses != nil:
		if response, err := a.refuses(r.URL.RawQuery + body); response != nil {
			return response, err
		}
	}
	if r.Method == http.MethodDelete {
		return says(204, "")
	}
	return grants(r)
}

// TestAtLeast: after work that went well a lease is left what is left of the time, and asked
// nothing about any more; after a failure it is released.
func TestAtLeast(t *testing.T) {
	failed := errors.New("failed")
	lost := func(string) (*http.Response, error) {
		return says(412, `{"status":412,"code":"lease_lost","reason":"broken"}`)
	}
	refusing := func(field string) (*http.Response, error) {
		return says(400, fmt.Sprintf(`{"status":400,"code":"invalid_request","field":%q,"detail":""}`, field))
	}
	bounds := func(allowed string) func(string) (*http.Response, error) {
		return func(what string) (*http.Response, error) {
			if strings.Contains(what, allowed) {
				return nil, nil
			}
			field, _, _ := strings.Cut(strings.Trim(what, `{"`), "_ms")
			return refusing(field + "_ms")
		}
	}
	earlier := func(what string) (*http.Response, error) {
		if strings.Contains(what, "after_ms") {
			return refusing("query")
		}
		return nil, nil
	}
	done := func(what string) (*http.Response, error) { // by a gateway that was asked before, and not heard
		if response, err := earlier(what); response != nil {
			return response, err
		}
		return says(412, `{"status":412,"code":"lease_lost","reason":"released"}`)
	}
	once := func(status int, code string) func(string) (*http.Response, error) { // then it is served
		var said bool
		return func(string) (*http.Response, error) {
			if said {
				return nil, nil
			}
			said = true
			return says(status, fmt.Sprintf(`{"status":%d,"code":%q}`, status, code))
		}
	}
	for _, c := range []struct {
		name    string
		least   time.Duration
		takes   time.Duration
		fails   error
		refuses func(string) (*http.Response, error)
		asked   string // what ends the lease
		want    error
	}{
		{name: "the rest", least: 50 * time.Second, takes: time.Second, asked: "DELETE after_ms=49000"},
		{name: "longer than the TTL", least: 10 * time.Minute, takes: time.Second, asked: "DELETE after_ms=599000"},
		{name: "less than a TTL may be", least: 50 * time.Second, takes: 50*time.Second - 1, asked: "DELETE after_ms=100"},
		{name: "over", least: 50 * time.Second, takes: 50 * time.Second, asked: "DELETE"},
		{name: "none", takes: time.Second, asked: "DELETE"},
		{name: "failure", least: 50 * time.Second, takes: time.Second, fails: failed, asked: "DELETE", want: failed},
		{name: "lost", least: 50 * time.Second, takes: time.Second, refuses: lost, asked: "DELETE after_ms=49000", want: CodeLeaseLost},
		{name: "a limit of requests", least: 50 * time.Second, takes: time.Second, refuses: once(429, "too_many_requests"), asked: "DELETE after_ms=49000 DELETE after_ms=49000"},
		{name: "a gateway that does not know the key yet", least: 50 * time.Second, takes: time.Second, refuses: once(401, "unauthenticated"), asked: "DELETE after_ms=49000 DELETE after_ms=49000"},
		{name: "the page of a proxy", least: 50 * time.Second, takes: time.Second, refuses: once(404, ""), asked: "DELETE after_ms=49000 DELETE after_ms=49000"},
		{name: "less than the gateway allows", least: 5 * time.Second, takes: time.Second, refuses: bounds("30000"), asked: `DELETE after_ms=4000 PUT {"ttl_ms":4000} DELETE after_ms=30000`},
		{name: "more than the gateway allows", least: time.Hour, takes: time.Minute, refuses: bounds("30000"), asked: `DELETE after_ms=3540000 PUT {"ttl_ms":3540000} DELETE after_ms=30000`, want: CodeInvalidRequest},
		{name: "an earlier gateway", least: 50 * time.Second, takes: time.Second, refuses: earlier, asked: `DELETE after_ms=49000 PUT {"ttl_ms":49000}`},
		{name: "an earlier gateway, where another has done it", least: 50 * time.Second, takes: time.Second, refuses: done, asked: `DELETE after_ms=49000 PUT {"ttl_ms":49000}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gateway := &requests{}
				client := scripted(t, 1, gateway.answer)
				defer client.Close()
				err := client.Do(t.Context(), "a", func(context.Context, *Lease) error {
					time.Sleep(c.takes)
					gateway.begin(c.refuses) // without the renewals
					return c.fails
				}, AtLeast(c.least))
				if asked := gateway.all(); !errors.Is(err, c.want) || asked != c.asked {
					t.Errorf("%v; asked %s, want %s", err, asked, c.asked)
				}
				time.Sleep(time.Hour)
				if asked := gateway.all(); asked != c.asked {
					t.Errorf("later: asked %s", asked)
				}
			})
		})
	}
}

// TestAtLeastWithoutDo: Release heeds it, ReleaseNow does not, before a Release and after it.
func TestAtLeastWithoutDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gateway := &requests{}
		c := scripted(t, 1, gateway.answer)
		defer c.Close()
		for want, ends := range map[string][]func(*Lease, context.Context) error{
			"DELETE after_ms=50000":        {(*Lease).Release, (*Lease).Release},
			"DELETE":                       {(*Lease).ReleaseNow, (*Lease).Release},
			"DELETE after_ms=50000 DELETE": {(*Lease).Release, (*Lease).ReleaseNow, (*Lease).ReleaseNow, (*Lease).Release},
		} {
			gateway.begin(nil)
			l := must[*Lease](t)(c.TryAcquire(t.Context(), "a", AtLeast(50*time.Second), NotRenewed()))
			for _, end := range ends {
				if err := end(l, t.Context()); err != nil {
					t.Error(err)
				}
			}
			if asked := gateway.all(); asked != want || !errors.Is(l.Err(), ErrReleased) {
				t.Errorf("asked %s, want %s; %v", asked, want, l.Err())
			}
		}
		gateway.begin(nil)
		func() {
			defer func() { _ = recover() }()
			_ = c.Do(t.Context(), "a", func(context.Context, *Lease) error { panic("of the work") }, AtLeast(time.Minute))
		}()
		if asked := gateway.all(); asked != "DELETE" {
			t.Errorf("a panic: asked %s", asked)
		}
	})
}

// TestAtLeastAtAGateway: nobody is granted the names before the time is over, counted from the
// grant, and somebody is soon after it; permits and several names alike. A lease that was broken is not.
func TestAtLeastAtAGateway(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	c := must[*Client](t)(New(Options{Addresses: []string{s.Gateways[0].URL()}}))
	t.Cleanup(func() { c.Close() })
	const least = 2 * time.Second
	for name, options := range map[string][]Option{"plain": nil, "several": {Also("a", "b")}, "permit": {Permit(1)}, "short": {TTL(time.Second)}, "bounded": {TTL(time.Second), MaxHold(least)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked acquisition
			for _, option := range options {
				option(&asked)
			}
			names := append([]string{name}, asked.also...)
			if err := c.Do(t.Context(), name, func(context.Context, *Lease) error { return nil }, append(options, AtLeast(least), LockDelay(time.Minute))...); err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				l := must[*Lease](t)(c.Acquire(t.Context(), name))
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
				past := must[[]Past](t)(c.History(t.Context(), name))
				first := past[len(past)-1]
				if first.Token >= l.Token() || millis(first.Held) < least || first.Outcome != "released" {
					t.Errorf("%s was held for %s, and %s", name, millis(first.Held), first.Outcome)
				}
			}
		})
	}
	err := c.Do(t.Context(), "broken", func(ctx context.Context, l *Lease) error {
		return c.Break(ctx, "broken", l.Token(), "")
	}, AtLeast(time.Hour))
	if l := must[Lock](t)(c.Inspect(t.Context(), "broken")); !errors.Is(err, CodeLeaseLost) || l.Held {
		t.Error(err, l)
	}
	if err := c.Do(t.Context(), "failed", func(context.Context, *Lease) error { return fmt.Errorf("failed") }, AtLeast(time.Hour)); err == nil || must[Lock](t)(c.Inspect(t.Context(), "failed")).Held {
		t.Error(err)
	}
}
