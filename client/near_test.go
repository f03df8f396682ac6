package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// nearEnd is a gateway with one lease, of which little is left when it is found.
type nearEnd struct {
	mu  sync.Mutex
	id  string // by mu: a stream and answers say and set them; a test reads what it has set itself
	ttl time.Duration
	end time.Time // by mu

	slow               time.Duration // each answer
	more               string        // is said beside
	posts, puts, frees atomic.Int64
	renews             script // in place of a renewal; nil: it is renewed
}

func endsIn(left, ttl time.Duration) *nearEnd {
	return &nearEnd{id: NewLeaseID(), ttl: ttl, end: time.Now().Add(left)}
}

// said is what an answer says, or an event so long after its request.
func (n *nearEnd) said(after time.Duration) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	left := time.Until(n.end)
	return fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":%d,"expires_in_ms":%d,"renew_in_ms":%d,"elapsed_ms":%d%s}`,
		n.id, n.ttl.Milliseconds(), left.Milliseconds(), min(n.ttl/3, left/2).Milliseconds(), after.Milliseconds(), n.more)
}

func (n *nearEnd) left() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Until(n.end)
}

func (n *nearEnd) renewed() { n.ends(time.Now().Add(n.ttl)) }

func (n *nearEnd) ends(at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.end = at
}

func (n *nearEnd) answer(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodDelete:
		n.frees.Add(1)
		return says(204, "")
	case http.MethodPost:
		n.posts.Add(1)
	case http.MethodPut:
		if n.puts.Add(1); n.renews != nil {
			return n.renews(r)
		}
	}
	if n.left() <= 0 {
		return says(412, lostAnswer)
	}
	if r.Method == http.MethodPut {
		n.renewed()
	}
	n.mu.Lock()
	n.id = r.Header.Get("Lease-Id")
	n.mu.Unlock()
	said := n.said(0)
	return slowly(n.slow, r, func(*http.Request) (*http.Response, error) { return says(200, said) })
}

// stream says on a stream that the lease was granted, and renews it; what it says is read late.
func (n *nearEnd) stream(t *testing.T, to *io.PipeWriter) {
	begun := time.Now()
	for event := "granted"; ; event = "renewed" {
		said, next := n.said(time.Since(begun)), min(n.ttl/3, n.left()/2)
		time.AfterFunc(n.slow, func() { tell(to, event, said) })
		if !sleep(t.Context(), next) {
			return
		}
		n.renewed()
	}
}

// A lease that is found near its end is renewed before anybody has it, also where an answer is lost meanwhile, or a gateway gives none.
func TestFoundNearItsEnd(t *testing.T) {
	for _, gateways := range []int{1, 2} {
		for name, mute := range map[string]func(puts int64, host string) bool{
			"all answer":  func(int64, string) bool { return false },
			"one is lost": func(puts int64, _ string) bool { return puts == 1 },
			"one is mute": func(_ int64, host string) bool { return gateways == 2 && host == "a" },
		} {
			synctest.Test(t, func(t *testing.T) {
				n := endsIn(time.Second, 3*time.Second)
				c := scripted(t, gateways, func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodPut && mute(n.puts.Load()+1, r.URL.Host) {
						n.puts.Add(1)
						return frozen(r)
					}
					return n.answer(r)
				})
				defer c.Close()
				l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Wait(0)))
				if left := l.Remaining(); left < 2*time.Second {
					t.Errorf("%d gateways, %s: %s is left", gateways, name, left)
				}
				lives(t, l, 10*time.Second)
			})
		}
	}
}

