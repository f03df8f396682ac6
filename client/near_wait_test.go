package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// serves has a gateway tell of its lease on all streams, and returns how many were opened.
func (n *nearEnd) serves(t *testing.T, streams chan *io.PipeWriter) *atomic.Int64 {
	var opened atomic.Int64
	go func() {
		for {
			select {
			case to := <-streams:
				opened.Add(1)
				go n.stream(t, to)
			case <-t.Context().Done():
				return
			}
		}
	}()
	return &opened
}

// An end that is far away, by MaxHold or by a notice, changes nothing: its gateway renews the lease until then.
func TestNearItsEndWithAFarBound(t *testing.T) {
	for name, test := range map[string]struct {
		more    string
		options []Option
	}{
		"none":     {"", nil},
		"max hold": {"", []Option{MaxHold(time.Hour)}},
		"notice":   {`,"breaks_in_ms":3600000`, nil},
	} {
		for _, left := range []time.Duration{200, 400, 600, 2000} {
			synctest.Test(t, func(t *testing.T) {
				n := endsIn(left*time.Millisecond, 3*time.Second)
				n.more = test.more
				c, streams := streaming(t)
				defer c.Close()
				c.http.Transport.(*told).answer = func(r *http.Request) (*http.Response, error) { return slowly(300*time.Millisecond, r, n.answer) }
				opened := n.serves(t, streams)
				l := must[*Lease](t)(c.Acquire(t.Context(), "a", append(test.options, LeaseID(n.id), Attached(), Wait(0))...))
				lives(t, l, 10*time.Second)
				if opened.Load() != 1 || n.posts.Load() > 0 {
					t.Errorf("%s, %d ms left: %d streams, %d POST", name, left, opened.Load(), n.posts.Load())
				}
			})
		}
	}
}

// What can't live longer, for somebody's MaxHold or a notice, is waited for: the next lease is granted. Who does not wait is told.
func TestNearItsLastEnd(t *testing.T) {
	for _, attached := range []bool{false, true} {
		for _, options := range [][]Option{nil, {MaxHold(time.Minute)}} {
			synctest.Test(t, func(t *testing.T) {
				id, end, token := NewLeaseID(), time.Now().Add(900*time.Millisecond), 7
				said := func() string {
					left := time.Until(end).Milliseconds()
					return fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":%d,"ttl_ms":30000,"expires_in_ms":%d,"renew_in_ms":%d,"elapsed_ms":0}`, id, token, left, min(10000, left/2))
				}
				c, streams := streaming(t)
				defer c.Close()
				asked := func() string {
					if !time.Now().Before(end) {
						token, end = 8, time.Now().Add(30*time.Second)
					}
					return said()
				}
				c.http.Transport.(*told).answer = func(r *http.Request) (*http.Response, error) {
					switch {
					case r.Method == http.MethodPost:
						return says(200, asked())
					case time.Now().Before(end):
						return says(200, said())
					}
					return says(412, lostAnswer)
				}
				go func() {
					for {
						select {
						case to := <-streams:
							tell(to, "granted", asked())
						case <-t.Context().Done():
							return
						}
					}
				}()
				if attached {
					options = append(options, Attached())
				}
				options = append(options, LeaseID(id), TTL(30*time.Second))
				if !attached {
					if _, err := c.TryAcquire(t.Context(), "a", options...); !errors.Is(err, ErrExpired) {
						t.Error(err)
					}
				}
				l := must[*Lease](t)(c.Acquire(t.Context(), "a", append(options, Wait(10*time.Second))...))
				if l.Token() != 8 || l.Err() != nil {
					t.Errorf("attached %t: token %d, %v", attached, l.Token(), l.Err())
				}
			})
		}
	}
}

// Who does not wait is told of what can't be counted on and is not renewed.
func TestTriedNearItsEndAndNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(11*time.Hour, 24*time.Hour)
		c := scripted(t, 1, n.answer)
		defer c.Close()
		begun := time.Now()
		_, err := c.TryAcquire(t.Context(), "a", LeaseID(n.id), NotRenewed(), TTL(24*time.Hour), StopEarly(12*time.Hour))
		if took := time.Since(begun); !errors.Is(err, ErrExpired) || took > 10*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// It is said why nothing has renewed it.
func TestNearItsEndAndRefused(t *testing.T) {
	for code, status := range map[Code]int{CodeUnauthenticated: 401, CodeForbidden: 403, CodeMisdirected: 421, CodeTooManyRequests: 429, CodeUnavailable: 503} {
		synctest.Test(t, func(t *testing.T) {
			n := endsIn(3*time.Second, 3*time.Second)
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPut {
					return says(status, fmt.Sprintf(`{"code":%q,"detail":"x"}`, code))
				}
				n.ends(time.Now().Add(200 * time.Millisecond))
				return n.answer(r)
			})
			defer c.Close()
			if _, err := c.TryAcquire(t.Context(), "a", LeaseID(n.id)); !errors.Is(err, code) || !errors.Is(err, ErrExpired) {
				t.Errorf("%s: %v", code, err)
			}
		})
	}
}

