package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// What this client is asked to do by the lease id of a Lease of its own changes what that counts on: at once, in both
// directions, and where there is no answer for the shorter.
func TestRenewedByItsID(t *testing.T) {
	for name, options := range map[string][]Option{"plain": nil, "attached": {Attached()}, "not renewed": {NotRenewed()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, k := keep(t, 30*time.Second)
				defer c.Close()
				l := must[*Lease](t)(c.Acquire(t.Context(), "a", options...))
				counts := func(left time.Duration) {
					t.Helper()
					if got := l.Remaining(); got != left || l.Err() != nil {
						t.Errorf("it counts on %s, want %s: %v", got, left, l.Err())
					}
				}
				for _, ttl := range []time.Duration{2 * time.Second, 20 * time.Second, time.Minute, 0} {
					must[time.Duration](t)(c.Renew(t.Context(), l.ID(), ttl, "a"))
					if ttl == 0 {
						ttl = 30 * time.Second
					}
					counts(ttl)
					if name == "not renewed" {
						continue
					}
					lives(t, l, 2*time.Minute)
					k.mu.Lock()
					left := time.Until(k.expires)
					k.mu.Unlock()
					if got := l.Remaining(); got > left || left > ttl {
						t.Errorf("with %s it counts on %s, and lives for %s", ttl, got, left)
					}
				}
				thaw := k.freeze(http.MethodPut)
				defer func() { thaw() }()
				c.options.Patience = time.Second
				for _, ttl := range []time.Duration{time.Minute, 5 * time.Second, 10 * time.Second} {
					before := l.Remaining()
					begun := time.Now()
					if _, err := c.Renew(t.Context(), l.ID(), ttl, "a"); !errors.Is(err, ErrUnreachable) {
						t.Fatal(err)
					}
					if got, most := l.Remaining(), min(ttl, before)-time.Since(begun); got > most {
						t.Errorf("renewed with %s, without an answer, it counts on %s, want %s", ttl, got, most)
					}
				}
			})
		})
	}
}

// A change that names no TTL, and one that is refused, leave the TTL as it is that others have asked for.
func TestChangedBesideARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuses := false
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			var body renewRequest
			_ = json.NewDecoder(r.Body).Decode(&body)
			switch {
			case r.Method == http.MethodDelete:
				return says(204, "")
			case body.TTL > 0 && body.TTL < 6000 && refuses:
				return says(400, `{"code":"invalid_request","field":"ttl_ms","detail":"too short"}`)
			case body.TTL > 0 && body.TTL < 6000:
				<-r.Context().Done()
				return nil, r.Context().Err()
			case body.Owner != "":
				sleep(r.Context(), 2*time.Second)
			}
			return says(200, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":60000,"expires_in_ms":60000,"renew_in_ms":20000}`, r.Header.Get("Lease-Id")))
		})
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		refuses = true
		if _, err := c.Renew(t.Context(), l.ID(), 5*time.Second, "a"); !errors.Is(err, CodeInvalidRequest) {
			t.Fatal(err)
		}
		lives(t, l, 4*time.Second)
		if got := l.Remaining(); got < 50*time.Second || l.Err() != nil {
			t.Errorf("a shorter TTL was refused, and it counts on %s: %v", got, l.Err())
		}
		refuses = false
		done := make(chan error, 1)
		go func() {
			_, err := c.Relabel(t.Context(), l.ID(), Labels{Owner: "b"}, "a")
			done <- err
		}()
		synctest.Wait()
		c.options.Patience = 4 * time.Second
		if _, err := c.Renew(t.Context(), l.ID(), 5*time.Second, "a"); !errors.Is(err, ErrUnreachable) {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := l.Remaining(); got > time.Second {
			t.Errorf("it was asked for 5 s, and counts on %s after 4", got)
		}
	})
}

// With the last of its names a lease is over as soon as this client is asked to release them.
func TestReleasedByItsID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, k := keep(t, time.Hour)
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b")))
		thaw := k.freeze(http.MethodDelete)
		done := make(chan error, 1)
		go func() { done <- c.Release(t.Context(), l.ID(), "a", "b") }()
		synctest.Wait()
		if err := l.Err(); err != ErrReleased || l.Context().Err() == nil {
			t.Errorf("it is being released: %v", err)
		}
		thaw()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Permits of one name that are given back leave the slots of the others.
func TestKeepPermitsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete {
				return says(204, "")
			}
			var body renewRequest
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				return nil, err
			}
			locks := `{"name":"a","fencing_token":7,"ttl_ms":30000,"slots":[0,1,2]},{"name":"b","fencing_token":8,"ttl_ms":30000,"slots":[0,1,2]}`
			if r.Method == http.MethodPut && body.Permits > 0 {
				return says(200, fmt.Sprintf(`{"name":"b","lease_id":%q,"fencing_token":8,"ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000,"slots":[0]}`, r.Header.Get("Lease-Id")))
			}
			return says(200, fmt.Sprintf(`{"lease_id":%q,"expires_in_ms":30000,"renew_in_ms":10000,"locks":[%s]}`, r.Header.Get("Lease-Id"), locks))
		})
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Permits(3, 5)))
		must[time.Duration](t)(c.KeepPermits(t.Context(), l.ID(), 1, "b"))
		if g := l.Grants(); !slices.Equal(g[0].Slots, []int{0, 1, 2}) || !slices.Equal(g[1].Slots, []int{0}) {
			t.Errorf("%+v", g)
		}
	})
}

// Attached leases that are over and were never released keep no goroutine once their streams have ended.
func TestEndedStreamsKeepNobodyBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		for range 40 {
			c := scripted(t, 1, nil)
			defer c.Close()
			l, to := attached(t, c, frozen, 9*time.Second)
			to.Close()
			<-l.Context().Done()
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 10 {
			t.Errorf("%d leases keep %d goroutines", 40, n)
		}
	})
}

// A lease that is found by its id is renewed with the TTL that it has, whatever it was granted with.
func TestFoundIsRenewedAsItIs(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	for name, ttl := range map[string]time.Duration{"longer": time.Minute, "shorter": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			id := NewLeaseID()
			must[*Lease](t)(c.TryAcquire(t.Context(), name, LeaseID(id), TTL(ttl), NotRenewed()))
			must[time.Duration](t)(connect(t, s.Gateways[0].URL()).Renew(t.Context(), id, 9*time.Second, name))
			finder := connect(t, s.Gateways[0].URL())
			l := must[*Lease](t)(finder.TryAcquire(t.Context(), name, LeaseID(id)))
			renewed(t, l)
			if n := must[Lock](t)(c.Inspect(t.Context(), name)).Holders[0].TTL; n != 9000 {
				t.Errorf("it has a TTL of %d ms", n)
			}
			must[time.Duration](t)(finder.Renew(t.Context(), id, 0, name))
			if n, left := must[Lock](t)(c.Inspect(t.Context(), name)).Holders[0].TTL, l.Remaining(); n != 9000 || left > 9*time.Second {
				t.Errorf("it has a TTL of %d ms, and is counted on for %s", n, left)
			}
		})
	}
}

// A Lease that a newer request has replaced ends, and its Release, which is deferred as a rule, lets go of nothing: neither where
// both are attached, nor where this client has it attached itself.
func TestReplacedReleasesNothing(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	for name, test := range map[string]struct {
		older  []Option
		newer  *Client
		second string
	}{
		"of-another-process": {older: []Option{Attached()}, newer: connect(t, s.Gateways[0].URL())},
		"several-names":      {older: []Option{Attached(), Also("second")}, newer: connect(t, s.Gateways[0].URL()), second: "second"},
		"of-this-client":     {newer: c},
		"attached-twice":     {older: []Option{Attached()}, newer: c},
	} {
		t.Run(name, func(t *testing.T) {
			id := NewLeaseID()
			newer := []Option{LeaseID(id), Attached()}
			if test.second != "" {
				newer = append(newer, Also(test.second))
			}
			var l *Lease
			err := c.Do(t.Context(), name, func(ctx context.Context, older *Lease) error {
				l = must[*Lease](t)(test.newer.Acquire(t.Context(), name, newer...))
				<-ctx.Done()
				return nil
			}, append(test.older, LeaseID(id))...)
			if !errors.Is(err, CodeReplaced) {
				t.Errorf("the older ended with %v", err)
			}
			if _, err := c.Renew(t.Context(), id, 0, name); err != nil {
				t.Errorf("the newer was lost with it: %v", err)
			}
			if err := l.settled(); err != nil || l.Name() != name {
				t.Errorf("the newer has %v: %v", l.Grants(), err)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A Lease that is acquired with the lease id of another one counts on no more than what is being asked for that.
func TestFoundDuringARenewal(t *testing.T) {
	for name, options := range map[string][]Option{"renewed": nil, "not renewed": {NotRenewed()}} {
		synctest.Test(t, func(t *testing.T) {
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPut {
					sleep(r.Context(), 3*time.Second)
				}
				return renews(r)
			})
			defer c.Close()
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", options...))
			go c.Renew(t.Context(), l.ID(), 2*time.Second, "a")
			synctest.Wait()
			found := must[*Lease](t)(c.Acquire(t.Context(), "a", append(options, LeaseID(l.ID()))...))
			if got := found.Remaining(); got > 2*time.Second {
				t.Errorf("%s: it is counted on for %s", name, got)
			}
			c.Release(t.Context(), l.ID(), "a")
		})
	}
}

// A Lease that is over, and another one was acquired with its lease id since, releases nothing of that.
func TestOverReleasesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := 0
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete {
				released++
				return says(204, "")
			}
			return grants(r)
		})
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", NotRenewed()))
		time.Sleep(time.Minute)
		if err := l.Err(); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
		found := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(l.ID())))
		if err := l.Release(t.Context()); !errors.Is(err, CodeReplaced) || released > 0 || found.Err() != nil {
			t.Errorf("%v; %d were released, and of the newer one: %v", err, released, found.Err())
		}
		if err := found.Release(t.Context()); err != nil || released != 1 {
			t.Errorf("%v; %d were released", err, released)
		}
	})
}

