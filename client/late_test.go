package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// A request for a stream that came to nothing comes to its gateway late, and replaces the stream that was granted since. Its own end, which
// nobody but its gateway sees, releases the lease: nobody counts on that from when it was read that the stream was replaced.

// doubted fails if a lease is believed, or its context lives for long, when its client was told that a late request has replaced its stream and
// no gateway answers.
func doubted(t *testing.T, l *Lease, within time.Duration) {
	t.Helper()
	synctest.Wait()
	if err := l.Err(); !errors.Is(err, ErrUnknown) || l.Remaining() > 0 {
		t.Errorf("it counts on %s: %v", l.Remaining(), err)
	}
	if err := context.Cause(l.Context()); err != nil {
		t.Errorf("its context is over at once: %v", err)
	}
	told := time.Now()
	<-l.Context().Done()
	if took := time.Since(told); took > within+10*time.Millisecond {
		t.Errorf("its context is over after %s: %v", took, context.Cause(l.Context()))
	}
}

// It does not matter who listens: a stream that was silent, or whose lease was shortened, is not counted on any more, and may speak again.
func TestReplacedUnheard(t *testing.T) {
	for what, leave := range map[string]func(*testing.T, *Client, *Lease){
		"silent": func(*testing.T, *Client, *Lease) { time.Sleep(5 * time.Second) },
		"shortened": func(t *testing.T, c *Client, l *Lease) {
			must[time.Duration](t)(c.Renew(t.Context(), l.ID(), 9*time.Second, "a"))
		},
	} {
		for n, by := range []string{"by what is under way", "by what came to nothing"} {
			t.Run(what+" "+by, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const ttl = 12 * time.Second
					c := scripted(t, 1, nil)
					defer c.Close()
					puts := 0
					l, to := attached(t, c, func(r *http.Request) (*http.Response, error) {
						switch {
						case r.Method == http.MethodDelete:
							return says(204, "")
						case r.Method == http.MethodPut && what == "shortened" && puts == 0:
							puts++
							return says(200, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":9000,"expires_in_ms":9000,"renew_in_ms":3000}`, r.Header.Get("Lease-Id")))
						}
						return frozen(r)
					}, ttl, TTL(ttl))
					l.expects(n, 0)
					leave(t, c, l)
					synctest.Wait()
					if err := l.Err(); err != nil || !l.detached.Load() {
						t.Fatalf("it is taken over: %t, %v", l.detached.Load(), err)
					}
					tell(to, "lost", `{"code":"replaced"}`)
					to.Close()
					if n == 0 { // an answer is due at once
						time.Sleep(minSlack + time.Millisecond)
					}
					doubted(t, l, 2*maxDoubt)
				})
			})
		}
	}
}

// A take-over is asked for again in time where its answer is lost that has replaced the stream.
func TestReplacedByATakeOverThatIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, nil)
		defer c.Close()
		posts, streams := 0, make(chan *io.PipeWriter, 1)
		l, to := attached(t, c, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPost {
				if posts++; posts == 1 {
					tell(<-streams, "lost", `{"code":"replaced"}`)
					return frozen(r)
				}
			}
			return grants(r)
		}, 30*time.Second)
		streams <- to
		must[time.Duration](t)(c.Renew(t.Context(), l.ID(), 20*time.Second, "a"))
		lives(t, l, time.Minute)
		if err := l.Err(); err != nil || posts != 2 {
			t.Errorf("taken over by request %d: %v", posts, err)
		}
	})
}

// lateSet returns a lease of two names that hangs on its second stream, as the gateway of the first one has not answered when it was asked for
// another: late is what that is to be told, and to what the second one is. grant grants one.
func lateSet(t *testing.T, c *Client, streams chan *io.PipeWriter, options ...Option) (l *Lease, late, to *io.PipeWriter, grant func(*io.PipeWriter) *io.PipeWriter) {
	t.Helper()
	id := NewLeaseID()
	grant = func(to *io.PipeWriter) *io.PipeWriter {
		tell(to, "granted", fmt.Sprintf(`{"lease_id":%q,"ttl_ms":20000,"expires_in_ms":20000,"renew_in_ms":6000,"locks":[{"name":"a","fencing_token":7,"ttl_ms":20000},{"name":"b","fencing_token":8,"ttl_ms":20000}]}`, id))
		return to
	}
	first := make(chan *io.PipeWriter, 1)
	go func() { first <- grant(<-streams) }()
	l = must[*Lease](t)(c.Acquire(t.Context(), "a", append(options, Also("b"), Attached(), LeaseID(id), TTL(20*time.Second))...))
	(<-first).Close()
	late = <-streams
	to = grant(<-streams)
	synctest.Wait()
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	return l, late, to, grant
}

// A set was replaced by what it is still asking for, or by another process: its client does not know.
func TestSetReplacedByWhatIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, streams := streaming(t)
		defer c.Close()
		c.http.Transport.(*told).answer = frozen
		l, _, to, _ := lateSet(t, c, streams)
		tell(to, "lost", `{"code":"replaced"}`)
		synctest.Wait()
		if err := l.Err(); err != nil {
			t.Errorf("before an answer is due: %v", err)
		}
		time.Sleep(minSlack + time.Millisecond)
		doubted(t, l, 2*maxDoubt)
	})
}

