package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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
						s.mu.Lock()
						held := time.Until(s.ends)
						s.mu.Unlock()
						if counted := l.Remaining(); counted > held { // P9: an answer counts from when its request was sent
							t.Errorf("it counts on %s, and the lease lives for %s", counted, held)
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
						bearable := late < maxDoubt // it is counted on once it was taken over
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

// What was answered to a request from before the lease was shortened does not end it.
func TestLateAnswerAfterTheLeaseWasShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			at, ttl, late := time.Since(begun), 30*time.Second, time.Duration(0)
			var asks renewRequest
			switch {
			case r.Method == http.MethodDelete:
				return says(204, "")
			case r.Method == http.MethodPut && at < 12*time.Second:
				late = 14*time.Second - at // before the one below
			case r.Method == http.MethodPut && at < 13500*time.Millisecond:
				late = 14500*time.Millisecond - at
			}
			if err := json.NewDecoder(r.Body).Decode(&asks); err == nil && asks.TTL > 0 {
				ttl = millis(asks.TTL)
			}
			if !sleep(r.Context(), late) {
				return nil, context.Cause(r.Context())
			}
			return says(200, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":%d,"expires_in_ms":%[2]d,"renew_in_ms":%d,"waited_ms":0}`, r.Header.Get("Lease-Id"), ttl.Milliseconds(), ttl.Milliseconds()/3))
		})
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", StopEarly(100*time.Millisecond)))
		time.Sleep(13*time.Second - time.Since(begun))
		if _, err := c.Renew(t.Context(), l.ID(), 2*time.Second, "a"); err != nil {
			t.Error(err)
		}
		lives(t, l, 10*time.Second)
	})
}

// A renewal at a gateway that stands still is given up once a later one was answered.
func TestSupersededAttemptsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stuck atomic.Int64
		c := scripted(t, 2, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut && r.URL.Host == "a" {
				stuck.Add(1)
				defer stuck.Add(-1)
				return frozen(r)
			}
			return grants(r)
		})
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		lives(t, l, 12*time.Second)
		if n := stuck.Load(); n != 1 {
			t.Errorf("%d renewals are at the gateway that stands still", n)
		}
		lives(t, l, 5*time.Minute)
		if n, late := stuck.Load(), c.late.Load(); n != 0 || late != 0 {
			t.Errorf("%d renewals are left there, %d are counted", n, late)
		}
	})
}

// A client that is being closed keeps no processor busy with leases that don't know of it yet.
func TestCloseKeepsNobodyBusy(t *testing.T) {
	c := scripted(t, 1, grants)
	const few = 1000
	var closing atomic.Bool
	var looks atomic.Int64
	unlock := sync.OnceFunc(c.mu.Unlock)
	c.now = func() instant {
		if closing.Load() && looks.Add(1) == few {
			unlock()
		}
		return instant{t: time.Now()}
	}
	l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
	c.mu.Lock() // as Close has it, so that the watch can't tell the lease
	closing.Store(true)
	c.cancel(ErrClosed)
	l.keeper.Wait()
	if n := looks.Load(); n >= few {
		t.Errorf("it has looked at the clocks %d times", n)
	}
	unlock()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// An acquire whose answers take longer than its TTL gives up after a few grants that were over when they came: each keeps others out.
func TestAnswersSlowerThanTheTTL(t *testing.T) {
	for name, options := range map[string][]Option{"plain": nil, "attached": {Attached()}, "lost answers": {Owner("lost")}} {
		for _, waits := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				grants, ended := 0, map[string]bool{}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
					id := r.Header.Get("Lease-Id")
					switch {
					case r.Method == http.MethodDelete:
						return says(204, "")
					case ended[id]:
						return says(412, `{"code":"lease_lost","reason":"expired"}`)
					}
					ended[id] = true
					if grants++; grants > 100 {
						cancel()
					}
					sleep(r.Context(), 300*time.Millisecond)
					if name == "lost answers" {
						return nil, errors.New("connection reset")
					}
					life := `"name":"a","lease_id":"` + id + `","fencing_token":7,"ttl_ms":250,"expires_in_ms":250,"renew_in_ms":80`
					if r.Header.Get("Accept") == "text/event-stream" {
						return streams(r, "text/event-stream", "event: granted\ndata: {"+life+",\"elapsed_ms\":0}\n\n")
					}
					return says(201, "{"+life+`,"waited_ms":0}`)
				})
				defer c.Close()
				acquire := c.TryAcquire
				if waits {
					acquire = c.Acquire
				}
				begun := time.Now()
				_, err := acquire(ctx, "a", append(options, TTL(250*time.Millisecond))...)
				if took := time.Since(begun); !errors.Is(err, ErrExpired) || grants != mostOver || took > 5*time.Second {
					t.Errorf("%s, waits %t: %v after %s and %d grants", name, waits, err, took, grants)
				}
			})
		}
	}
}