// A name whose release was refused is released with the rest.
func TestRefusedReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	forbidden, released := true, ""
	c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodDelete {
			return says(201, `{"lease_id":"`+r.Header.Get("Lease-Id")+`","ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000,"waited_ms":0,"locks":[{"name":"a","fencing_token":7,"ttl_ms":30000},{"name":"b","fencing_token":8,"ttl_ms":30000}]}`)
		}
		if forbidden {
			return says(403, `{"code":"forbidden","detail":"not this one"}`)
		}
		released += r.URL.String() + " "
		return says(204, "")
	})
	defer c.Close()
	c.options.Patience = time.Second
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), NotRenewed()))
	if err := c.Release(t.Context(), l.ID(), "b"); !errors.Is(err, CodeForbidden) {
		t.Error(err)
	}
	if left := l.Grants(); len(left) != 1 || left[0].Name != "a" {
		t.Errorf("it has %v", left)
	}
	forbidden = false
	if err := l.Release(t.Context()); err != nil || released != "http://a/locks/a http://a/locks/b " {
		t.Errorf("%v; released with %s", err, released)
	}
}

// One TTL after the other that the gateway refuses leaves the lease as it was. One that it refuses after it was asked for in
// vain keeps the lease from nothing but being counted on for longer.
func TestRefusedTTLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proceed, heard := make(chan struct{}), make(chan struct{})
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			var body renewRequest
			if r.Method == http.MethodPut {
				_ = json.NewDecoder(r.Body).Decode(&body)
			}
			switch body.TTL {
			case 6000:
				select {
				case <-heard:
				default:
					return nil, io.ErrUnexpectedEOF
				}
				return says(400, `{"code":"invalid_request","field":"ttl_ms","detail":"too short"}`)
			case 5000, 3000:
				<-proceed
				return says(400, `{"code":"invalid_request","field":"ttl_ms","detail":"too short"}`)
			}
			return grants(r)
		})
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		var calls sync.WaitGroup
		for _, ttl := range []time.Duration{5 * time.Second, 3 * time.Second} {
			calls.Go(func() {
				if _, err := c.Renew(t.Context(), l.ID(), ttl, "a"); !errors.Is(err, CodeInvalidRequest) {
					t.Error(err)
				}
			})
			synctest.Wait()
			if got := l.Remaining(); got > ttl {
				t.Errorf("renewed with %s it is counted on for %s", ttl, got)
			}
		}
		close(proceed)
		calls.Wait()
		lives(t, l, time.Minute)
		if got := l.Remaining(); got < 10*time.Second {
			t.Errorf("two TTLs were refused, and it is counted on for %s", got)
		}
		c.options.Patience = time.Second
		if _, err := c.Renew(t.Context(), l.ID(), 6*time.Second, "a"); !errors.Is(err, ErrUnreachable) {
			t.Error(err)
		}
		close(heard)
		lives(t, l, time.Minute)
		if got := l.Remaining(); got > 6*time.Second {
			t.Errorf("a TTL of 6 s may still be carried out, and it is counted on for %s", got)
		}
	})
}

