package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func life(id string, ttl time.Duration) string {
	ms := ttl.Milliseconds()
	return fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":%d,"expires_in_ms":%[2]d,"renew_in_ms":%d,"elapsed_ms":0}`, id, ms, ms/3)
}

// A Lease that is found while a renewal by its lease id is under way counts on no more than that asks for, although its client had no
// Lease when that began: whether the renewal or the acquire is answered first.
func TestFoundBesideARenewal(t *testing.T) {
	for _, slow := range []string{http.MethodPut, http.MethodPost} {
		synctest.Test(t, func(t *testing.T) {
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				var body renewRequest
				_ = json.NewDecoder(r.Body).Decode(&body)
				if r.Method == slow && (slow == http.MethodPost || body.TTL == 1500) {
					sleep(r.Context(), time.Second)
				}
				if r.Method == http.MethodDelete {
					return says(204, "")
				}
				if body.TTL == 0 { // with what it has
					body.TTL = 20_000
				}
				return says(200, life(r.Header.Get("Lease-Id"), time.Duration(body.TTL)*time.Millisecond))
			})
			defer c.Close()
			id := NewLeaseID()
			done := make(chan *Lease)
			go func() {
				done <- must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(id), NotRenewed(), TTL(20*time.Second)))
			}()
			if slow == http.MethodPost {
				synctest.Wait()
			}
			renewed := make(chan bool)
			go func() {
				_, _ = c.Renew(t.Context(), id, 1500*time.Millisecond, "a")
				close(renewed)
			}()
			l := <-done
			<-renewed
			if got := l.Remaining(); got > 1500*time.Millisecond {
				t.Errorf("slow %s: it is counted on for %s", slow, got)
			}
		})
	}
}

// A Lease that is found is counted on for longer as soon as it is renewed for longer, whatever the Leases before it had.
func TestFoundIsNotShortForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, renews)
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		must[time.Duration](t)(c.Renew(t.Context(), l.ID(), 3*time.Second, "a"))
		found := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(l.ID())))
		if got := found.Remaining(); got > 3*time.Second {
			t.Errorf("beside one that is renewed with 3 s it is counted on for %s", got)
		}
		must[time.Duration](t)(c.Renew(t.Context(), l.ID(), 30*time.Second, "a"))
		lives(t, found, 5*time.Second)
		if got := found.Remaining(); got < 20*time.Second {
			t.Errorf("it is counted on for %s", got)
		}
	})
}

// streaming returns a client whose gateway grants and renews, and says on streams what the test writes.
func streaming(t *testing.T) (*Client, chan *io.PipeWriter) {
	t.Helper()
	c, s := scripted(t, 1, nil), &told{make(chan *io.PipeWriter), renews}
	c.http.Transport = s
	return c, s.to
}

// One that is attached and found has the TTL of its grant, and hangs on its stream.
func TestAttachedIsNotShortForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, streams := streaming(t)
		defer c.Close()
		older := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		must[time.Duration](t)(c.Renew(t.Context(), older.ID(), 2*time.Second, "a"))
		synctest.Wait() // its own renewal with that is answered: nothing may be carried out late
		go func() { tell(<-streams, "granted", life(older.ID(), 30*time.Second)) }()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), LeaseID(older.ID())))
		if err := older.Err(); !errors.Is(err, CodeReplaced) {
			t.Errorf("the older: %v", err)
		}
		lives(t, l, 4*time.Second)
		if got := l.Remaining(); got < 20*time.Second || l.detached.Load() {
			t.Errorf("it is counted on for %s; it leaves its stream: %t", got, l.detached.Load())
		}
	})
}

// Of two attached Leases that were asked for at once the store says which is the newer: not the order in which its answers are read.
func TestAnswersOutOfOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, begun := streaming(t)
		defer c.Close()
		id := NewLeaseID()
		var streams [2]*io.PipeWriter
		var leases [2]chan *Lease
		for i := range leases {
			leases[i] = make(chan *Lease, 1)
			go func() { leases[i] <- must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), LeaseID(id))) }()
			streams[i] = <-begun
		}
		tell(streams[1], "granted", life(id, 30*time.Second))
		newer := <-leases[1]
		tell(streams[0], "granted", life(id, 30*time.Second))
		older := <-leases[0]
		tell(streams[0], "lost", `{"code":"replaced","detail":"a newer request has it"}`)
		synctest.Wait()
		if err := older.Err(); !errors.Is(err, CodeReplaced) {
			t.Errorf("the older: %v", err)
		}
		if err := newer.Err(); err != nil {
			t.Errorf("the newer: %v", err)
		}
	})
}

