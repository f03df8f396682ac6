package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// ways are those in which leases are acquired and end. Each ends within a minute; those that are attached are released after it,
// as they have to be: their work may be stopping.
var ways = map[string]struct {
	options []Option
	answer  script // to all but releases
	end     error  // of its context; nil: of the acquire
}{
	"unknown":         {nil, unlessPut(func(r *http.Request) (*http.Response, error) { return says(503, `{"code":"unavailable"}`) }), ErrUnknown},
	"unknown, frozen": {nil, unlessPut(frozen), ErrUnknown},
	"lost": {nil, unlessPut(func(r *http.Request) (*http.Response, error) {
		return says(412, `{"code":"lease_lost","reason":"broken"}`)
	}), CodeLeaseLost},
	"not renewed":       {[]Option{NotRenewed()}, grants, ErrUnknown},
	"attached, unknown": {[]Option{Attached()}, attachedOnce(func(r *http.Request) (*http.Response, error) { return nil, errors.New("refused") }), ErrUnknown},
	"attached, frozen":  {[]Option{Attached()}, attachedOnce(frozen), ErrUnknown},
	"attached, lost": {[]Option{Attached()}, attachedOnce(func(r *http.Request) (*http.Response, error) {
		return says(412, `{"code":"lease_lost","reason":"broken"}`)
	}), CodeLeaseLost},
	"attached, silent": {[]Option{Attached()}, func(r *http.Request) (*http.Response, error) {
		if r.Header.Get("Accept") != "text/event-stream" {
			return nil, errors.New("refused")
		}
		return kinds["attach"].right(r)
	}, ErrUnknown},
	"attached, max hold": {[]Option{Attached(), MaxHold(31 * time.Second)}, reachesMaxHold, ErrMaxHold},
	"attached, notice":   {[]Option{Attached()}, givesNotice, ErrNoticeOver},
	"several, unknown":   {[]Option{Attached(), Also("b")}, attachedOnce(func(r *http.Request) (*http.Response, error) { return nil, errors.New("refused") }), ErrUnknown},
	"refused": {[]Option{Wait(10 * time.Millisecond)}, func(r *http.Request) (*http.Response, error) {
		sleep(r.Context(), 20*time.Millisecond)
		return says(423, `{"code":"wait_timeout"}`)
	}, nil},
	"unanswered": {[]Option{Wait(10 * time.Millisecond)}, func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }, nil},
}

// unlessPut grants, and answers renewals as it is told.
func unlessPut(put script) script {
	return func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPut {
			return put(r)
		}
		return grants(r)
	}
}

// attachedOnce grants by a stream that ends at once, and answers what follows as it is told.
func attachedOnce(then script) script {
	return func(r *http.Request) (*http.Response, error) {
		if r.Header.Get("Accept") == "text/event-stream" {
			body := make([]byte, 4096)
			n, _ := r.Body.Read(body)
			if strings.Contains(string(body[:n]), `"owner"`) { // a later request has none
				text := `"lease_id":"` + r.Header.Get("Lease-Id") + `",` + streamLife
				if strings.Contains(string(body[:n]), `"names"`) {
					text = `"locks":[{"name":"a","fencing_token":7,"ttl_ms":30000},{"name":"b","fencing_token":8,"ttl_ms":30000}],` + text
				} else {
					text = `"name":"a","fencing_token":7,` + text
				}
				response, err := says(200, "event: granted\ndata: {"+text+"\n\n")
				response.Header.Set("Content-Type", "text/event-stream")
				return response, err
			}
		}
		return then(r)
	}
}

// reachesMaxHold is a stream that tells a renewal which gives the lease no more time.
func reachesMaxHold(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Accept") != "text/event-stream" {
		return frozen(r)
	}
	response, err := streams(r, "text/event-stream", "")
	response.Body = io.NopCloser(io.MultiReader(
		strings.NewReader(`event: granted
data: {"name":"a","lease_id":"`+r.Header.Get("Lease-Id")+`","fencing_token":7,"ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000,"elapsed_ms":0}

`), after{r.Context(), 10 * time.Second}, strings.NewReader(`event: renewed
data: {"name":"a","fencing_token":7,"ttl_ms":30000,"expires_in_ms":21000,"renew_in_ms":10000,"elapsed_ms":10000}

`), pending{r.Context()}))
	return response, err
}

// after reads nothing, for a while.
type after struct {
	ctx context.Context
	d   time.Duration
}

func (a after) Read([]byte) (int, error) {
	sleep(a.ctx, a.d)
	return 0, io.EOF
}

// givesNotice is a stream that tells of a break.
func givesNotice(r *http.Request) (*http.Response, error) {
	return streams(r, "text/event-stream", `event: granted
data: {"name":"a","lease_id":"`+r.Header.Get("Lease-Id")+`","fencing_token":7,"ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000,"elapsed_ms":0,"breaks_in_ms":5000}

`)
}

// Nothing is left of leases that have ended, in whichever way: as many goroutines, and as much memory, after many as after a few.
func TestNothingLeaks(t *testing.T) { nothingLeaks(t, 200) }

func nothingLeaks(t *testing.T, leases int) {
	const atATime = 50
	for name, way := range ways {
		synctest.Test(t, func(t *testing.T) {
			c := scripted(t, 2, func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodDelete {
					return says(204, "")
				}
				return way.answer(r)
			})
			defer c.Close()
			c.options.Patience = time.Second
			one := func() {
				l, err := c.Acquire(t.Context(), "a", way.options...)
				if way.end == nil {
					if err == nil {
						t.Errorf("%s: it is granted", name)
					}
					return
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				<-l.Context().Done()
				if err := context.Cause(l.Context()); !errors.Is(err, way.end) {
					t.Errorf("%s: it has ended by %v", name, err)
				}
				if l.attached {
					_ = l.Release(t.Context())
				}
			}
			some := func() (goroutines int, heap uint64) {
				for range leases / 2 / atATime {
					var all sync.WaitGroup
					for range atATime {
						all.Go(one)
					}
					all.Wait()
				}
				time.Sleep(time.Minute) // what undoes acquires has ended
				synctest.Wait()
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return runtime.NumGoroutine(), m.HeapAlloc
			}
			goroutines, heap := some()
			later, grown := some()
			if later > goroutines || grown > heap+512<<10 {
				t.Errorf("%s: %d goroutines and %d kB after half, %d and %d after all", name, goroutines, heap>>10, later, grown>>10)
			}
			if n := len(c.leases.of); n > 0 {
				t.Errorf("%s: %d leases are remembered", name, n)
			}
			if late := c.late.Load(); late != 0 {
				t.Errorf("%s: %d attempts are counted as late", name, late)
			}
		})
	}
}
