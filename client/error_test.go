package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// oneLine holds an error to one line that has some texts.
func oneLine(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	if strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("%s: more than a line: %q", what, err)
	}
	for _, text := range texts {
		if n := strings.Count(err.Error(), text); n != 1 {
			t.Errorf("%s: %q has %q %d times", what, err, text, n)
		}
	}
}

// An error is a line that says which lock it is about, and who holds it: often it is all that
// stands in a log.
func TestErrorsAreOneLine(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "orders/42", Owner("worker\u202e-7")))
	_, err := c.TryAcquire(t.Context(), "orders/42")
	oneLine(t, "locked", err, "orders/42", `worker\u202e-7`)
	_, err = c.Acquire(t.Context(), "orders/42", Wait(50*time.Millisecond))
	oneLine(t, "wait_timeout", err, "orders/42", `worker\u202e-7`)
	_, err = c.TryAcquire(t.Context(), "orders/41", Also("orders/42"))
	oneLine(t, "locked, of several", err, "orders/42", `worker\u202e-7`)
	err = c.Break(t.Context(), "orders/42", l.Token()+1, "")
	oneLine(t, "stale", err, "orders/42")
	if err := c.Break(t.Context(), "orders/42", l.Token(), "stuck"); err != nil {
		t.Fatal(err)
	}
	err = l.Release(t.Context())
	oneLine(t, "broken", err, "orders/42", `"stuck"`)

	must[*Lease](t)(c.Acquire(t.Context(), "shared", Permit(3), Owner("first")))
	for range 2 {
		must[*Lease](t)(c.Acquire(t.Context(), "shared", Permit(3), Owner("first")))
	}
	_, err = c.TryAcquire(t.Context(), "shared")
	oneLine(t, "three holders", err, "shared", `"first" and 2 more`)
	oneLine(t, "of a proxy", &Error{Status: 502, Detail: "bad\r\n\tgateway"}, "bad gateway")
}

// So is that of a failed call.
func TestErrorsOfCallsAreOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 2, func(r *http.Request) (*http.Response, error) {
			switch r.Method {
			case http.MethodPost:
				return grants(r)
			case http.MethodGet:
				return nil, errors.New("connection refused")
			}
			return says(412, `{"code":"lease_lost","reason":"released","detail":"the lease was released"}`)
		})
		defer c.Close()
		failed := errors.New("failed")
		err := c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error {
			<-ctx.Done()
			return failed
		})
		oneLine(t, "Do", err, "failed", ": a: ")
		if !errors.Is(err, failed) || !errors.Is(err, CodeLeaseLost) {
			t.Errorf("Do: %v", err)
		}
		_, err = c.Inspect(t.Context(), "orders/42")
		oneLine(t, "no gateway", err, "orders/42", ErrUnreachable.Error(), "connection refused")

		c.http.Transport = script(frozen)
		for name, call := range map[string]func(ctx context.Context) error{
			"acquire": func(ctx context.Context) error { _, err := c.Acquire(ctx, "a"); return err },
			"renew":   func(ctx context.Context) error { _, err := c.Renew(ctx, NewLeaseID(), 0, "a"); return err },
			"inspect": func(ctx context.Context) error { _, err := c.Inspect(ctx, "a"); return err },
			"release": func(ctx context.Context) error { return c.Release(ctx, NewLeaseID(), "a") },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := call(ctx)
			cancel()
			oneLine(t, name, err, "/locks/a", context.DeadlineExceeded.Error())
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// What a caller has to tell apart can be asked for.
func TestErrorsAreTold(t *testing.T) {
	for name, err := range map[error]error{
		ErrExpired:     fmt.Errorf("a: %w", ErrExpired),
		ErrEvicted:     &Error{Code: CodeLeaseLost, Reason: ReasonEvicted},
		CodeLocked:     fmt.Errorf("a: %w", &Error{Code: CodeLocked}),
		ErrUnreachable: unheard(errors.New("refused")),
	} {
		for other := range map[error]bool{ErrExpired: true, ErrEvicted: true, CodeLocked: true, ErrUnreachable: true, ErrUnknown: true, ErrMaxHold: true, ErrClosed: true} {
			if is := errors.Is(err, other); is != (name == other) {
				t.Errorf("%v is %v: %t", err, other, is)
			}
		}
	}
}

// The zero Client says what it lacks.
func TestZeroClient(t *testing.T) {
	var c Client
	id := NewLeaseID()
	calls := map[string]func() error{
		"Acquire":    func() error { _, err := c.Acquire(t.Context(), "a"); return err },
		"TryAcquire": func() error { _, err := c.TryAcquire(t.Context(), "a", Attached()); return err },
		"Do":         func() error { return c.Do(t.Context(), "a", func(context.Context, *Lease) error { return nil }) },
		"Release":    func() error { return c.Release(t.Context(), id, "a") },
		"Renew":      func() error { _, err := c.Renew(t.Context(), id, 0, "a"); return err },
		"Relabel":    func() error { _, err := c.Relabel(t.Context(), id, Labels{}, "a"); return err },
		"Inspect":    func() error { _, err := c.Inspect(t.Context(), "a"); return err },
		"History":    func() error { _, err := c.History(t.Context(), "a"); return err },
		"Break":      func() error { return c.Break(t.Context(), "a", 1, "") },
		"Evict":      func() error { return c.Evict(t.Context(), "a", PublicPart(id), "") },
		"Judge":      func() error { _, err := c.Judge(t.Context(), "a", 1); return err },
		"Admit":      func() error { _, err := c.Admit(t.Context(), "a", 1, NoSlot); return err },
		"List": func() (last error) {
			for _, err := range c.List(t.Context(), "a") {
				last = err
			}
			return last
		},
		"Events": func() (last error) {
			for _, err := range c.Events(t.Context(), "a") {
				last = err
			}
			return last
		},
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		oneLine(t, name, calls[name](), "made by New")
	}
	if all := c.Examine(t.Context()); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// The error of a redirect says where it leads.
func TestRedirects(t *testing.T) {
	server := httptest.NewServer(http.RedirectHandler("https://locks.example/base/locks/a?x=1", http.StatusPermanentRedirect))
	defer server.Close()
	c := must[*Client](t)(New(Options{Addresses: []string{server.URL}}))
	defer c.Close()
	_, err := c.Acquire(t.Context(), "a")
	oneLine(t, "redirect", err, "308 Permanent Redirect", "https://locks.example/base/locks/a")
}