// One that is found with a stream is renewed by the stream's gateway, however late that is read: it stays on its stream, whose end would
// release it.
func TestAttachedNearItsEnd(t *testing.T) {
	for _, late := range []time.Duration{0, 180 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			n := endsIn(500*time.Millisecond, 3*time.Second)
			n.slow, n.renews = late, frozen
			c, streams := streaming(t)
			defer c.Close()
			c.http.Transport.(*told).answer = n.answer
			go func() { n.stream(t, <-streams) }()
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Attached(), Wait(0)))
			lives(t, l, 10*time.Second)
			if err := l.Err(); err != nil || n.posts.Load()+n.puts.Load()+n.frees.Load() > 0 {
				t.Errorf("told %s late: %v; %d POST, %d PUT, %d DELETE", late, err, n.posts.Load(), n.puts.Load(), n.frees.Load())
			}
		})
	}
}

// What can't be counted on although it was renewed is given up after three times, and released: by the end of its stream, if it has one.
func TestNearItsEndForGood(t *testing.T) {
	for name, test := range map[string]struct {
		slow     time.Duration
		attached bool
		options  []Option
	}{
		"answers take longer than the TTL":                     {1100 * time.Millisecond, false, nil},
		"events take longer than the TTL":                      {1100 * time.Millisecond, true, nil},
		"answers take longer than what StopEarly leaves of it": {600 * time.Millisecond, false, []Option{StopEarly(500 * time.Millisecond)}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, streams := streaming(t)
			var frees atomic.Int64
			c.http.Transport.(*told).answer = func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodDelete {
					frees.Add(1)
					return says(204, "")
				}
				return slowly(test.slow, r, func(r *http.Request) (*http.Response, error) {
					return says(200, life(r.Header.Get("Lease-Id"), time.Second))
				})
			}
			id := NewLeaseID()
			go func() {
				for {
					select {
					case to := <-streams:
						n := endsIn(time.Second, time.Second)
						n.id, n.slow = id, test.slow
						go n.stream(t, to)
					case <-t.Context().Done():
						return
					}
				}
			}()
			options := append(test.options, TTL(time.Second))
			if test.attached {
				options = append(options, Attached(), LeaseID(id))
			}
			begun := time.Now()
			_, err := c.TryAcquire(t.Context(), "a", options...)
			took := time.Since(begun)
			c.Close()
			if !errors.Is(err, ErrExpired) || took > 20*time.Second || (frees.Load() > 0) == test.attached {
				t.Errorf("%s: %v after %s, %d releases", name, err, took, frees.Load())
			}
		})
	}
}

// What is not renewed before the caller's end, nor counted on by then, is released where the lease id is the client's, and that is no
// failure of gateways.
func TestNearItsEndIsGivenUp(t *testing.T) {
	for name, renews := range map[string]script{
		"no answer": frozen,
		"too many": func(*http.Request) (*http.Response, error) {
			return says(429, `{"code":"too_many_requests","detail":"x"}`)
		},
		"forbidden": func(*http.Request) (*http.Response, error) { return says(403, `{"code":"forbidden","detail":"x"}`) },
	} {
		synctest.Test(t, func(t *testing.T) {
			n := endsIn(3*time.Second, 3*time.Second)
			n.slow, n.renews = 2800*time.Millisecond, renews
			c := scripted(t, 1, n.answer)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := c.Acquire(ctx, "a", TTL(n.ttl), Wait(0))
			c.Close()
			if err == nil || name == "no answer" && errors.Is(err, ErrUnreachable) || n.frees.Load() == 0 {
				t.Errorf("%s: %v; %d releases", name, err, n.frees.Load())
			}
		})
	}
}

// What no gateway renews is returned as long as it can be counted on.
func TestNearItsEndAndNotRenewed(t *testing.T) {
	for _, options := range [][]Option{nil, {Attached()}} {
		synctest.Test(t, func(t *testing.T) {
			n := endsIn(18*time.Second, time.Minute)
			n.renews = func(*http.Request) (*http.Response, error) { return says(503, `{"code":"unavailable","detail":"x"}`) }
			c, streams := streaming(t)
			defer c.Close()
			c.http.Transport.(*told).answer = n.answer
			go func() {
				if options != nil {
					tell(<-streams, "granted", n.said(0))
				}
			}()
			begun := time.Now()
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", append(options, LeaseID(n.id), Wait(0))...))
			if took := time.Since(begun); took > maxDoubt || l.Err() != nil {
				t.Errorf("after %s: %v", took, l.Err())
			}
		})
	}
}

