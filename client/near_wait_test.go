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

// It is said why nothing has renewed it: where it is found near its end again and again, and where it is lost meanwhile. What is told of one grant
// is not said of another.
func TestNearItsEndAndRefused(t *testing.T) {
	for code, status := range map[Code]int{CodeUnauthenticated: 401, CodeForbidden: 403, CodeMisdirected: 421, CodeTooManyRequests: 429, CodeUnavailable: 503} {
		for _, then := range []string{"near its end", "lost", "late"} {
			synctest.Test(t, func(t *testing.T) {
				n := endsIn(3*time.Second, 3*time.Second)
				c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodPut {
						a, err := says(status, fmt.Sprintf(`{"code":%q,"detail":"x"}`, code))
						a.Header.Set("Retry-After", "3600")
						return a, err
					}
					if again := n.posts.Load() > 0; !again || then != "lost" {
						n.ends(time.Now().Add(200 * time.Millisecond))
						if again && then == "late" {
							n.slow = time.Second
						}
					}
					return n.answer(r)
				})
				defer c.Close()
				begun := time.Now()
				_, err := c.TryAcquire(t.Context(), "a", LeaseID(n.id))
				is := map[string]error{"near its end": ErrExpired, "lost": CodeLeaseLost, "late": ErrExpired}[then]
				if took := time.Since(begun); !errors.Is(err, is) || errors.Is(err, code) == (then == "late") || took > mostOver*(maxDoubt+time.Second) {
					t.Errorf("%s, then %s: %v after %s", code, then, err, took)
				}
			})
		}
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

// While it waits, or after it has, it is replaced by an older Lease of its client that takes its lease over, and may be over by then. That is no
// loss: it asks again.
func TestReplacedNearItsEndByTheOlder(t *testing.T) {
	for _, left := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond} {
		for late, after := range map[time.Duration]time.Duration{1200 * time.Millisecond: 2200 * time.Millisecond, 2 * time.Second: 2600 * time.Millisecond} {
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
				slow.Store(int64(late))
				sleep(t.Context(), after)
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
				slow.Store(0)
				if err != nil {
					t.Fatalf("%s left, %s late: %v; the older: %v", left, late, err, older.Err())
				}
				lives(t, l, 5*time.Second)
			})
		}
	}
}

// What is granted without a stream, before one with the same lease id that somebody else has replaced by now, may hang on that one's end:
// it is asked for again.
func TestBesideAReplacedStream(t *testing.T) {
	for _, late := range []time.Duration{80 * time.Millisecond, 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			n := endsIn(time.Second, 30*time.Second)
			c, streams := streaming(t)
			defer c.Close()
			c.http.Transport.(*told).answer = func(r *http.Request) (*http.Response, error) {
				a, err := n.answer(r) // at once, and it is read late
				sleep(r.Context(), late)
				return a, err
			}
			granted := make(chan *Lease, 1)
			go func() { granted <- must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Wait(0))) }()
			synctest.Wait()
			go func() {
				to := <-streams
				tell(to, "granted", n.said(0))
				sleep(t.Context(), 100*time.Millisecond)
				tell(to, "lost", `{"code":"replaced","detail":"a newer request has it"}`)
				to.Close()
			}()
			if _, err := c.Acquire(t.Context(), "a", LeaseID(n.id), Attached(), Wait(0)); !errors.Is(err, CodeReplaced) {
				t.Error(err)
			}
			if l := <-granted; n.posts.Load() < 2 {
				t.Errorf("read %s late: it has asked %d times: %v", late, n.posts.Load(), l.Err())
			}
		})
	}
}

// A renewal with a short TTL beside the wait leaves no Lease that lives beyond it.
func TestShortenedNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(600*time.Millisecond, 3*time.Second)
		c, streams := streaming(t)
		defer c.Close()
		c.http.Transport.(*told).answer = func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut {
				return says(200, life(n.id, 100*time.Millisecond))
			}
			return frozen(r)
		}
		go func() {
			to := <-streams
			tell(to, "granted", n.said(0))
			sleep(t.Context(), 150*time.Millisecond)
			n.renewed()
			said := n.said(150 * time.Millisecond)
			sleep(t.Context(), 150*time.Millisecond) // it is read late
			tell(to, "renewed", said)
		}()
		go func() {
			sleep(t.Context(), 180*time.Millisecond)
			_, _ = c.Renew(t.Context(), n.id, 100*time.Millisecond, "a")
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if l, err := c.Acquire(ctx, "a", LeaseID(n.id), Attached(), Wait(0)); err == nil {
			sleep(t.Context(), 100*time.Millisecond)
			if err := l.Context().Err(); err == nil {
				t.Error("its context lives on")
			}
		}
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

// A gateway that says nothing after its grant costs no lease of which enough is left to take it over when the renewal does not come.
func TestMuteNearItsEnd(t *testing.T) {
	for left := 2400 * time.Millisecond; left < 4*time.Second; left += 300 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			n := endsIn(left, 12*time.Second)
			c, streams := streaming(t)
			defer c.Close()
			c.http.Transport.(*told).answer = n.answer
			go func() { tell(<-streams, "granted", n.said(0)) }() // to ask for another one would hang
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Attached(), Wait(0)))
			lives(t, l, 10*time.Second)
		})
	}
}

// Who is replaced by somebody else each time does not take the lease away again and again, whatever its client's older Lease has under way.
func TestReplacedNearItsEndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(30*time.Second, 30*time.Second)
		c, streams := streaming(t)
		defer c.Close()
		gateway := c.http.Transport.(*told)
		gateway.answer = n.answer
		var asked, opened atomic.Int64
		c.http.Transport = script(func(r *http.Request) (*http.Response, error) {
			if asked.Add(1) == 1 {
				return nil, errors.New("the connection was reset")
			}
			return gateway.RoundTrip(r)
		})
		go func() { tell(<-streams, "granted", n.said(0)) }()
		older := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Attached(), Wait(0)))
		if n, _ := older.mayReplace(); n == 0 {
			t.Fatal("nothing of it may come late")
		}
		go func() {
			for {
				select {
				case to := <-streams:
					opened.Add(1)
					n.ends(time.Now().Add(500 * time.Millisecond))
					tell(to, "granted", n.said(0))
					tell(to, "lost", `{"code":"replaced","detail":"a newer request has it"}`)
					to.Close()
				case <-t.Context().Done():
					return
				}
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := c.TryAcquire(ctx, "a", LeaseID(n.id), Attached()); !errors.Is(err, CodeReplaced) || opened.Load() > 2 {
			t.Errorf("%v after %d streams", err, opened.Load())
		}
	})
}
