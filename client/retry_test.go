package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// inAnHour is a refusal by what stands in front of a gateway, which says to come back in an hour.
func inAnHour(status int, body string) (*http.Response, error) {
	response, err := says(status, body)
	response.Header.Set("Retry-After", "3600")
	return response, err
}

// Nobody stays away for as long as a proxy's page says, nor keeps the other gateways from being
// asked: they may be back by then.
func TestComesBackBeforeItIsTold(t *testing.T) {
	for name, page := range map[string]func() (*http.Response, error){
		"maintenance": func() (*http.Response, error) { return inAnHour(503, "<html>") },
		"bad gateway": func() (*http.Response, error) { return inAnHour(502, "") },
		"unavailable": func() (*http.Response, error) { return inAnHour(503, `{"code":"unavailable"}`) },
		"draining":    func() (*http.Response, error) { return inAnHour(503, `{"code":"draining","retry_after_ms":3600000}`) },
	} {
		for gateways := 1; gateways <= 2; gateways++ {
			for _, kind := range []string{"acquire", "attach", "renew", "release", "break", "admit", "inspect", "events"} {
				t.Run(name+"/"+kind, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						var back atomic.Bool
						c := scripted(t, gateways, func(r *http.Request) (*http.Response, error) {
							switch {
							case back.Load() && (gateways == 1 || r.URL.Host == "b"):
								return kinds[kind].right(r)
							case r.URL.Host == "b":
								return nil, errors.New("connection refused")
							}
							return page()
						})
						defer c.Close()
						const outage = 10 * time.Second
						time.AfterFunc(outage, func() { back.Store(true) })
						begun := time.Now()
						err := kinds[kind].call(t.Context(), c, NewLeaseID())
						if took := time.Since(begun); err != nil || took < outage || took > outage+5*time.Second {
							t.Errorf("%d gateways: %v after %s", gateways, err, took)
						}
						back.Store(false)
						begun = time.Now()
						err = kinds[kind].call(t.Context(), c, NewLeaseID())
						if took := time.Since(begun); !errors.Is(err, ErrUnreachable) || took > defaultPatience+5*time.Second {
							t.Errorf("%d gateways that don't come back: %v after %s", gateways, err, took)
						}
					})
				})
			}
		}
	}
}

// A call gives up when the gateways have failed for as long as the patience lasts, counted from
// when the first of the requests was sent, however they fail. Each has been asked by then.
func TestPatience(t *testing.T) {
	for how, fails := range map[string]func(r *http.Request) (*http.Response, error){
		"frozen":      frozen,
		"refused":     func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") },
		"maintenance": func(*http.Request) (*http.Response, error) { return inAnHour(503, "<html>") },
		"a page":      func(*http.Request) (*http.Response, error) { return says(200, "<html>") },
		"an empty stream": func(*http.Request) (*http.Response, error) {
			response, err := says(200, "")
			response.Header.Set("Content-Type", "text/event-stream")
			return response, err
		},
		"a silent stream": func(r *http.Request) (*http.Response, error) { return streams(r, "text/event-stream", "") },
	} {
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			if strings.HasSuffix(how, "stream") && kind != "attach" && kind != "events" {
				continue // that is a page, too
			}
			for gateways := 1; gateways <= 3; gateways++ {
				for _, patience := range []time.Duration{5 * time.Second, defaultPatience} {
					synctest.Test(t, func(t *testing.T) {
						var mu sync.Mutex
						asked := map[string]int{}
						ctx, cancel := context.WithCancel(t.Context())
						defer cancel()
						c := scripted(t, gateways, func(r *http.Request) (*http.Response, error) {
							mu.Lock()
							if asked[r.URL.Host]++; asked[r.URL.Host] > 50 {
								cancel() // in a bubble no time passes without a rest
							}
							mu.Unlock()
							return fails(r)
						})
						defer c.Close()
						c.options.Patience = patience
						begun := time.Now()
						err := kinds[kind].call(ctx, c, NewLeaseID())
						if took := time.Since(begun); !errors.Is(err, ErrUnreachable) || took != patience || len(asked) != gateways {
							t.Errorf("%s, %s, %d gateways, %s: %v after %s, asked %v", how, kind, gateways, patience, err, took, asked)
						}
					})
				}
			}
		}
	}
}