// What was asked for in vain may be carried out late: the other Leases of the client with the lease id heed it.
func TestNearItsEndIsHeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(3*time.Second, 3*time.Second)
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			if n.renews = renews; r.Method == http.MethodPut && n.puts.Load() == 0 {
				n.renews = frozen
			}
			return n.answer(r)
		})
		defer c.Close()
		older := must[*Lease](t)(c.Acquire(t.Context(), "a", NotRenewed(), StopEarly(time.Millisecond)))
		sleep(t.Context(), 2750*time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := c.Acquire(ctx, "a", LeaseID(older.ID()), Wait(0)); err == nil || n.puts.Load() != 1 {
			t.Fatalf("%v after %d renewals", err, n.puts.Load())
		}
		must[time.Duration](t)(c.Renew(t.Context(), older.ID(), 30*time.Second, "a"))
		if left := older.Remaining(); left > 3*time.Second {
			t.Errorf("a renewal for 3 s may be carried out, and it is counted on for %s", left)
		}
	})
}

// Events that are read together, for the connection stood still, are all heard before the first of them ends anything.
func TestNearItsEndBehindABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stall = 3900 * time.Millisecond
		n := endsIn(3*time.Second, 3*time.Second)
		c, streams := streaming(t)
		defer c.Close()
		c.http.Transport.(*told).answer = n.answer
		go func() {
			to, begun := <-streams, time.Now()
			tell(to, "", "")
			for event := "granted"; ; event = "renewed" {
				n.renewed()
				said := n.said(time.Since(begun))
				time.AfterFunc(max(0, stall-time.Since(begun)), func() { tell(to, event, said) })
				if !sleep(t.Context(), n.ttl/3) {
					return
				}
			}
		}()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), LeaseID(n.id), Wait(0)))
		lives(t, l, 10*time.Second)
		if n.posts.Load()+n.puts.Load() > 0 {
			t.Errorf("%d POST, %d PUT", n.posts.Load(), n.puts.Load())
		}
	})
}

// An attached acquire that is replaced while it waits for its gateway's renewal ends no Lease that has replaced it.
func TestReplacedNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(500*time.Millisecond, 3*time.Second)
		c, streams := streaming(t)
		defer c.Close()
		c.http.Transport.(*told).answer = n.answer
		stream := make(chan *io.PipeWriter, 1)
		go func() {
			to := <-streams
			tell(to, "granted", n.said(0))
			stream <- to
		}()
		attach := make(chan error, 1)
		go func() {
			_, err := c.Acquire(t.Context(), "a", Attached(), LeaseID(n.id), Wait(0))
			attach <- err
		}()
		to := <-stream
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Wait(0)))
		tell(to, "lost", `{"code":"replaced","detail":"a newer request has it"}`)
		if err := <-attach; !errors.Is(err, CodeReplaced) || l.Err() != nil {
			t.Errorf("the attached: %v; the newer: %v", err, l.Err())
		}
	})
}

