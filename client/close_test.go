package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// moments calls a function at each step of a client that others can see: before a request,
// after its answer, after each piece that is read of it, and when the client looks at its clock.
type moments struct {
	http.RoundTripper
	at func()
}

func (m moments) RoundTrip(r *http.Request) (*http.Response, error) {
	m.at()
	response, err := m.RoundTripper.RoundTrip(r)
	m.at()
	if err == nil {
		response.Body = momentsBody{response.Body, m.at}
	}
	return response, err
}

func (m moments) CloseIdleConnections() { m.RoundTripper.(*http.Transport).CloseIdleConnections() }

type momentsBody struct {
	io.ReadCloser
	at func()
}

func (b momentsBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.at()
	return n, err
}

// Whenever a client is closed, or its caller's context ends before, nothing is left of an
// acquire that has failed: neither a lease that nobody has nor a place in the queue.
func TestNothingIsLeftOfAnAcquire(t *testing.T) {
	t.Parallel()
	s, direct := start(t)
	modes := map[string][]Option{"plain": nil, "several": {Also("b")}, "attached": {Attached()}, "lingers": {Attached(), Linger(10 * time.Minute)}}
	for _, way := range []string{"close", "end", "end and close"} {
		for mode, options := range modes {
			failed := 0
			for moment := int64(1); ; moment++ {
				name := fmt.Sprintf("%s/%d/a", mode, moment)
				c, err := New(Options{Addresses: []string{s.Gateways[0].URL()}})
				if err != nil {
					t.Fatal(err)
				}
				c.undoes, c.closes = patience, patience // on a busy machine
				var n atomic.Int64
				ctx, end := context.WithCancel(t.Context())
				at := func() {
					if n.Add(1) != moment {
						return
					}
					if way != "close" {
						end()
					}
					if way != "end" {
						go c.Close()
						<-c.ctx.Done()
					}
				}
				c.now = func() instant { at(); return now() }
				c.http.Transport = moments{c.http.Transport, at}
				l, err := c.Acquire(ctx, name, append(options, TTL(10*time.Minute))...)
				last := n.Swap(math.MaxInt64/2) < moment // it was granted before
				if err == nil {
					_ = l.Release(t.Context()) // its gateway may have been first
				} else {
					failed++
				}
				c.Close()
				end()
				until(t, fmt.Sprintf("%s at moment %d: nothing is left of %s", way, moment, name), func() bool {
					seen := must[Lock](t)(direct.Inspect(t.Context(), name))
					return !seen.Held && seen.Waiting == 0
				})
				if last {
					break
				}
			}
			if failed < 3 {
				t.Errorf("%s, %s: only %d acquires have failed", way, mode, failed)
			}
		}
	}
}

// silent is a transport that grants all, and never answers anything else.
type silent struct{ deleted atomic.Int64 }

func (s *silent) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodDelete {
		s.deleted.Add(1)
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// Close waits for a second at most until what an acquire may have been granted is released.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, "http://frozen")
		frozen := &silent{}
		c.http.Transport = frozen
		c.now = func() instant { return instant{t: time.Now()} }
		failed := make(chan error)
		go func() {
			_, err := c.Acquire(t.Context(), "a")
			failed <- err
		}()
		synctest.Wait()
		begun := time.Now()
		go c.Close()
		if err := <-failed; err == nil {
			t.Error("it was granted")
		}
		c.Close()
		if took := time.Since(begun); took != time.Second || frozen.deleted.Load() == 0 {
			t.Errorf("it takes %s, and asks to release %d times", took, frozen.deleted.Load())
		}
	})
}

// Close ends the streams of events that are read, and those that are asked for after it end at once.
func TestCloseEndsEvents(t *testing.T) {
	for begins, answer := range map[string]script{
		"a stream":        kinds["events"].right,
		"no answer yet":   frozen,
		"one that is cut": func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") },
	} {
		synctest.Test(t, func(t *testing.T) {
			c := scripted(t, 2, answer)
			told := make(chan error)
			go func() {
				var last error
				for _, err := range c.Events(context.Background(), "") {
					last = err
				}
				told <- last
			}()
			time.Sleep(time.Second)
			begun := time.Now()
			c.Close()
			err := <-told
			if took := time.Since(begun); !errors.Is(err, ErrClosed) || took > 0 {
				t.Errorf("%s: %v, %s after Close", begins, err, took)
			}
			n := 0
			for _, err := range c.Events(context.Background(), "") {
				if n++; !errors.Is(err, ErrClosed) {
					t.Errorf("%s: after Close: %v", begins, err)
				}
			}
			if took := time.Since(begun); n != 1 || took > 0 {
				t.Errorf("%s: after Close: %d events in %s", begins, n, took)
			}
		})
	}
}