// Of a set one name is released while the acquire waits, which is told right before the renewal; so is a notice, and what this client does not
// know.
func TestToldNearItsEnd(t *testing.T) {
	for _, left := range []int{250, 500} {
		synctest.Test(t, func(t *testing.T) {
			c, streams := streaming(t)
			defer c.Close()
			id := NewLeaseID()
			go func() {
				to := <-streams
				tell(to, "granted", fmt.Sprintf(`{"lease_id":%q,"expires_in_ms":%d,"renew_in_ms":%d,"elapsed_ms":0,`+
					`"locks":[{"name":"a","fencing_token":7,"ttl_ms":3000},{"name":"b","fencing_token":8,"ttl_ms":3000}]}`, id, left, left/2))
				tell(to, "released", `{"name":"b","fencing_token":8,"elapsed_ms":0}`)
				tell(to, "notice", `{"name":"a","breaks_in_ms":60000,"elapsed_ms":0}`)
				tell(to, "unheard-of", `{}`)
				begun := time.Now()
				for sleep(t.Context(), time.Duration(left)*time.Millisecond/2) {
					tell(to, "renewed", fmt.Sprintf(`{"expires_in_ms":3000,"elapsed_ms":%d}`, time.Since(begun).Milliseconds()))
				}
			}()
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), LeaseID(id), Attached(), Wait(0)))
			if _, noticed := l.Notice(); len(l.Grants()) != 1 || !noticed {
				t.Errorf("%v, a notice: %t", l.Grants(), noticed)
			}
			lives(t, l, 5*time.Second)
		})
	}
}

// Beside a renewal with a shorter TTL nothing is waited for: who follows the lease takes it over for that.
func TestFreshBesideAShorterRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, streams := streaming(t)
		defer c.Close()
		id := NewLeaseID()
		var puts atomic.Int64
		c.http.Transport.(*told).answer = func(r *http.Request) (*http.Response, error) {
			ttl := 6 * time.Second
			if r.Method == http.MethodPut && puts.Add(1) == 1 {
				ttl = time.Second
			}
			return slowly(50*time.Millisecond, r, func(r *http.Request) (*http.Response, error) { return says(200, life(id, ttl)) })
		}
		go func() {
			to := <-streams
			sleep(t.Context(), 20*time.Millisecond)
			tell(to, "granted", life(id, 6*time.Second))
		}()
		go func() {
			sleep(t.Context(), 10*time.Millisecond)
			_, _ = c.Renew(t.Context(), id, time.Second, "a")
		}()
		begun := time.Now()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(id), Attached(), Wait(0), TTL(6*time.Second)))
		if took := time.Since(begun); took > 50*time.Millisecond || l.Err() != nil {
			t.Errorf("%v after %s", l.Err(), took)
		}
	})
}

// While it waits it is replaced by an older Lease of its client that takes its lease over, which is no loss: it asks again.
func TestReplacedNearItsEndByTheOlder(t *testing.T) {
	for _, left := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			c, streams := streaming(t)
			defer c.Close()
			n := endsIn(3*time.Second, 3*time.Second)
			var slow atomic.Int64
			var stream atomic.Pointer[io.PipeWriter]
			c.http.Transport.(*told).answer = func(r *http.Request) (*http.Response, error) {
				return slowly(time.Duration(slow.Load()), r, func(r *http.Request) (*http.Response, error) {
					if to := stream.Swap(nil); r.Method == http.MethodPost && to != nil {
						tell(to, "lost", `{"code":"replaced","detail":"a newer request has it"}`)
						to.Close()
					}
					return n.answer(r)
				})
			}
			go func() { tell(<-streams, "granted", n.said(0)) }() // and nothing more
			older := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Attached(), Wait(0)))
			slow.Store(int64(1200 * time.Millisecond))
			sleep(t.Context(), 2200*time.Millisecond)
			n.ends(time.Now().Add(left))
			go func() {
				for {
					select {
					case to := <-streams:
						stream.Store(to)
						go n.stream(t, to)
					case <-t.Context().Done():
						return
					}
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			l, err := c.Acquire(ctx, "a", LeaseID(n.id), Attached(), Wait(0))
			if err != nil {
				t.Fatalf("%s left: %v; the older: %v", left, err, older.Err())
			}
			lives(t, l, 5*time.Second)
		})
	}
}

// An acquire without a stream that waits for its renewal asks again when one with a stream and its lease id is given up, whose end may have
// released it.
func TestOvertakenNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(time.Second, 30*time.Second)
		c, streams := streaming(t)
		defer c.Close()
		c.http.Transport.(*told).answer = func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut {
				return slowly(500*time.Millisecond, r, n.answer)
			}
			return n.answer(r)
		}
		go func() { tell(<-streams, "queued", "{}") }()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		go func() { _, _ = c.Acquire(ctx, "a", LeaseID(n.id), Attached()) }()
		synctest.Wait()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Wait(0)))
		if n.posts.Load() != 2 {
			t.Errorf("it has asked %d times", n.posts.Load())
		}
		lives(t, l, 10*time.Second)
	})
}

// A renewal that its gateway makes late is waited for, as by who stands still or reads late: to leave the stream would be a release.
func TestRenewedLateNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(300*time.Millisecond, 3*time.Second)
		c, streams := streaming(t)
		defer c.Close()
		c.http.Transport.(*told).answer = n.answer
		go func() {
			to := <-streams // to ask for another one would hang
			tell(to, "granted", n.said(0))
			sleep(t.Context(), 1500*time.Millisecond) // its store did not answer
			n.renewed()
			n.stream(t, to)
		}()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Attached(), Wait(0)))
		lives(t, l, 10*time.Second)
	})
}
