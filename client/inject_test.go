package client

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestInject: every request says what the context of its caller says, also those that are
// made when the caller has left; and nothing of it takes the place of what the client says.
func TestInject(t *testing.T) {
	t.Parallel()
	type key struct{}
	s, _ := start(t)
	var mu sync.Mutex
	seen := map[string][]string{} // methods by what was injected
	fixed := http.Header{"X-Fixed": {"a"}}
	c, err := New(Options{Addresses: []string{s.Gateways[0].URL()}, Header: fixed, Inject: func(ctx context.Context, header http.Header) {
		header.Add("X-Fixed", "b")
		header.Set("Lease-Id", "injected")
		if trace, ok := ctx.Value(key{}).(string); ok {
			header.Set("Traceparent", trace)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.http.Transport = counted{c.http.Transport, func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		trace := r.Header.Get("Traceparent")
		seen[trace] = append(seen[trace], r.Method)
		if r.Header.Get("Lease-Id") == "injected" || r.Header.Get("X-Fixed") != "a" {
			t.Errorf("%v", r.Header)
		}
	}}
	has := func(trace string, methods ...string) {
		t.Helper()
		until(t, trace, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return !slices.ContainsFunc(methods, func(m string) bool { return !slices.Contains(seen[trace], m) })
		})
	}
	as := func(trace string) context.Context { return context.WithValue(t.Context(), key{}, trace) }

	ctx, leave := context.WithCancel(as("plain"))
	l := must[*Lease](t)(c.Acquire(ctx, "a", TTL(3*time.Second)))
	leave()
	has("plain", http.MethodPost, http.MethodPut)
	if err := l.Release(as("released")); err != nil {
		t.Error(err)
	}
	has("released", http.MethodDelete)

	attached := must[*Lease](t)(c.Acquire(as("attached"), "b", Attached()))
	has("attached", http.MethodPost)
	if err := c.Do(as("do"), "c", func(ctx context.Context, l *Lease) error { return nil }); err != nil {
		t.Error(err)
	}
	has("do", http.MethodPost, http.MethodDelete)

	given, giveUp := context.WithCancel(as("given up"))
	go func() {
		has("given up", http.MethodPost)
		giveUp()
	}()
	if _, err := c.Acquire(given, "b"); err == nil {
		t.Error("it was granted")
	}
	has("given up", http.MethodDelete)
	if err := attached.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if fixed.Values("X-Fixed")[0] != "a" || len(fixed["X-Fixed"]) != 1 {
		t.Errorf("the options have changed: %v", fixed)
	}
}
