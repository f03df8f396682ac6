package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slow are gateways on one store which carry out each request when it comes, and answer late. They
// have one lock.
type slow struct {
	ttl  time.Duration
	late map[string]time.Duration // by host; below 0: it carries out nothing, and never answers

	mu       sync.Mutex
	ends     time.Time // of the lease
	requests int
}

func (s *slow) answer(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	late := s.late[r.URL.Host]
	if late < 0 {
		s.mu.Unlock()
		return frozen(r)
	}
	held := time.Now().Before(s.ends)
	answer := func() (*http.Response, error) { return says(204, "") }
	switch {
	case r.Method == http.MethodDelete:
		s.ends = time.Time{}
	case r.Method == http.MethodPut && !held:
		answer = func() (*http.Response, error) {
			return says(412, `{"code":"lease_lost","reason":"expired"}`)
		}
	default:
		s.ends = time.Now().Add(s.ttl)
		if s.requests++; r.Method == http.MethodPost {
			late = 0 // it becomes slow afterwards
		}
		ms := s.ttl.Milliseconds()
		answer = func() (*http.Response, error) {
			return says(200, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":%d,"expires_in_ms":%d,"renew_in_ms":%d,"waited_ms":0}`, r.Header.Get("Lease-Id"), ms, ms, ms/3))
		}
	}
	s.mu.Unlock()
	if !sleep(r.Context(), late) {
		return nil, context.Cause(r.Context())
	}
	return answer()
}

// A lease is lost by its deadline only, however late the answers to its renewals come: one that is
// under way is left running. The requests stay few.
func TestSlowAnswers(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 10 * time.Minute, time.Hour} {
		for _, late := range []time.Duration{0, 100 * time.Millisecond, 500 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second, 3300 * time.Millisecond, 5 * time.Second, 10 * time.Second} {
			for others, hosts := range map[string]map[string]time.Duration{
				"one gateway":     {"a": late},
				"both slow":       {"a": late, "b": late},
				"the other fast":  {"a": late, "b": 0},
				"the other gone":  {"a": late, "b": -1},
				"the first gone":  {"a": -1, "b": late},
				"the other worse": {"a": late, "b": 10 * late},
			} {
				t.Run(fmt.Sprintf("%s/%s/%s", ttl, late, others), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := &slow{ttl: ttl, late: map[string]time.Duration{"a": 0, "b": 0}}
						c := scripted(t, len(hosts), s.answer)
						defer c.Close()
						l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
						s.mu.Lock()
						s.late = hosts
						s.mu.Unlock()
						begun := time.Now()
						// The first renewal is sent after a third of the TTL, the second gateway is asked within
						// 3 s or a third of what is left, and an answer has to come before the context ends.
						answered := ttl/3 + late
						if hosts["a"] < 0 {
							answered += min(3*time.Second, ttl/4)
						}
						bearable := answered < ttl-l.early()
						select {
						case <-l.Context().Done():
						case <-time.After(min(5*ttl, 2*ttl+2*time.Minute)):
						}
						switch lived, err := time.Since(begun), context.Cause(l.Context()); {
						case bearable && err != nil:
							t.Errorf("it ended after %s: %v", lived, err)
						case !bearable && err != nil:
							if hosts["a"] >= 0 && lived < ttl-l.early()-ttl/100 || !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "no answer after ") {
								t.Errorf("it ended after %s: %v", lived, err)
							}
						}
						s.mu.Lock()
						requests := s.requests
						s.mu.Unlock()
						if most := 5*3*maxAttempts + 10; requests > most {
							t.Errorf("%d requests in %s", requests, time.Since(begun))
						}
						if err := l.Release(t.Context()); late < releaseTimeout && hosts["a"] == late && hosts["b"] <= late && hosts["b"] >= 0 && context.Cause(l.Context()) == ErrReleased && err != nil {
							t.Errorf("release: %v", err)
						}
					})
				})
			}
		}
	}
}

// So it is of an attached lease whose stream has broken off: taking it over and renewing it are two
// requests, one after the other.
func TestSlowAnswersOfAnAttachedLease(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Second, 30 * time.Second, 10 * time.Minute} {
		for _, late := range []time.Duration{0, time.Second, 2 * time.Second, 5 * time.Second} {
			for gateways := 1; gateways <= 2; gateways++ {
				t.Run(fmt.Sprintf("%s/%s/%d", ttl, late, gateways), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := &slow{ttl: ttl, late: map[string]time.Duration{"a": late, "b": late}}
						c := scripted(t, gateways, func(r *http.Request) (*http.Response, error) {
							if r.Header.Get("Accept") == "text/event-stream" {
								return streamsThenBreaks(r, ttl)
							}
							if r.Method == http.MethodPost && !sleep(r.Context(), late) { // it takes the lease over
								return nil, context.Cause(r.Context())
							}
							return s.answer(r)
						})
						defer c.Close()
						l := must[*Lease](t)(c.Acquire(t.Context(), "a", Attached()))
						bearable := 2*late < ttl-l.early()
						lives(t, l, time.Millisecond)
						select {
						case <-l.Context().Done():
						case <-time.After(3 * ttl):
						}
						if err := context.Cause(l.Context()); bearable && err != nil {
							t.Errorf("it ended: %v", err)
						}
					})
				})
			}
		}
	}
}

// streamsThenBreaks grants a lease by a stream that ends at once.
func streamsThenBreaks(r *http.Request, ttl time.Duration) (*http.Response, error) {
	response, err := says(200, fmt.Sprintf("event: granted\ndata: {\"name\":\"a\",\"lease_id\":%q,\"fencing_token\":7,\"ttl_ms\":%d,\"expires_in_ms\":%d,\"renew_in_ms\":%d,\"elapsed_ms\":0}\n\n",
		r.Header.Get("Lease-Id"), ttl.Milliseconds(), ttl.Milliseconds(), ttl.Milliseconds()/3))
	response.Header.Set("Content-Type", "text/event-stream")
	return response, err
}