// One gateway that answers is found before the patience is over, whatever becomes of the others,
// and a wait goes on there for as long as it takes.
func TestPatienceWithAGatewayThatAnswers(t *testing.T) {
	const long = 5 * time.Minute
	for gateways := 1; gateways <= 3; gateways++ {
		for _, options := range [][]Option{nil, {Attached()}} {
			for _, patience := range []time.Duration{time.Second, 5 * time.Second, defaultPatience} {
				synctest.Test(t, func(t *testing.T) {
					begun := time.Now()
					c := scripted(t, gateways, func(r *http.Request) (*http.Response, error) {
						if r.URL.Host != string(rune('a'+gateways-1)) {
							return frozen(r)
						}
						if r.Method == http.MethodDelete {
							return says(204, "")
						}
						free := long - time.Since(begun)
						if r.Header.Get("Accept") == "text/event-stream" {
							return streamsLater(r, free)
						}
						var asks acquireRequest
						if err := json.NewDecoder(r.Body).Decode(&asks); err != nil {
							t.Error(err)
						}
						if free > millis(asks.Wait) {
							if !sleep(r.Context(), millis(asks.Wait)) {
								return frozen(r)
							}
							return says(423, `{"code":"wait_timeout","name":"a"}`)
						}
						if !sleep(r.Context(), max(0, free)) {
							return frozen(r)
						}
						return grants(r)
					})
					defer c.Close()
					c.options.Patience = patience
					l, err := c.Acquire(t.Context(), "a", append(options, NotRenewed())...)
					if took := time.Since(begun); err != nil || took < long || took > long+time.Minute {
						t.Fatalf("%d gateways, %s: %v after %s", gateways, patience, err, took)
					}
					if err := l.Err(); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// Who waits, be it for less than a millisecond more, is told that its wait is over, and not what
// somebody is told who does not wait.
func TestTheEndOfAWait(t *testing.T) {
	for _, wait := range []time.Duration{time.Microsecond, 1500 * time.Microsecond, time.Second, time.Second + time.Microsecond} {
		for mode, options := range map[string][]Option{"plain": nil, "several": {Also("b")}, "attached": {Attached()}} {
			synctest.Test(t, func(t *testing.T) {
				c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodDelete {
						return says(204, "")
					}
					var asks acquireRequest
					if err := json.NewDecoder(r.Body).Decode(&asks); err != nil {
						t.Error(err)
					}
					if asks.Wait == 0 {
						return says(423, `{"code":"locked","name":"a"}`)
					}
					sleep(r.Context(), millis(asks.Wait))
					return says(423, `{"code":"wait_timeout","name":"a"}`)
				})
				defer c.Close()
				begun := time.Now()
				_, err := c.Acquire(t.Context(), "a", append(options, Wait(wait))...)
				if took := time.Since(begun); !errors.Is(err, CodeWaitTimeout) || took < wait || took > wait+time.Millisecond {
					t.Errorf("%s, for %s: %v after %s", mode, wait, err, took)
				}
			})
		}
	}
}

// streamsLater is a stream that grants a lease after a while; until then it has comments.
func streamsLater(r *http.Request, free time.Duration) (*http.Response, error) {
	response, err := streams(r, "text/event-stream", "")
	from, to := io.Pipe()
	response.Body = from
	begun := time.Now()
	go func() {
		io.WriteString(to, ":\n\n") // at once, as a gateway does
		for time.Since(begun) < free {
			if !sleep(r.Context(), min(15*time.Second, free-time.Since(begun))) {
				to.CloseWithError(r.Context().Err())
				return
			}
			io.WriteString(to, ": nothing\n\n")
		}
		io.WriteString(to, "event: granted\ndata: {\"name\":\"a\",\"lease_id\":\""+r.Header.Get("Lease-Id")+"\",\"fencing_token\":7,\"ttl_ms\":30000,\"expires_in_ms\":30000,\"renew_in_ms\":10000,\"elapsed_ms\":"+strconv.FormatInt(time.Since(begun).Milliseconds(), 10)+"}\n\n")
		<-r.Context().Done()
		to.CloseWithError(r.Context().Err())
	}()
	return response, err
}

// Streams that end at once, though a gateway has begun each, are not asked for without a rest; nor
// are they given up, for all is told.
func TestStreamsThatEndAtOnce(t *testing.T) {
	for _, begins := range []string{":\n\n", "id: 7\n\n", "event: resync\ndata: {}\n\n", "event: queued\ndata: {\"position\":1}\n\n"} {
		for gateways := 1; gateways <= 2; gateways++ {
			for _, kind := range []string{"events", "attach"} {
				synctest.Test(t, func(t *testing.T) {
					var asked atomic.Int64
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					time.AfterFunc(3*time.Minute, cancel)
					c := scripted(t, gateways, func(r *http.Request) (*http.Response, error) {
						if r.Method == http.MethodDelete {
							return says(204, "")
						}
						if asked.Add(1) > 500 {
							cancel() // in a bubble no time passes without a rest
						}
						response, err := says(200, begins)
						response.Header.Set("Content-Type", "text/event-stream")
						return response, err
					})
					defer c.Close()
					var err error
					if kind == "attach" {
						_, err = c.Acquire(ctx, "a", Attached())
					} else {
						for _, err = range c.Events(ctx, "") { // the last one counts
						}
					}
					if n := asked.Load(); !errors.Is(err, context.Canceled) || n < 50 || n > 500 {
						t.Errorf("%s, %d gateways, %q: %v after %d requests", kind, gateways, begins, err, n)
					}
				})
			}
		}
	}
}

// Where a stream of events breaks off it is opened again where it was; nothing is missed without
// a resync, also where nothing was told before, or a gateway does not say where it stands.
func TestEventsResync(t *testing.T) {
	const granted = "event: granted\ndata: {\"name\":\"a\"}\n\n"
	for name, test := range map[string]struct {
		first string // stream, which breaks off
		after string // what the next one is to begin after
		told  string
	}{
		"nothing":                {":\n\n", "", "resync granted "},
		"an event without id":    {":\n\n" + granted, "", "granted resync granted "},
		"where it stands":        {"id: 7\n\n", "7", "granted "},
		"a sign of life":         {"id: 7\n\n:\nid: 9\n\n", "9", "granted "},
		"an event":               {"id: 7\n\nid: 8\n" + granted, "8", "granted granted "},
		"a gap":                  {":\n\nid: 9\nevent: resync\ndata: {}\n\n", "9", "resync granted "},
		"an event cut short":     {"id: 7\n\nid: 8\nevent: granted\n", "7", "granted "},
		"one that can't be read": {"id: 7\n\nid: 8\nevent: granted\ndata: {\"name\":\n\n", "7", "granted "},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				switch asked++; asked {
				case 1:
					response, err := says(200, test.first)
					response.Header.Set("Content-Type", "text/event-stream")
					return response, err
				case 2:
					return nil, errors.New("connection refused") // that is no stream
				}
				if after := r.Header.Get("Last-Event-ID"); after != test.after {
					t.Errorf("%s: it goes on after %q", name, after)
				}
				return streams(r, "text/event-stream", ":\n\n"+granted)
			})
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			told := ""
			for e, err := range c.Events(ctx, "") {
				if told += e.Kind + " "; err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if told != test.told+" " {
				t.Errorf("%s: told %q, want %q", name, told, test.told)
			}
		})
	}
}

// A stream that breaks off fails from then on, and not since it was opened; nor does an hour of
// waiting count.
func TestPatienceAfterAStream(t *testing.T) {
	for _, kind := range []string{"events", "attach"} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				if time.Since(begun) > 0 {
					return nil, errors.New("connection refused")
				}
				response, err := streamsLater(r, time.Hour)
				body := response.Body
				time.AfterFunc(10*time.Minute, func() { body.Close() })
				return response, err
			})
			defer c.Close()
			err := kinds[kind].call(t.Context(), c, NewLeaseID())
			if took := time.Since(begun); !errors.Is(err, ErrUnreachable) || took < 10*time.Minute+defaultPatience || took > 10*time.Minute+defaultPatience+silence {
				t.Errorf("%s: %v after %s", kind, err, took)
			}
		})
	}
}
