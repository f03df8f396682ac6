package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// mute is a transport whose streams can fall silent, and be cut so that only the gateway
// sees it.
type mute struct {
	http.RoundTripper
	mu     sync.Mutex
	bodies []*muteBody
}

func muted(c *Client) *mute {
	m := &mute{RoundTripper: c.http.Transport}
	c.http.Transport = m
	return m
}

func (m *mute) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := m.RoundTripper.RoundTrip(r)
	if err == nil && r.Header.Get("Accept") == "text/event-stream" {
		m.mu.Lock()
		defer m.mu.Unlock()
		body := &muteBody{m: m, ReadCloser: response.Body, r: r}
		m.bodies, response.Body = append(m.bodies, body), body
	}
	return response, err
}

func (m *mute) CloseIdleConnections() { m.RoundTripper.(*http.Transport).CloseIdleConnections() }

// fallSilent is about the streams that there are.
func (m *mute) fallSilent() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, body := range m.bodies {
		body.silent = true
	}
}

func (m *mute) streams() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.bodies)
}

// cut closes the connections of silent streams.
func (m *mute) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, body := range m.bodies {
		if body.silent {
			body.Close()
		}
	}
}

type muteBody struct {
	m *mute
	io.ReadCloser
	r      *http.Request
	silent bool
}

func (b *muteBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.m.mu.Lock()
	silent := b.silent
	b.m.mu.Unlock()
	if silent {
		<-b.r.Context().Done()
		return 0, b.r.Context().Err()
	}
	return n, err
}

// After this client has begun to renew an attached lease, the end of its stream is not
// the lease's release.
func TestAttachedTakenOver(t *testing.T) {
	t.Parallel()
	_, direct := start(t)
	c := connect(t, direct.options.Addresses[0])
	m := muted(c)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), TTL(4*time.Second)))
	renewed := func() {
		t.Helper()
		last := l.sentAt()
		until(t, "the client renews by itself", func() bool {
			if err := context.Cause(l.Context()); err != nil {
				t.Fatal(err)
			}
			return l.sentAt() != last
		})
	}
	m.fallSilent()
	renewed()
	m.cut()
	renewed()
	renewed()
	if _, err := direct.TryAcquire(t.Context(), "a"); !errors.Is(err, CodeLocked) {
		t.Errorf("another acquire: %v", err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// An attached lease whose connection only the gateway has seen end is gone; this client
// asks, long before the deadline: see TestAsksWhenAnEventIsOverdue.
func TestAttachedReleasedUnseen(t *testing.T) {
	t.Parallel()
	_, direct := start(t)
	c := connect(t, direct.options.Addresses[0])
	m := muted(c)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), TTL(9*time.Second)))
	m.fallSilent()
	m.cut()
	if err := cause(t, l); !errors.Is(err, CodeLeaseLost) || refusal(err).Reason != ReasonReleased {
		t.Error(err)
	}
}

// With Linger this client goes on with such a lease.
func TestAttachedLingers(t *testing.T) {
	t.Parallel()
	_, direct := start(t)
	c := connect(t, direct.options.Addresses[0])
	m := muted(c)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), TTL(6*time.Second), Linger(6*time.Second)))
	m.fallSilent()
	m.cut()
	sent := l.sentAt()
	until(t, "the client renews by itself", func() bool {
		if err := context.Cause(l.Context()); err != nil {
			t.Fatal(err)
		}
		return l.sentAt() != sent
	})
	if _, err := direct.TryAcquire(t.Context(), "a"); !errors.Is(err, CodeLocked) {
		t.Errorf("another acquire: %v", err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A lease is taken over from a stream that says nothing whatever has changed since it was
// acquired: else the end of the stream would be its end.
func TestATakeOverContradictsNothing(t *testing.T) {
	t.Parallel()
	_, direct := start(t)
	c := connect(t, direct.options.Addresses[0])
	m := muted(c)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), TTL(4*time.Second), Linger(4*time.Second), Owner("first"), Permits(3, 4)))
	if _, err := direct.Change(t.Context(), l.ID(), Change{Limit: 6, Permits: 2, Labels: Labels{Owner: "second"}}, "a"); err != nil {
		t.Fatal(err)
	}
	m.fallSilent()
	until(t, "the lease hangs on no stream", func() bool {
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		return !must[Lock](t)(direct.Inspect(t.Context(), "a")).Holders[0].Attached
	})
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Streams that begin, and say what no gateway does, serve nobody: who is given only such gives up.
func TestStreamsOfNoGateway(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, c *Client) error{
		"acquire": func(ctx context.Context, c *Client) error {
			_, err := c.Acquire(ctx, "a", Attached())
			return err
		},
		"events": func(ctx context.Context, c *Client) error {
			for _, err := range c.Events(ctx, "") {
				if err != nil {
					return err
				}
			}
			return nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, streams := streaming(t)
			defer c.Close()
			go func() {
				for {
					select {
					case to := <-streams:
						tell(to, "", "")
						tell(to, "granted", "not JSON")
						to.Close()
					case <-t.Context().Done():
						return
					}
				}
			}()
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*c.options.Patience)
			defer cancel()
			err := ask(ctx, c)
			if took := time.Since(begun); !errors.Is(err, ErrUnreachable) || !errors.Is(err, errNoGateway) || took > 2*c.options.Patience {
				t.Errorf("%s: %v after %s", name, err, took)
			}
		})
	}
}