// Of a set that has lost a name before anybody had it the others are released.
func TestLostNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first string
		var freed atomic.Bool
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			id := r.Header.Get("Lease-Id")
			switch r.Method {
			case http.MethodPost:
				if first != "" {
					return says(423, `{"code":"locked","name":"a","detail":"held by the one before"}`)
				}
				first = id
				return slowly(2900*time.Millisecond, r, func(*http.Request) (*http.Response, error) {
					return says(201, fmt.Sprintf(`{"lease_id":%q,"ttl_ms":6000,"expires_in_ms":6000,"renew_in_ms":2000,"locks":[{"name":"a","fencing_token":7,"ttl_ms":6000},{"name":"b","fencing_token":8,"ttl_ms":6000}]}`, id))
				})
			case http.MethodPut:
				return says(412, `{"code":"lease_lost","reason":"broken","name":"b","detail":"x"}`)
			}
			if id == first {
				freed.Store(true)
			}
			return says(204, "")
		})
		_, err := c.TryAcquire(t.Context(), "a", Also("b"), TTL(6*time.Second), StopEarly(3*time.Second))
		c.Close()
		if !errors.Is(err, CodeLocked) || !freed.Load() {
			t.Errorf("%v; released: %t", err, freed.Load())
		}
	})
}

// The end of the stream of a lease that was found releases it: the acquire does not drop it for what the gateway renews late, or never.
func TestAttachedNearItsEndIsNotDropped(t *testing.T) {
	for name, test := range map[string]struct {
		left, ttl time.Duration
		renewed   bool
		more      string
		options   []Option
	}{
		"renewed later than StopEarly says": {6500 * time.Millisecond, 12 * time.Second, true, "", []Option{StopEarly(5 * time.Second)}},
		"renewed after 16 s":                {32 * time.Second, time.Minute, true, "", []Option{StopEarly(30 * time.Second)}},
		"max hold":                          {3 * time.Second, 30 * time.Second, false, "", []Option{TTL(30 * time.Second), MaxHold(time.Minute)}},
		"notice":                            {3 * time.Second, 30 * time.Second, false, `,"breaks_in_ms":3000`, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := endsIn(test.left, test.ttl)
			c, streams := streaming(t)
			defer c.Close()
			c.http.Transport.(*told).answer = n.answer
			var opened atomic.Int64
			go func() {
				for {
					select {
					case to := <-streams:
						opened.Add(1)
						if test.renewed {
							go n.stream(t, to)
						} else {
							said := n.said(0)
							tell(to, "granted", said[:len(said)-1]+test.more+"}")
						}
					case <-t.Context().Done():
						return
					}
				}
			}()
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", append(test.options, LeaseID(n.id), Attached(), Wait(0))...))
			if err := l.Err(); err != nil || opened.Load() != 1 {
				t.Errorf("%s: %v; %d streams", name, err, opened.Load())
			}
			if test.renewed {
				lives(t, l, time.Minute)
			}
		})
	}
}

// An acquire that waits for its gateway's renewal, and is replaced by its own earlier request, which its gateway came to late, asks again.
func TestReplacedByItselfNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(800*time.Millisecond, 3*time.Second)
		c, streams := streaming(t)
		defer c.Close()
		gateway := c.http.Transport.(*told)
		gateway.answer = n.answer
		var asked atomic.Int64
		c.http.Transport = script(func(r *http.Request) (*http.Response, error) {
			if asked.Add(1) == 1 {
				return nil, errors.New("the connection was reset")
			}
			return gateway.RoundTrip(r)
		})
		go func() {
			to := <-streams
			tell(to, "granted", n.said(0))
			tell(to, "lost", `{"code":"replaced","detail":"a newer request has it"}`)
			to.Close()
			n.stream(t, <-streams)
		}()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Attached(), Wait(0)))
		lives(t, l, 10*time.Second)
	})
}

// An acquire that is replaced by somebody else while it waits has taken over what an older Lease had.
func TestReplacedNearItsEndEndsTheOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(3*time.Second, 3*time.Second)
		c, streams := streaming(t)
		defer c.Close()
		c.http.Transport.(*told).answer = n.answer
		older := must[*Lease](t)(c.Acquire(t.Context(), "a", NotRenewed()))
		sleep(t.Context(), 2200*time.Millisecond)
		go func() {
			to := <-streams
			tell(to, "granted", n.said(0))
			tell(to, "lost", `{"code":"replaced","detail":"a newer request has it"}`)
		}()
		if _, err := c.Acquire(t.Context(), "a", LeaseID(older.ID()), Attached(), Wait(0)); !errors.Is(err, CodeReplaced) {
			t.Error(err)
		}
		if err := older.Err(); !errors.Is(err, CodeReplaced) {
			t.Errorf("the older: %v", err)
		}
	})
}