// renews is a gateway that renews whatever lease for as long as it is asked to, and refuses 1 s.
func renews(r *http.Request) (*http.Response, error) {
	var body renewRequest
	if r.Method != http.MethodPut {
		return grants(r)
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	if body.TTL = cmp.Or(body.TTL, 30000); body.TTL == 1000 {
		return says(400, `{"code":"invalid_request","field":"ttl_ms","detail":"too short"}`)
	}
	return says(200, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":%d,"expires_in_ms":%[2]d,"renew_in_ms":%d}`, r.Header.Get("Lease-Id"), body.TTL, body.TTL/3))
}

// All Leases with one lease id that have the name know what it is renewed with, and that it is released; others don't.
func TestLeasesOfOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := NewLeaseID()
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete {
				return says(204, "")
			}
			response, err := renews(r)
			if r.URL.Path == "/locks/b" {
				body, _ := io.ReadAll(response.Body)
				return says(response.StatusCode, strings.Replace(string(body), `"name":"a"`, `"name":"b"`, 1))
			}
			return response, err
		})
		defer c.Close()
		var all []*Lease
		for _, name := range []string{"a", "a", "b"} {
			all = append(all, must[*Lease](t)(c.Acquire(t.Context(), name, LeaseID(id), NotRenewed())))
		}
		must[time.Duration](t)(c.Renew(t.Context(), id, 2*time.Second, "a"))
		for i, want := range []time.Duration{2 * time.Second, 2 * time.Second, 30 * time.Second} {
			if got := all[i].Remaining(); got != want {
				t.Errorf("lease %d is counted on for %s, want %s", i, got, want)
			}
		}
		if err := c.Release(t.Context(), id, "a"); err != nil {
			t.Error(err)
		}
		if err := errors.Join(all[0].Err(), all[1].Err()); !errors.Is(err, ErrReleased) || all[2].Err() != nil {
			t.Error(err, all[2].Err())
		}
		again := must[*Lease](t)(c.Acquire(t.Context(), "b", LeaseID(id), NotRenewed()))
		if err := again.Release(t.Context()); err != nil || all[2].Err() != ErrReleased {
			t.Errorf("its name was released: %v: %v", err, all[2].Err())
		}
	})
}

// A refused renewal gives back what it took: also of a lease that nothing renews, and below the margin of one that is.
func TestRefusedTTLGivesBack(t *testing.T) {
	for _, options := range [][]Option{{NotRenewed()}, {StopEarly(5 * time.Second)}} {
		synctest.Test(t, func(t *testing.T) {
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				if sleep(r.Context(), 10*time.Millisecond); r.Method == http.MethodPut && !bytes.Contains(body, []byte("owner")) {
					sleep(r.Context(), 400*time.Millisecond) // the lease's own is under way when the other one is refused
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				return renews(r)
			})
			defer c.Close()
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", options...))
			lives(t, l, 8*time.Second)
			if _, err := c.Change(t.Context(), l.ID(), Change{TTL: time.Second, Labels: Labels{Owner: "b"}}, "a"); !errors.Is(err, CodeInvalidRequest) {
				t.Error(err)
			}
			lives(t, l, 2*time.Second)
			if got := l.Remaining(); got < 19*time.Second {
				t.Errorf("it is counted on for %s", got)
			}
		})
	}
}

// A renewal of several names that is refused for one of them may have been carried out for the others.
func TestRefusedForOneName(t *testing.T) {
	for _, refusal := range []string{`{"code":"invalid_request","field":"permits","name":"a"}`, `{"code":"lease_lost","reason":"unknown","name":"z","lost":["z"]}`} {
		synctest.Test(t, func(t *testing.T) {
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				switch r.Method {
				case http.MethodPut:
					return says(400, refusal)
				case http.MethodDelete:
					return says(204, "")
				}
				return says(201, fmt.Sprintf(`{"lease_id":%q,"locks":[{"name":"a","fencing_token":7,"ttl_ms":30000},{"name":"b","fencing_token":8,"ttl_ms":30000}],"expires_in_ms":30000,"renew_in_ms":10000,"waited_ms":0}`, r.Header.Get("Lease-Id")))
			})
			defer c.Close()
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), NotRenewed()))
			if _, err := c.Renew(t.Context(), l.ID(), 2*time.Second, "a", "b"); refusalOf(err) == "" {
				t.Error(err)
			}
			if got := l.Remaining(); got > 2*time.Second {
				t.Errorf("it is counted on for %s", got)
			}
		})
	}
}

func refusalOf(err error) Code {
	if e := refusal(err); e != nil {
		return e.Code
	}
	return ""
}

// An attached lease is taken over as soon as another TTL was answered, however far its gateways are.
func TestTakenOverForItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, nil)
		defer c.Close()
		const far = 300 * time.Millisecond
		l, _ := attached(t, c, func(r *http.Request) (*http.Response, error) {
			sleep(r.Context(), far)
			if r.Method == http.MethodDelete {
				return says(204, "")
			}
			return renews(r)
		}, 30*time.Second, TTL(30*time.Second))
		must[time.Duration](t)(c.Renew(t.Context(), l.ID(), 3*time.Second, "a"))
		lives(t, l, 2*far+time.Millisecond)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.hangs != nil {
			t.Error("it hangs on its stream")
		}
	})
}