// An attached acquire that fails after it was granted ends the Lease that has its lease id, for the end of its stream releases it; one
// that was refused does not.
func TestFailedAttachEndsTheOlder(t *testing.T) {
	for event, ends := range map[string]bool{"granted": true, "refused": false} {
		synctest.Test(t, func(t *testing.T) {
			c, streams := streaming(t)
			defer c.Close()
			older := must[*Lease](t)(c.Acquire(t.Context(), "a"))
			go func() {
				said := life(older.ID(), 6*time.Second)
				if !ends {
					said = `{"code":"conflict","field":"mode","detail":"it is shared"}`
				}
				tell(<-streams, event, said)
			}()
			if _, err := c.TryAcquire(t.Context(), "a", LeaseID(older.ID()), Attached(), StopEarly(8*time.Second)); err == nil {
				t.Fatal("it was not refused")
			}
			if err := older.Err(); errors.Is(err, CodeReplaced) != ends || err != nil && !ends {
				t.Errorf("%s: the older: %v", event, err)
			}
		})
	}
}

// An attached Lease that is found without a stream has lost it to the newer one, and knows at once.
func TestFoundWithoutAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, nil)
		defer c.Close()
		released := 0
		older, to := attached(t, c, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete {
				released++
				return says(204, "")
			}
			return renews(r)
		}, 30*time.Second, TTL(30*time.Second))
		defer to.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(older.ID())))
		if err := older.Release(t.Context()); !errors.Is(err, CodeReplaced) || released > 0 || l.Err() != nil {
			t.Errorf("%v; %d were released, and of the newer one: %v", err, released, l.Err())
		}
		if err := l.Release(t.Context()); err != nil || released != 1 {
			t.Errorf("%v; %d were released", err, released)
		}
	})
}

// The names whose release has failed are asked for once more, and what is answered of them is not the answer about the others.
func TestReleaseOfWhatIsOwed(t *testing.T) {
	gone := `{"code":"lease_lost","reason":"expired","detail":"it ran out"}`
	for name, test := range map[string]struct {
		options []Option
		status  int
		answer  string
		want    error
	}{
		"gone":          {nil, 412, gone, nil},
		"refused":       {nil, 403, `{"code":"forbidden","detail":"not this one"}`, CodeForbidden},
		"released":      {nil, 204, "", nil},
		"after AtLeast": {[]Option{AtLeast(time.Minute)}, 204, "", nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			first, asked := true, map[string]int{}
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				if r.Method != http.MethodDelete {
					return says(201, `{"lease_id":"`+r.Header.Get("Lease-Id")+`","ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000,"waited_ms":0,"locks":[{"name":"a","fencing_token":7,"ttl_ms":30000},{"name":"b","fencing_token":8,"ttl_ms":30000}]}`)
				}
				if asked[r.URL.Path]++; r.URL.Path == "/locks/a" {
					return says(204, "")
				}
				if first {
					return says(403, `{"code":"forbidden","detail":"not this one"}`)
				}
				return says(test.status, test.answer)
			})
			defer c.Close()
			c.options.Patience = time.Second
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", append(test.options, Also("b"), NotRenewed())...))
			if err := c.Release(t.Context(), l.ID(), "b"); !errors.Is(err, CodeForbidden) {
				t.Error(err)
			}
			before := asked["/locks/b"]
			first = false
			err := l.Release(t.Context())
			if test.want == nil && err != nil || test.want != nil && !errors.Is(err, test.want) || asked["/locks/a"] != 1 || asked["/locks/b"] == before {
				t.Errorf("%s: %v; asked: %v, of b before: %d", name, err, asked, before)
			}
		})
	}
}

// A Lease that was lost says so also where another Lease has its lease id.
func TestLostBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, renews)
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		_ = must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(l.ID())))
		l.finish(&Error{Code: CodeLeaseLost, Reason: ReasonBroken})
		if err := l.Release(t.Context()); !errors.Is(err, CodeLeaseLost) {
			t.Error(err)
		}
	})
}