// Comments don't lengthen the wait for a renewal that does not come.
func TestNearItsEndAndComments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(300*time.Millisecond, 3*time.Second)
		said := n.said(0)
		c, streams := streaming(t)
		defer c.Close()
		c.http.Transport.(*told).answer = n.answer
		go func() {
			for {
				select {
				case to := <-streams:
					go func() {
						for tell(to, "granted", said); sleep(t.Context(), time.Second); {
							if _, err := io.WriteString(to, ": \n\n"); err != nil {
								return
							}
						}
					}()
				case <-t.Context().Done():
					return
				}
			}
		}()
		begun := time.Now()
		_, err := c.Acquire(t.Context(), "a", LeaseID(n.id), Attached(), Wait(0))
		if took := time.Since(begun); !errors.Is(err, ErrExpired) || took > mostOver*(maxDoubt+time.Second) {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// A fresh lease is not waited for, whatever StopEarly leaves of it: its first renewal leaves no more.
func TestFreshIsNotNearItsEnd(t *testing.T) {
	for _, test := range []struct{ ttl, early time.Duration }{
		{6 * time.Second, 3 * time.Second}, {8 * time.Second, 4 * time.Second}, {500 * time.Millisecond, 150 * time.Millisecond}, {300 * time.Millisecond, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := endsIn(test.ttl, test.ttl)
			n.slow = 5 * time.Millisecond
			c, streams := streaming(t)
			defer c.Close()
			c.http.Transport.(*told).answer = n.answer
			go func() { n.stream(t, <-streams) }()
			begun := time.Now()
			l := must[*Lease](t)(c.TryAcquire(t.Context(), "a", Attached(), LeaseID(n.id), TTL(test.ttl), StopEarly(test.early)))
			if took := time.Since(begun); took > 2*n.slow || l.Err() != nil {
				t.Errorf("%+v: %v after %s", test, l.Err(), took)
			}
		})
	}
}

// A lease id that is released while its acquire waits for a renewal is not asked for again: the release may come late.
func TestReleasedNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(800*time.Millisecond, 3*time.Second)
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPost {
				return n.answer(r)
			}
			return slowly(300*time.Millisecond, r, n.answer)
		})
		defer c.Close()
		released := make(chan error)
		go func() {
			sleep(t.Context(), 100*time.Millisecond)
			released <- c.Release(t.Context(), n.id, "a")
		}()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(n.id), Wait(0)))
		if err := <-released; err != nil {
			t.Error(err)
		}
		if err := l.Err(); !errors.Is(err, ErrReleased) || n.posts.Load() != 1 {
			t.Errorf("%v after %d requests", err, n.posts.Load())
		}
	})
}

// A machine that slept for an hour before it read the grant does not wait for a renewal for as long.
func TestAsleepNearItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := endsIn(3*time.Second, 3*time.Second)
		c, streams := streaming(t)
		defer c.Close()
		c.http.Transport.(*told).answer = n.answer
		var slept atomic.Int64
		c.now = func() instant { return instant{time.Now(), time.Duration(slept.Load()) + time.Since(time.Unix(0, 0))} }
		go func() {
			to, said := <-streams, n.said(0)
			slept.Store(int64(time.Hour))
			tell(to, "granted", said) // and nothing more
		}()
		begun := time.Now()
		_, err := c.TryAcquire(t.Context(), "a", Attached(), LeaseID(n.id))
		if took := time.Since(begun); err == nil || took > 2*silence {
			t.Errorf("%v after %s", err, took)
		}
	})
}