// A set may hang on any stream that was granted while it was asked for another one.
func TestSetReplacedBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, streams := streaming(t)
		defer c.Close()
		l, late, _, grant := lateSet(t, c, streams)
		grant(late)
		time.Sleep(time.Second)
		l.expects(1, 0)
		tell(late, "lost", `{"code":"replaced"}`)
		synctest.Wait()
		if err := l.Err(); !errors.Is(err, ErrUnknown) {
			t.Errorf("it counts on %s: %v", l.Remaining(), err)
		}
		grant(<-streams)
		lives(t, l, 5*time.Second)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A set hangs on a stream that lives, and may have hung on another one instead that is over: it is asked for again, at once, with Linger too.
func TestSetBesideAnEnd(t *testing.T) {
	for what, test := range map[string]struct {
		linger  time.Duration
		granted bool
	}{
		"asked for before, and fails":  {},
		"granted late":                 {granted: true},
		"granted late, and it lingers": {linger: 6 * time.Second, granted: true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, streams := streaming(t)
				defer c.Close()
				l, late, _, grant := lateSet(t, c, streams, Linger(test.linger))
				if test.granted {
					grant(late)
				}
				time.Sleep(time.Second)
				late.CloseWithError(io.ErrUnexpectedEOF)
				select {
				case to := <-streams:
					grant(to)
				case <-l.Context().Done():
					t.Fatalf("nothing is asked for: %v", context.Cause(l.Context()))
				}
				lives(t, l, 5*time.Second)
				if err := l.Err(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// What a request without Linger leaves is released by its end, whatever the Lease has that it replaces.
func TestLateRequestWithoutLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, streams := streaming(t)
		defer c.Close()
		id := NewLeaseID()
		attach := func(options ...Option) (*Lease, *io.PipeWriter) {
			stream := make(chan *io.PipeWriter, 1)
			go func() {
				to := <-streams
				tell(to, "granted", life(id, 12*time.Second))
				stream <- to
			}()
			return must[*Lease](t)(c.Acquire(t.Context(), "a", append(options, Attached(), LeaseID(id))...)), <-stream
		}
		older, _ := attach()
		older.expects(1, 0)
		l, to := attach(Linger(8 * time.Second))
		c.http.Transport.(*told).answer = frozen
		to.Close()
		doubted(t, l, maxDoubt)
	})
}

// Another process takes a lease over for which a request of this one came to nothing: not in the minute after, and then it is not disturbed.
func TestLateForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []time.Duration{longestLate - 5*time.Second, longestLate + time.Second} {
			c := scripted(t, 1, nil)
			l, to := attached(t, c, grants, 30*time.Second)
			l.expects(1, 0)
			for range after / time.Second {
				time.Sleep(time.Second)
				tell(to, "renewed", `{"ttl_ms":30000,"expires_in_ms":30000,"elapsed_ms":`+fmt.Sprint(time.Since(l.grantedAt.t).Milliseconds())+`}`)
			}
			tell(to, "lost", `{"code":"replaced"}`)
			time.Sleep(time.Second)
			if replaced := errors.Is(l.Err(), CodeReplaced); replaced != (after > longestLate) {
				t.Errorf("after %s: %v", after, l.Err())
			}
			c.Close()
		}
	})
}

// A stream beside the one that a set hangs on is remembered when it has ended, until another one was asked for since.
func TestSetReplacedBesideTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, streams := streaming(t)
		defer c.Close()
		l, late, _, grant := lateSet(t, c, streams)
		grant(late)
		time.Sleep(time.Second)
		l.expects(1, 0)
		tell(late, "lost", `{"code":"replaced"}`)
		late.Close()
		synctest.Wait()
		l.mu.Lock()
		beside := len(l.beside)
		l.mu.Unlock()
		<-streams // it is asked for, and not answered
		one := &attempt{}
		go func() { grant(<-streams) }()
		if err := l.attachAgain(one); err != nil { // as one that was asked for before, and is granted late
			t.Fatal(err)
		}
		if err := l.Err(); !errors.Is(err, ErrUnknown) {
			t.Errorf("of %d streams beside one was replaced, and it counts on %s: %v", beside, l.Remaining(), err)
		}
	})
}

// What came to nothing long ago says nothing of what comes later: not to a Lease that follows, nor together with what comes to nothing then.
func TestLongAgoIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, nil)
		defer c.Close()
		older, to := attached(t, c, grants, time.Hour, Linger(time.Minute))
		defer to.Close()
		older.expects(5, 0)
		time.Sleep(longestLate + time.Second)
		if n, _ := older.mayReplace(); n > 0 {
			t.Errorf("%d requests may come late to the next one", n)
		}
		older.expects(1, time.Second)
		if n, linger := older.mayReplace(); n != 1 || linger != time.Second {
			t.Errorf("%d requests may come late, and leave it for %s", n, linger)
		}
	})
}
