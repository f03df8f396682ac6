package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// script is a transport that answers as it is told; its time is that of a test's bubble.
type script func(r *http.Request) (*http.Response, error)

func (s script) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := s(r)
	if response != nil {
		response.Request = r
	}
	return response, err
}

// scripted returns a client of gateways that answer as they are told, which looks at no clock
// but that of the bubble.
func scripted(t *testing.T, gateways int, s script) *Client {
	t.Helper()
	addresses := []string{"http://a", "http://b", "http://c"}[:gateways]
	c, err := New(Options{Addresses: addresses, Owner: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	c.http.Transport = s
	c.now = func() instant { return instant{t: time.Now()} }
	return c
}

// says is an answer.
func says(status int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// grants is the answer of a gateway that grants a lease, or renews it.
func grants(r *http.Request) (*http.Response, error) {
	return says(201, `{"name":"a","lease_id":"`+r.Header.Get("Lease-Id")+`","fencing_token":7,"ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000,"waited_ms":0}`)
}

// frozen is a gateway that never answers.
func frozen(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

// A lease is released although its caller's context has ended, or ends meanwhile: else a
// deferred release would leave it held.
func TestReleaseOutlivesItsContext(t *testing.T) {
	for name, release := range map[string]func(context.Context, *Client, *Lease) error{
		"lease":    func(ctx context.Context, c *Client, l *Lease) error { return l.Release(ctx) },
		"lease id": func(ctx context.Context, c *Client, l *Lease) error { return c.Release(ctx, l.ID(), l.Name()) },
	} {
		for when, before := range map[string]bool{"before": true, "meanwhile": false} {
			for gateways := 1; gateways <= 2; gateways++ {
				synctest.Test(t, func(t *testing.T) {
					ctx, end := context.WithCancel(t.Context())
					defer end()
					released := false
					c := scripted(t, gateways, func(r *http.Request) (*http.Response, error) {
						switch {
						case r.Method != http.MethodDelete:
							return grants(r)
						case ctx.Err() == nil:
							end()
							return frozen(r)
						case r.URL.Host == "a" && gateways == 2:
							return frozen(r)
						}
						released = true
						return says(204, "")
					})
					defer c.Close()
					l := must[*Lease](t)(c.Acquire(ctx, "a"))
					if before {
						end()
					}
					if err := release(ctx, c, l); err != nil || !released {
						t.Errorf("%s, %d gateways, ended %s: %v, released: %t", name, gateways, when, err, released)
					}
				})
			}
		}
	}
}

// It takes no longer than it says, where no gateway answers.
func TestReleaseIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		within time.Duration // until the context ends; 0: it has ended; -1: never
		byID   bool
		least  time.Duration
		most   time.Duration
	}{
		"ended":              {0, false, 2 * time.Second, 2 * time.Second},
		"ended, by its id":   {0, true, 2 * time.Second, 2 * time.Second},
		"meanwhile":          {time.Second, false, 3 * time.Second, 3 * time.Second},
		"meanwhile, by id":   {time.Second, true, 3 * time.Second, 3 * time.Second},
		"never":              {-1, false, 5 * time.Second, 5 * time.Second},
		"as it would anyway": {5*time.Second - 1, false, 7*time.Second - 1, 7*time.Second - 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodDelete {
						asked.Add(1)
						return frozen(r)
					}
					return grants(r)
				})
				defer c.Close()
				l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
				ctx, end := context.WithCancel(t.Context())
				defer end()
				if test.within >= 0 {
					ctx, end = context.WithTimeout(ctx, test.within)
					defer end()
				}
				begun := time.Now()
				release := l.Release
				if test.byID {
					release = func(ctx context.Context) error { return c.Release(ctx, l.ID(), "a") }
				}
				err := release(ctx)
				if took := time.Since(begun); !errors.Is(err, ErrUnreachable) || took < test.least || took > test.most || asked.Load() == 0 {
					t.Errorf("%v after %s, asked %d times", err, took, asked.Load())
				}
			})
		})
	}
}
