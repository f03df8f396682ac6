package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const lostAnswer = `{"code":"lease_lost","reason":"unknown","detail":"it is not held"}`

// slowly answers a request when so much time has passed.
func slowly(d time.Duration, r *http.Request, s script) (*http.Response, error) {
	if !sleep(r.Context(), d) {
		return nil, r.Context().Err()
	}
	return s(r)
}

// An acquire without a stream that is answered after a stream of its client was granted the lease id, or was given up, asks again: which of
// the two the store has come to last is not known. What was granted before the end of a stream is given up.
func TestAcquiredBesideAStream(t *testing.T) {
	for name, test := range map[string]struct {
		slow    time.Duration // the answer to the acquire without a stream
		granted bool          // the stream
		posts   int64
		ends    bool // the Lease that was found without a stream
	}{
		"a stream is granted first":  {2 * time.Second, true, 2, false},
		"a stream is given up first": {2 * time.Second, false, 2, false},
		"a stream is given up after": {0, false, 1, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			var posts atomic.Int64
			c, streams := streaming(t)
			defer c.Close()
			c.http.Transport.(*told).answer = func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost && posts.Add(1) == 1 {
					return slowly(test.slow, r, renews)
				}
				return renews(r)
			}
			id, ctx, end := NewLeaseID(), t.Context(), context.CancelFunc(nil)
			ctx, end = context.WithCancel(ctx)
			stream := make(chan *Lease, 1)
			go func() {
				l, _ := c.Acquire(ctx, "a", Attached(), LeaseID(id))
				stream <- l
			}()
			to := <-streams
			found := make(chan *Lease, 1)
			go func() { found <- must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(id))) }()
			synctest.Wait()
			if test.granted {
				tell(to, "granted", life(id, 30*time.Second))
			} else {
				end()
			}
			on := <-stream
			l := <-found
			synctest.Wait()
			if n := posts.Load(); n != test.posts {
				t.Errorf("%s: it has asked %d times", name, n)
			}
			if err := l.Err(); errors.Is(err, CodeReplaced) != test.ends || err != nil && !test.ends {
				t.Errorf("%s: %v", name, err)
			}
			if on != nil && !errors.Is(on.Err(), CodeReplaced) {
				t.Errorf("%s: the one with a stream: %v", name, on.Err())
			}
			end()
		})
	}
}

// A page of a proxy says nothing of what its gateway does: the end of the stream that was asked for releases what the older Lease has.
func TestAttachThroughAProxyThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Accept") == "text/event-stream" {
				return says(504, "<html>Gateway Timeout</html>")
			}
			return renews(r)
		})
		defer c.Close()
		c.options.Patience = time.Second
		older := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		if _, err := c.TryAcquire(t.Context(), "a", LeaseID(older.ID()), Attached()); err == nil {
			t.Fatal("it was granted")
		}
		if err := older.Err(); !errors.Is(err, CodeReplaced) {
			t.Errorf("the older: %v", err)
		}
	})
}

