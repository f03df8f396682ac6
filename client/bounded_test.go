package client

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// A lease that was held for as long as MaxHold allows is lost, not unknown: its context
// ends before it does, and the lock is free at once when its user lets go.
func TestMaxHold(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	const ttl = 5 * time.Second
	for name, options := range map[string][]Option{"plain": nil, "attached": {Attached()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			began := time.Now()
			l := must[*Lease](t)(c.Acquire(t.Context(), name, append(options, TTL(ttl), MaxHold(7*time.Second))...))
			err := cause(t, l)
			if !errors.Is(err, ErrMaxHold) || !errors.Is(err, CodeLeaseLost) || errors.Is(err, ErrUnknown) || refusal(err).Reason != ReasonExpired {
				t.Errorf("%s: %v", name, err)
			}
			if held := time.Since(began); held < ttl {
				t.Errorf("%s: the context has ended after %s", name, held)
			}
			_ = l.Release(t.Context()) // on a busy machine it is over by now
			until(t, "it is free", func() bool { return !must[Lock](t)(c.Inspect(t.Context(), name)).Held })
		})
	}
}

// What ends for want of answers is unknown, whatever MaxHold says.
func TestUnknownBeforeMaxHold(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", TTL(3*time.Second), MaxHold(time.Minute)))
	first := l.sentAt()
	until(t, "it is renewed", func() bool { return l.sentAt() != first })
	if err := s.Gateways[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cause(t, l); !errors.Is(err, ErrUnknown) || errors.Is(err, CodeLeaseLost) {
		t.Error(err)
	}
}

// A lease that its own client renews with less than its TTL counts on no more than that, and
// is kept alive with it, until it is renewed with more.
func TestRenewedForLess(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", TTL(time.Hour)))
	for _, ttl := range []time.Duration{6 * time.Second, 4 * time.Second} {
		must[time.Duration](t)(c.Renew(t.Context(), l.ID(), ttl, "a"))
		if left := l.Remaining(); left > ttl {
			t.Errorf("renewed for %s it counts on %s", ttl, left)
		}
	}
	for range 3 {
		sent := l.sentAt()
		until(t, "it is renewed", func() bool { return l.sentAt() != sent })
		if left := l.Remaining(); left > 4*time.Second {
			t.Errorf("it counts on %s", left)
		}
	}
	must[time.Duration](t)(c.Renew(t.Context(), l.ID(), time.Minute, "a"))
	if left := l.Remaining(); left <= 6*time.Second || left > time.Minute || l.Err() != nil {
		t.Errorf("renewed for longer it counts on %s: %v", left, l.Err())
	}
	if n := must[Lock](t)(c.Inspect(t.Context(), "a")).Holders[0].TTL; n != 60000 {
		t.Errorf("the gateway has it with a TTL of %d ms", n)
	}

	unkept := must[*Lease](t)(c.Acquire(t.Context(), "b", TTL(time.Hour), NotRenewed()))
	must[time.Duration](t)(c.Renew(t.Context(), unkept.ID(), time.Second, "b"))
	if err := cause(t, unkept); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if len(c.own(unkept.ID(), []string{"b"})) > 0 {
		t.Error("a lease that is over is still remembered")
	}
}

// So is an attached one, by whichever gateway it was shortened; by another process at the gateway of its stream.
func TestAttachedForLess(t *testing.T) {
	t.Parallel()
	s := two(t)
	a, b := s.Gateways[0].URL(), s.Gateways[1].URL()
	for who, asks := range map[string]func(c *Client) *Client{
		"this-client":       func(c *Client) *Client { return c },
		"the-other-gateway": func(c *Client) *Client { c.current.Add(1); return c },
		"another-client":    func(*Client) *Client { return connect(t, a) },
	} {
		for _, names := range [][]string{{who + "/a"}, {who + "/b", who + "/c"}} {
			t.Run(fmt.Sprint(who, len(names)), func(t *testing.T) {
				t.Parallel()
				c := connect(t, a, b)
				l := must[*Lease](t)(c.Acquire(t.Context(), names[0], Also(names[1:]...), Attached(), TTL(9*time.Second)))
				renewed(t, l) // by its stream, to which the client listens
				must[time.Duration](t)(asks(c).Renew(t.Context(), l.ID(), 2*time.Second, names...))
				direct, expires := connect(t, b), time.Time{}
				for range 4 { // renewals, each of which moves the end by a third of that
					until(t, "it is renewed for so long", func() bool {
						if err := context.Cause(l.Context()); err != nil {
							t.Fatal(err)
						}
						h := must[Lock](t)(direct.Inspect(t.Context(), names[0])).Holders[0]
						was := expires
						expires = h.ExpiresAt
						return expires.After(was) && h.ExpiresIn <= 2000
					})
				}
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