// What was never sent takes nothing, whatever kept it from being sent.
func TestUnsentTTLGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, renews)
		defer c.Close()
		c.options.Patience = time.Second
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", NotRenewed()))
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := c.Renew(ended, l.ID(), 10*time.Second, "a"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		c.options.KeyFunc = func() (string, error) { return "", errors.New("no key") }
		if _, err := c.Renew(t.Context(), l.ID(), 10*time.Second, "a"); !errors.Is(err, ErrUnreachable) {
			t.Error(err)
		}
		if got := l.Remaining(); got < 28*time.Second {
			t.Errorf("it is counted on for %s", got)
		}
		c.options.KeyFunc = nil
		must[time.Duration](t)(c.Renew(t.Context(), l.ID(), time.Minute, "a"))
		if got := l.Remaining(); got != time.Minute {
			t.Errorf("renewed for a minute it is counted on for %s", got)
		}
	})
}

// A gateway whose bounds exclude the TTL of the grant renews with it all the same, as nobody names it.
func TestTTLOfTheGrantIsNotNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut {
				if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte("ttl_ms")) {
					return says(400, `{"code":"invalid_request","field":"ttl_ms","detail":"too long"}`)
				}
			}
			return grants(r)
		})
		defer c.Close()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		lives(t, l, time.Minute)
		must[time.Duration](t)(c.Renew(t.Context(), l.ID(), 0, "a"))
		if _, err := c.Renew(t.Context(), l.ID(), time.Minute, "a"); !errors.Is(err, CodeInvalidRequest) {
			t.Error(err)
		}
		lives(t, l, time.Minute)
	})
}

// A refused TTL leaves an attached lease to its stream.
func TestRefusedTTLKeepsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 1, nil)
		defer c.Close()
		var others atomic.Int64
		l, to := attached(t, c, func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete {
				return says(204, "")
			}
			others.Add(1)
			sleep(r.Context(), 10*time.Millisecond)
			return renews(r)
		}, 30*time.Second, TTL(30*time.Second))
		if _, err := c.Renew(t.Context(), l.ID(), time.Second, "a"); !errors.Is(err, CodeInvalidRequest) {
			t.Error(err)
		}
		advance(10 * time.Second)
		tell(to, "renewed", `{"expires_in_ms":30000,"elapsed_ms":10000}`)
		lives(t, l, time.Second)
		if n := others.Load(); n != 1 || l.Remaining() < 28*time.Second {
			t.Errorf("%d requests besides its stream, and it is counted on for %s", n, l.Remaining())
		}
	})
}

// The gateway of its stream goes on with the shortest TTL that it was told, whatever another one is told later, until the names hang on
// another stream.
func TestItsGatewayRenewsForLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := scripted(t, 2, nil)
		defer c.Close()
		life := func(r *http.Request, ms int64) string {
			return fmt.Sprintf(`{"lease_id":%q,"locks":[{"name":"a","fencing_token":7,"ttl_ms":%d},{"name":"b","fencing_token":8,"ttl_ms":%[2]d}],"expires_in_ms":%[2]d,"renew_in_ms":%d,"elapsed_ms":0}`, r.Header.Get("Lease-Id"), ms, ms/3)
		}
		s := &told{make(chan *io.PipeWriter, 1), func(r *http.Request) (*http.Response, error) {
			var body renewRequest
			if r.Method == http.MethodDelete {
				return says(204, "")
			}
			_ = json.NewDecoder(r.Body).Decode(&body)
			return says(200, life(r, body.TTL))
		}}
		c.http.Transport = s
		id := NewLeaseID()
		r := &http.Request{Header: http.Header{"Lease-Id": {id}}}
		go func() { tell(<-s.to, "granted", life(r, 30000)) }()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a", Also("b"), Attached(), LeaseID(id)))
		counts := func(least, most time.Duration) {
			t.Helper()
			if got := l.Remaining(); got < least || got > most || l.Err() != nil {
				t.Errorf("it is counted on for %s, want %s to %s: %v", got, least, most, l.Err())
			}
		}
		for _, ttl := range []time.Duration{2 * time.Second, 20 * time.Second} {
			must[time.Duration](t)(c.Renew(t.Context(), id, ttl, "a", "b"))
			counts(time.Second, 2*time.Second)
		}
		tell(<-s.to, "granted", life(r, 20000))
		lives(t, l, 10*time.Second)
		counts(10*time.Second, 20*time.Second)
	})
}