// An acquire that waits takes nothing from a renewal that was refused, or that is over or of other names; one that was carried out for less
// shortens what is granted from when that was granted on.
func TestGrantedAfterRenewals(t *testing.T) {
	for name, test := range map[string]struct {
		of     string
		status int
		ttl    time.Duration
		want   time.Duration
	}{
		"refused":        {"a", 412, 30 * time.Second, 30 * time.Second},
		"of other names": {"b", 200, 5 * time.Second, 30 * time.Second},
		"for less":       {"a", 200, 5 * time.Second, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			var posts atomic.Int64
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				id := r.Header.Get("Lease-Id")
				switch r.Method {
				case http.MethodPost:
					posts.Add(1)
					return slowly(10*time.Second, r, func(*http.Request) (*http.Response, error) {
						return says(201, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000,"waited_ms":10000}`, id))
					})
				case http.MethodPut:
					if test.status == 412 {
						return says(412, lostAnswer)
					}
					return says(200, fmt.Sprintf(`{"name":%q,"lease_id":%q,"fencing_token":7,"ttl_ms":5000,"expires_in_ms":5000,"renew_in_ms":1000}`, test.of, id))
				}
				return says(204, "")
			})
			defer c.Close()
			id, done := NewLeaseID(), make(chan *Lease)
			go func() {
				done <- must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(id), Wait(2*time.Minute), NotRenewed()))
			}()
			for range 8 {
				sleep(t.Context(), time.Second)
				_, _ = c.Renew(t.Context(), id, test.ttl, test.of)
			}
			c.leases.mu.Lock()
			for _, q := range c.leases.acquires[id] {
				if n := len(q.beside); n > 1 {
					t.Errorf("%s: %d renewals are kept", name, n)
				}
			}
			c.leases.mu.Unlock()
			l := <-done
			if got := l.Remaining(); got > test.want || got < test.want-100*time.Millisecond || posts.Load() != 1 {
				t.Errorf("%s: it is counted on for %s after %d requests", name, got, posts.Load())
			}
		})
	}
}

// An attempt to renew that may be carried out late bounds a Lease that is found, also where the acquire began after that and was answered after
// the next attempt.
func TestFoundAfterADoubtfulRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var puts atomic.Int64
		c := scripted(t, 2, func(r *http.Request) (*http.Response, error) {
			var body renewRequest
			_ = json.NewDecoder(r.Body).Decode(&body)
			answer := func(*http.Request) (*http.Response, error) {
				return says(200, life(r.Header.Get("Lease-Id"), max(time.Duration(body.TTL)*time.Millisecond, 3*time.Second)))
			}
			switch {
			case r.Method == http.MethodDelete:
				return says(204, "")
			case r.Method == http.MethodPost:
				body.TTL = 30_000
				return slowly(2*time.Second, r, answer)
			case body.TTL != 3000:
				body.TTL = 30_000
				return answer(r)
			case puts.Add(1) == 1:
				return says(503, `{"code":"unavailable","detail":"the outcome is unknown"}`)
			}
			return slowly(time.Second, r, answer)
		})
		defer c.Close()
		id, renewed := NewLeaseID(), make(chan bool)
		go func() {
			_, _ = c.Renew(t.Context(), id, 3*time.Second, "a")
			close(renewed)
		}()
		sleep(t.Context(), 300*time.Millisecond)
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(id)))
		<-renewed
		lives(t, l, 2*time.Second)
		if got := l.Remaining(); got > 3*time.Second {
			t.Errorf("it is counted on for %s", got)
		}
	})
}

// A renewal that is refused changes the TTL of none of the Leases, also where one of them was found meanwhile.
func TestRefusedBesideAnAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			var body renewRequest
			data, _ := io.ReadAll(r.Body)
			if _ = json.Unmarshal(data, &body); body.Limit > 0 {
				return slowly(time.Second, r, func(*http.Request) (*http.Response, error) {
					return says(400, `{"code":"invalid_request","field":"limit","detail":"it is no permit"}`)
				})
			}
			ttl := 30 * time.Second
			if body.TTL > 0 {
				ttl = time.Duration(body.TTL) * time.Millisecond
			}
			return says(200, life(r.Header.Get("Lease-Id"), ttl))
		})
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		refused := make(chan error)
		go func() {
			_, err := c.Change(t.Context(), l.ID(), Change{TTL: 3 * time.Second, Limit: 1}, "a")
			refused <- err
		}()
		synctest.Wait()
		found := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(l.ID())))
		if err := <-refused; !errors.Is(err, CodeInvalidRequest) {
			t.Fatal(err)
		}
		for _, l := range []*Lease{l, found} {
			if got := l.renewsFor(); got != 30*time.Second {
				t.Errorf("it is renewed with %s", got)
			}
		}
	})
}

// A Lease whose lease id was granted with another token was lost, and knows.
func TestFoundWithANewerToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := 7
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			return says(200, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":%d,"ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000}`, r.Header.Get("Lease-Id"), token))
		})
		defer c.Close()
		older := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		token = 9
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(older.ID())))
		if err := older.Err(); !errors.Is(err, CodeLeaseLost) || l.Err() != nil {
			t.Errorf("the older: %v; the newer: %v", err, l.Err())
		}
	})
}

// One that is not renewed lives no longer for the renewals of another.
func TestNotRenewedBesideOneThatIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, renews)
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		found := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(l.ID()), NotRenewed()))
		lives(t, l, 31*time.Second)
		if err := found.Err(); !errors.Is(err, ErrUnknown) || l.Err() != nil || len(c.own(l.ID(), []string{"a"})) != 1 {
			t.Errorf("the one: %v; the other: %v", err, l.Err())
		}
	})
}

// A Lease knows at once that it was lost where a renewal by its lease id is told so.
func TestLostByARenewal(t *testing.T) {
	for _, options := range [][]Option{nil, {NotRenewed()}} {
		synctest.Test(t, func(t *testing.T) {
			gone := false
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				if gone && r.Method == http.MethodPut {
					return says(412, lostAnswer)
				}
				return renews(r)
			})
			defer c.Close()
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", options...))
			gone = true
			if _, err := c.Renew(t.Context(), l.ID(), 0, "a"); !errors.Is(err, CodeLeaseLost) {
				t.Fatal(err)
			}
			if err := l.Err(); !errors.Is(err, CodeLeaseLost) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Of two streams that were asked for at once the end of either may be the release of what hangs on the other: nothing is counted on until
// it hangs on a newer one.
func TestTheOtherStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, streams := streaming(t)
		defer c.Close()
		id := NewLeaseID()
		set := fmt.Sprintf(`{"lease_id":%q,"ttl_ms":20000,"expires_in_ms":20000,"renew_in_ms":6000,"locks":[{"name":"a","fencing_token":7,"ttl_ms":20000},{"name":"b","fencing_token":8,"ttl_ms":20000}]}`, id)
		grant := func() *io.PipeWriter {
			to := <-streams
			tell(to, "granted", set)
			return to
		}
		first := make(chan *io.PipeWriter, 1)
		go func() { first <- grant() }()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Attached(), LeaseID(id), TTL(20*time.Second)))
		(<-first).Close()
		late := <-streams
		grant()
		synctest.Wait()
		tell(late, "granted", set)
		lives(t, l, time.Second)
		if err := l.Err(); err != nil {
			t.Fatalf("while both streams go on: %v", err)
		}
		late.Close()
		synctest.Wait()
		if err := l.Err(); !errors.Is(err, ErrUnknown) {
			t.Errorf("after the end of one that the lease may hang on: %v", err)
		}
		grant()
		synctest.Wait()
		if err := l.Err(); err != nil {
			t.Errorf("once it hangs on a newer one: %v", err)
		}
	})
}
