package client

import (
	"errors"
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
// is kept alive with it.
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
	must[time.Duration](t)(c.Renew(t.Context(), l.ID(), time.Minute, "a"))
	for range 3 {
		sent := l.sentAt()
		until(t, "it is renewed", func() bool { return l.sentAt() != sent })
		if left := l.Remaining(); left > 4*time.Second {
			t.Errorf("it counts on %s", left)
		}
	}
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	if n := must[Lock](t)(c.Inspect(t.Context(), "a")).Holders[0].TTL; n != 4000 {
		t.Errorf("the gateway has it with a TTL of %d ms", n)
	}

	unkept := must[*Lease](t)(c.Acquire(t.Context(), "b", TTL(time.Hour), NotRenewed()))
	must[time.Duration](t)(c.Renew(t.Context(), unkept.ID(), time.Second, "b"))
	if err := cause(t, unkept); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if _, found := c.leases.Load(unkept.ID()); found {
		t.Error("a lease that is over is still remembered")
	}
}
