package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// told is a gateway whose streams say what a test has them say. Every other request is answered by answer.
type told struct {
	to     chan *io.PipeWriter
	answer script
}

func (s *told) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Accept") != "text/event-stream" {
		return s.answer.RoundTrip(r)
	}
	from, to := io.Pipe()
	response, err := says(200, "")
	response.Header.Set("Content-Type", "text/event-stream")
	response.Body, response.Request = from, r
	context.AfterFunc(r.Context(), func() { to.CloseWithError(r.Context().Err()) })
	select {
	case s.to <- to:
		return response, err
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// attached returns a lease that hangs on a stream, and the stream.
func attached(t *testing.T, c *Client, answer script, ttl time.Duration, options ...Option) (*Lease, *io.PipeWriter) {
	t.Helper()
	s := &told{make(chan *io.PipeWriter, 1), answer}
	c.http.Transport = s
	stream := make(chan *io.PipeWriter, 1)
	id := NewLeaseID()
	go func() {
		to := <-s.to
		ms := ttl.Milliseconds()
		tell(to, "granted", fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":%d,"expires_in_ms":%d,"renew_in_ms":%d,"elapsed_ms":0}`, id, ms, ms, ms/3))
		stream <- to
	}()
	l, err := c.Acquire(t.Context(), "a", append(options, Attached(), LeaseID(id))...)
	if err != nil {
		t.Fatal(err)
	}
	return l, <-stream
}

func tell(to *io.PipeWriter, event, data string) {
	_, _ = io.WriteString(to, "event: "+event+"\ndata: "+data+"\n\n")
}

// A gateway whose clock is fast moves no deadline: not by the events that are read, nor by one that comes late.
func TestStreamsOfAFastGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 4 * time.Second
		c := scripted(t, 1, nil)
		defer c.Close()
		l, to := attached(t, c, frozen, ttl, TTL(ttl))
		begun, step := time.Now(), time.Second
		for range 600 {
			time.Sleep(step)
			tell(to, "renewed", fmt.Sprintf(`{"expires_in_ms":%d,"elapsed_ms":%d}`, ttl.Milliseconds(), (time.Since(begun)*105/100).Milliseconds()))
			synctest.Wait()
			if left := l.Remaining(); left > ttl || left < ttl-100*time.Millisecond || l.Err() != nil {
				t.Fatalf("after %s it counts on %s: %v", time.Since(begun), left, l.Err())
			}
		}
		said := (time.Since(begun) * 105 / 100).Milliseconds()
		time.Sleep(2 * time.Second)
		tell(to, "renewed", fmt.Sprintf(`{"expires_in_ms":%d,"elapsed_ms":%d}`, ttl.Milliseconds(), said))
		synctest.Wait()
		if left := l.Remaining(); left > 2*time.Second {
			t.Errorf("by what was said two seconds ago it counts on %s", left)
		}
	})
}

