package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/verify/system"
)

// A gateway that was stopped with an acquire on its way goes on when another one has the
// acquire: the older request replaces the newer one of the same client.
func TestReplacedByOwnRequest(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Gateways: 2})
	other := connect(t, s.Gateways[1].URL())
	holder := must[*Lease](t)(other.Acquire(t.Context(), "a"))
	c := nimble(connect(t, s.Gateways[0].URL(), s.Gateways[1].URL()))
	var posts atomic.Int64
	c.http.Transport = counted{c.http.Transport, func(r *http.Request) {
		if r.Method == http.MethodPost {
			posts.Add(1)
		}
	}}
	must[Lock](t)(c.Inspect(t.Context(), "a")) // a connection is open
	if err := s.Gateways[0].Pause(); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		l, err := c.Acquire(t.Context(), "a")
		if err == nil {
			err = l.Release(t.Context())
		}
		result <- err
	}()
	until(t, "it waits at the other gateway", func() bool { return must[Lock](t)(other.Inspect(t.Context(), "a")).Waiting > 0 })
	asked := posts.Load()
	if err := s.Gateways[0].Resume(); err != nil {
		t.Fatal(err)
	}
	until(t, "it asks again", func() bool { return posts.Load() > asked || len(result) > 0 })
	if err := holder.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestReplaced(t *testing.T) {
	t.Parallel()
	var posts atomic.Int64
	c := fake(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && posts.Add(1) == 1 {
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, `{"code":"replaced"}`)
			return
		}
		fmt.Fprintf(w, `{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":60000,"expires_in_ms":60000,"renew_in_ms":20000}`, r.Header.Get("Lease-Id"))
	})
	if _, err := c.Acquire(t.Context(), "a", LeaseID(NewLeaseID())); !errors.Is(err, CodeReplaced) {
		t.Errorf("the caller's lease id: %v", err)
	}
	posts.Store(0)
	must[*Lease](t)(c.Acquire(t.Context(), "a"))
}

// A lease that is found again near its end is not asked for without pause.
func TestNearItsEnd(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]Option{"end": nil, "wait": {Wait(300 * time.Millisecond)}} {
		begun := time.Now()
		var posts atomic.Int64
		c := fake(t, func(w http.ResponseWriter, r *http.Request) {
			posts.Add(1)
			left := 900 - time.Since(begun).Milliseconds()
			if left <= 0 {
				w.WriteHeader(http.StatusPreconditionFailed)
				io.WriteString(w, `{"code":"lease_lost","reason":"expired"}`)
				return
			}
			json.NewEncoder(w).Encode(map[string]any{"name": "a", "lease_id": r.Header.Get("Lease-Id"), "fencing_token": 5, "ttl_ms": 30000, "expires_in_ms": left, "renew_in_ms": left / 3})
		})
		_, err := c.Acquire(t.Context(), "a", append(options, LeaseID(NewLeaseID()), NotRenewed())...)
		if err == nil || name == "end" && !errors.Is(err, CodeLeaseLost) {
			t.Errorf("%s: %v", name, err)
		}
		if n := posts.Load(); n > 30 {
			t.Errorf("%s: %d requests in %s", name, n, time.Since(begun))
		}
	}
}

// A release that could not be sent can be repeated.
func TestReleaseAgain(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	there := c.http.Transport
	c.http.Transport = &nobody{}
	if err := l.Release(ended); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	c.http.Transport = there
	for range 2 {
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if seen := must[Lock](t)(c.Inspect(t.Context(), "a")); seen.Held {
		t.Errorf("it is held for %d ms more", seen.Holders[0].ExpiresIn)
	}
}

func TestNoNames(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	if err := c.Release(t.Context(), NewLeaseID()); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != "name" {
		t.Errorf("release: %v", err)
	}
	if _, err := c.Renew(t.Context(), NewLeaseID(), 0); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != "name" {
		t.Errorf("renew: %v", err)
	}
}

// A password in an address is not told.
func TestPasswordInAddress(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"http://me:hunter2@127.0.0.1:8080", "http://me:hunter2@127.0.0.1:80 80", "me:hunter2@127.0.0.1"} {
		if _, err := New(Options{Addresses: []string{bad}}); err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%v", err)
		}
	}
}

// The clocks are looked at ten times a second, however early the work is to stop.
func TestLooksAtTheClocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var looks, ahead atomic.Int64
		c := scripted(t, 1, grants)
		defer c.Close()
		c.now = func() instant {
			looks.Add(1)
			return instant{time.Now(), time.Since(begun) + time.Duration(ahead.Load())}
		}
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", StopEarly(15*time.Second), NotRenewed()))
		first := looks.Load()
		lives(t, l, 1050*time.Millisecond)
		if n := looks.Load() - first; n < 10 {
			t.Errorf("it has looked %d times in a second", n)
		}
		woken := time.Now()
		ahead.Store(int64(time.Hour))
		<-l.Context().Done()
		if err := context.Cause(l.Context()); !errors.Is(err, ErrUnknown) || time.Since(woken) > 100*time.Millisecond {
			t.Errorf("the context lived for another %s: %v", time.Since(woken), err)
		}
	})
}

// StopEarly is held against the TTL that the gateway has chosen, too.
func TestStopEarlyOfTheDefaultTTL(t *testing.T) {
	t.Parallel()
	_, c := start(t, "FENCEPOST_DEFAULT_TTL=2s")
	for name, options := range map[string][]Option{"plain": nil, "attached": {Attached()}} {
		if _, err := c.Acquire(t.Context(), name, append(options, StopEarly(1100*time.Millisecond))...); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != "StopEarly" {
			t.Errorf("%s: %v", name, err)
		}
		until(t, "nothing is left of it", func() bool { return !must[Lock](t)(c.Inspect(t.Context(), name)).Held })
	}
}
