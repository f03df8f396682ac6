package client

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// soon waits for what comes of something.
func soon[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("nothing comes of it")
	}
	return v
}

// The user of a lease that is given notice is told, keeps it until the end of the notice, and is
// then told to stop before the lease is over; the lock is free when it lets go.
func TestNotice(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	const ttl, notice = 5 * time.Second, 7 * time.Second
	admin := connect(t, c.options.Addresses...)
	for name, options := range map[string][]Option{"plain": nil, "attached": {Attached()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			notices := make(chan Notice, 4)
			l := must[*Lease](t)(c.Acquire(t.Context(), name, append(options, TTL(ttl), OnNotice(func(n Notice) { notices <- n }))...))
			if _, given := l.Notice(); given {
				t.Errorf("%s: it was given notice before", name)
			}
			began := time.Now()
			h, held, err := admin.BreakWithNotice(t.Context(), name, l.Token(), notice, "deploy")
			if err != nil || !held || h.Lease != l.Public() || h.BreaksIn == nil || *h.BreaksIn != notice.Milliseconds() || h.BreakReason != "deploy" {
				t.Fatalf("%s: %+v, %t, %v", name, h, held, err)
			}
			n := soon(t, notices)
			if n.Name != name || n.Reason != "deploy" || n.Left <= 0 || n.Left > notice {
				t.Errorf("%s: %+v", name, n)
			}
			if err := l.Err(); err != nil {
				t.Errorf("%s: the notice ended it: %v", name, err)
			}
			err = cause(t, l)
			if !errors.Is(err, ErrNoticeOver) || !errors.Is(err, CodeLeaseLost) || errors.Is(err, ErrUnknown) || refusal(err).Reason != ReasonBroken || !strings.Contains(err.Error(), "deploy") {
				t.Errorf("%s: %v", name, err)
			}
			if held := time.Since(began); held < ttl {
				t.Errorf("%s: the context has ended after %s", name, held)
			}
			if n, given := l.Notice(); !given || n.Left > time.Second || len(notices) > 0 {
				t.Errorf("%s: %+v, %t; it was told %d times more", name, n, given, len(notices))
			}
			_ = l.Release(t.Context()) // on a busy machine it is over by now
			until(t, "it is free", func() bool { return !must[Lock](t)(c.Inspect(t.Context(), name)).Held })
		})
	}
}

// A notice that ends sooner is told again; a lease that is released in time is released.
func TestNoticeIsBroughtForward(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	told := make(chan Notice, 4)
	if err := c.Do(t.Context(), "a", func(_ context.Context, l *Lease) error {
		for _, notice := range []time.Duration{time.Hour, 10 * time.Minute} {
			must[Holder](t)(noticed(c.BreakWithNotice(t.Context(), "a", l.Token(), notice, "")))
			if n := soon(t, told); n.Left > notice || n.Left < notice-patience {
				t.Errorf("%+v after a notice of %s", n, notice)
			}
		}
		return nil
	}, TTL(3*time.Second), OnNotice(func(n Notice) { told <- n })); err != nil {
		t.Fatal(err)
	}
	past := must[[]Past](t)(c.History(t.Context(), "a"))
	if past[0].Outcome != "released" {
		t.Errorf("%+v", past[0])
	}
	if _, held, err := c.BreakWithNotice(t.Context(), "a", past[0].Token, time.Minute, ""); held || !errors.Is(err, CodeStaleToken) {
		t.Errorf("of a lease that was released: %t, %v", held, err)
	}
	if _, _, err := c.BreakWithNotice(t.Context(), "a", 1, time.Millisecond, ""); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != "notice_ms" {
		t.Error(err)
	}
}

// noticed leaves out whether the lease is held still: it is.
func noticed(h Holder, _ bool, err error) (Holder, error) { return h, err }

// An acquire whose place is taken away ends, and does not join the queue anew.
func TestEvict(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	holder := must[*Lease](t)(c.Acquire(t.Context(), "a"))
	for what, options := range map[string][]Option{"plain": nil, "attached": {Attached()}, "several names": {Also("b")}} {
		waiting, ended := make(chan string, 1), make(chan error, 1)
		go func() {
			_, err := c.Acquire(t.Context(), "a", append(options, OnLeaseID(func(public string) { waiting <- public }))...)
			ended <- err
		}()
		lease := soon(t, waiting)
		until(t, "it waits", func() bool { return must[Lock](t)(c.Inspect(t.Context(), "a")).Waiting == 1 })
		if err := c.Evict(t.Context(), "a", lease, "deploy"); err != nil {
			t.Fatal(err)
		}
		if err := soon(t, ended); !errors.Is(err, ErrEvicted) || refusal(err).BreakReason != "deploy" {
			t.Errorf("%s: %v", what, err)
		}
		if err := c.Evict(t.Context(), "a", lease, "deploy"); err != nil {
			t.Errorf("%s, again: %v", what, err)
		}
		if len(waiting) > 0 {
			t.Errorf("%s: it asked again with another lease id", what)
		}
	}
	if err := c.Evict(t.Context(), "a", holder.Public(), ""); !errors.Is(err, CodeConflict) || refusal(err).CurrentToken != holder.Token() || errors.Is(err, ErrEvicted) {
		t.Errorf("of the holder: %v", err)
	}
	if err := c.Evict(t.Context(), "a", PublicPart(NewLeaseID()), ""); !errors.Is(err, CodeNotFound) {
		t.Errorf("of nobody: %v", err)
	}
	if err := holder.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Who wants to know is told once that no gateway renews the lease, and once more after one has; not that one of two does not.
func TestOnRenewalsFail(t *testing.T) {
	for _, options := range [][]Option{nil, {Attached()}} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			c := scripted(t, 2, func(r *http.Request) (*http.Response, error) {
				at := time.Since(begun) / time.Minute
				switch {
				case r.Method == http.MethodDelete:
					return says(204, "")
				case r.Header.Get("Accept") == "text/event-stream":
					return streamsThenBreaks(r, 30*time.Second)
				case r.Method == http.MethodPut && (r.URL.Host == "a" || at%2 == 1 && time.Since(begun)%time.Minute < 15*time.Second || at > 4):
					return says(503, `{"code":"unavailable"}`)
				}
				return grants(r)
			})
			defer c.Close()
			var told []string
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", append(options, OnRenewalsFail(func(err error) {
				told = append(told, (time.Since(begun) / time.Minute).String())
				if !errors.Is(err, CodeUnavailable) {
					t.Error(err)
				}
			}))...))
			<-l.Context().Done()
			if lived := time.Since(begun); lived < 5*time.Minute {
				t.Errorf("it has lived for %s: %v", lived, context.Cause(l.Context()))
			}
			l.Release(t.Context())
			if got := strings.Join(told, " "); got != "1ns 3ns 5ns" {
				t.Errorf("told in the minutes %s", got)
			}
		})
	}
}