// After the end of the stream that it hangs on a lease is counted on for Linger since the last event at most, and
// for nothing without: not until it was taken over. Its context ends when that has not come about in maxDoubt.
func TestEndOfItsStream(t *testing.T) {
	const ttl = 12 * time.Second
	taken := func(r *http.Request) (*http.Response, error) {
		return says(200, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":12000,"expires_in_ms":12000,"renew_in_ms":4000,"waited_ms":0}`, r.Header.Get("Lease-Id")))
	}
	renewedOnly := func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPost {
			return says(409, `{"code":"conflict"}`)
		}
		return taken(r)
	}
	end := func(to *io.PipeWriter) { to.Close() }
	replaced := func(to *io.PipeWriter) { tell(to, "lost", `{"code":"replaced"}`); to.Close() }
	for name, test := range map[string]struct {
		linger time.Duration
		ends   func(*io.PipeWriter)
		answer script
		left   time.Duration // that it counts on right after
		over   time.Duration // how long after the end its context is over; 0: it lives
	}{
		"end":                        {0, end, frozen, 0, maxDoubt},
		"reset":                      {0, func(to *io.PipeWriter) { to.CloseWithError(io.ErrUnexpectedEOF) }, frozen, 0, maxDoubt},
		"late":                       {0, replaced, frozen, 0, 2 * maxDoubt},
		"late, taken over":           {0, replaced, taken, ttl, 0},
		"late, lingers":              {6 * time.Second, replaced, frozen, 0, 2 * maxDoubt},
		"its gateway's store":        {0, func(to *io.PipeWriter) { tell(to, "lost", `{"code":"unavailable"}`); to.Close() }, frozen, 0, maxDoubt},
		"taken over":                 {0, end, taken, ttl, 0},
		"renewed, not taken over":    {0, end, renewedOnly, 0, maxDoubt},
		"lingers":                    {6 * time.Second, end, frozen, 4 * time.Second, 3 * time.Second},
		"lingers less than its age":  {2 * time.Second, end, frozen, 0, maxDoubt},
		"lingers, taken over":        {6 * time.Second, end, taken, ttl, 0},
		"lingers, renewed":           {6 * time.Second, end, renewedOnly, 6 * time.Second, 0},
		"draining":                   {0, func(to *io.PipeWriter) { tell(to, "draining", `{"code":"draining"}`); to.Close() }, frozen, ttl - 2*time.Second, ttl - 3*time.Second},
		"the key has lost its right": {0, func(to *io.PipeWriter) { tell(to, "lost", `{"code":"forbidden"}`); to.Close() }, frozen, ttl - 2*time.Second, ttl - 3*time.Second},
		"silence":                    {0, func(*io.PipeWriter) {}, frozen, ttl - 2*time.Second, ttl - 3*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := scripted(t, 1, nil)
				defer c.Close()
				l, to := attached(t, c, func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodDelete {
						return says(204, "")
					}
					return test.answer(r)
				}, ttl, TTL(ttl), Linger(test.linger))
				time.Sleep(2 * time.Second)
				if strings.HasPrefix(name, "late") {
					l.expects(1, test.linger) // as after a request that was not answered
				}
				test.ends(to)
				ended := time.Now()
				synctest.Wait()
				if left := l.Remaining(); max(0, left) != test.left || (l.Err() == nil) != (left > 0) {
					t.Errorf("it counts on %s, want %s: %v", left, test.left, l.Err())
				}
				if err := context.Cause(l.Context()); err != nil {
					t.Errorf("its context is over at once: %v", err)
				}
				if test.over == 0 {
					lives(t, l, time.Minute)
					if err := l.Err(); err != nil {
						t.Error(err)
					}
					return
				}
				<-l.Context().Done()
				if took := time.Since(ended); took > test.over || took < test.over-10*time.Millisecond || !errors.Is(context.Cause(l.Context()), ErrUnknown) {
					t.Errorf("its context is over after %s, want %s: %v", took, test.over, context.Cause(l.Context()))
				}
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("it is released: %v", err)
				}
			})
		})
	}
}

// Do waits for what is asked of a lease whose stream has ended: work that is done by then was not done in vain.
func TestDoIsDoneWhileItsStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, k := keep(t, 9*time.Second)
		defer c.Close()
		if err := c.Do(t.Context(), "a", func(_ context.Context, l *Lease) error {
			thaw := k.freeze(http.MethodPost)
			k.harm(breakOff)
			synctest.Wait()
			if err := l.Err(); !errors.Is(err, ErrUnknown) {
				t.Errorf("it counts on it: %v", err)
			}
			time.AfterFunc(500*time.Millisecond, thaw)
			return nil
		}, Attached()); err != nil {
			t.Error(err)
		}
	})
}

// A process that has stood still reads what its stream has said meanwhile before its lease is over, and counts on
// nothing until then; where nothing was said it is over in a moment, also if whatever it does comes late from then on.
func TestStoodStill(t *testing.T) {
	for name, is := range map[string]struct{ renewed, starved bool }{"renewed": {renewed: true}, "silent": {}, "starved": {starved: true}} {
		synctest.Test(t, func(t *testing.T) {
			const ttl = 3 * time.Second
			var ahead atomic.Int64
			c := scripted(t, 1, nil)
			defer c.Close()
			c.now = func() instant {
				if is.starved && ahead.Load() > 0 {
					ahead.Add(int64(longestLook) + 1)
				}
				return instant{time.Now(), time.Duration(ahead.Load()) + time.Since(time.Unix(0, 0))}
			}
			l, to := attached(t, c, frozen, ttl, TTL(ttl))
			time.Sleep(time.Second)
			ahead.Store(int64(6 * time.Second))
			if err := l.Err(); !errors.Is(err, ErrUnknown) || l.Remaining() > 0 {
				t.Errorf("it counts on %s: %v", l.Remaining(), err)
			}
			woken := time.Now()
			if is.renewed {
				tell(to, "renewed", fmt.Sprintf(`{"expires_in_ms":%d,"elapsed_ms":6000}`, ttl.Milliseconds()))
				synctest.Wait()
				if err := l.Err(); err != nil || l.Remaining() != 2*time.Second {
					t.Errorf("it counts on %s: %v", l.Remaining(), err)
				}
				lives(t, l, time.Second)
				return
			}
			<-l.Context().Done()
			if took := time.Since(woken); took > maxDoubt || !errors.Is(l.Err(), ErrUnknown) {
				t.Errorf("%s: %v after %s", name, l.Err(), took)
			}
		})
	}
}
