package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pending reads nothing until its context ends.
type pending struct{ ctx context.Context }

func (p pending) Read([]byte) (int, error) {
	<-p.ctx.Done()
	return 0, context.Cause(p.ctx)
}

// streams is an answer that says something and goes on in silence.
func streams(r *http.Request, kind, text string) (*http.Response, error) {
	response, err := says(200, "")
	response.Header.Set("Content-Type", kind)
	response.Body = io.NopCloser(io.MultiReader(strings.NewReader(text), pending{r.Context()}))
	return response, err
}

const (
	plainLife  = `"ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000,"waited_ms":0}`
	streamLife = `"ttl_ms":30000,"expires_in_ms":30000,"renew_in_ms":10000,"elapsed_ms":0}`
)

// kinds are the requests of a client: what makes each, and what its right answer is.
var kinds = map[string]struct {
	call  func(ctx context.Context, c *Client, id string) error
	right func(r *http.Request) (*http.Response, error)
}{
	"acquire": {
		func(ctx context.Context, c *Client, id string) error {
			l, err := c.Acquire(ctx, "a", LeaseID(id), NotRenewed())
			if err == nil && (l.Token() != 7 || l.Err() != nil) {
				err = fmt.Errorf("token %d, %v", l.Token(), l.Err())
			}
			return err
		},
		grants,
	},
	"acquire several": {
		func(ctx context.Context, c *Client, id string) error {
			l, err := c.Acquire(ctx, "a", Also("b"), LeaseID(id), NotRenewed())
			if err == nil && (len(l.Grants()) != 2 || l.Err() != nil) {
				err = fmt.Errorf("%+v, %v", l.Grants(), l.Err())
			}
			return err
		},
		func(r *http.Request) (*http.Response, error) {
			return says(201, `{"lease_id":"`+r.Header.Get("Lease-Id")+`","locks":[{"name":"a","fencing_token":7,"ttl_ms":30000},{"name":"b","fencing_token":8,"ttl_ms":30000}],`+plainLife)
		},
	},
	"attach": {
		func(ctx context.Context, c *Client, id string) error {
			l, err := c.Acquire(ctx, "a", Attached(), LeaseID(id))
			if err == nil && (l.Token() != 7 || l.Err() != nil) {
				err = fmt.Errorf("token %d, %v", l.Token(), l.Err())
			}
			return err
		},
		func(r *http.Request) (*http.Response, error) {
			return streams(r, "text/event-stream", "event: granted\ndata: {\"name\":\"a\",\"lease_id\":\""+r.Header.Get("Lease-Id")+"\",\"fencing_token\":7,"+streamLife+"\n\n")
		},
	},
	"renew": {
		func(ctx context.Context, c *Client, id string) error {
			left, err := c.Renew(ctx, id, 0, "a")
			if err == nil && left != 30*time.Second {
				err = fmt.Errorf("it has %s", left)
			}
			return err
		},
		func(*http.Request) (*http.Response, error) {
			return says(200, `{"name":"a","lease":"01","fencing_token":7,`+plainLife)
		},
	},
	"renew several": {
		func(ctx context.Context, c *Client, id string) error {
			left, err := c.Renew(ctx, id, 0, "a", "b")
			if err == nil && left != 30*time.Second {
				err = fmt.Errorf("it has %s", left)
			}
			return err
		},
		func(*http.Request) (*http.Response, error) {
			return says(200, `{"lease":"01","locks":[{"name":"a","fencing_token":7,"ttl_ms":30000},{"name":"b","fencing_token":8,"ttl_ms":30000}],`+plainLife)
		},
	},
	"release": {
		func(ctx context.Context, c *Client, id string) error { return c.Release(ctx, id, "a") },
		func(*http.Request) (*http.Response, error) { return says(204, "") },
	},
	"break": {
		func(ctx context.Context, c *Client, id string) error { return c.Break(ctx, "a", 7, "") },
		func(*http.Request) (*http.Response, error) { return says(204, "") },
	},
	"break with notice": {
		func(ctx context.Context, c *Client, id string) error {
			h, held, err := c.BreakWithNotice(ctx, "a", 7, time.Second, "")
			if err == nil && (!held || h.Lease != "01") {
				err = fmt.Errorf("%t, %+v", held, h)
			}
			return err
		},
		func(*http.Request) (*http.Response, error) {
			return says(202, `{"lease":"01","owner":"","fencing_token":7,"breaks_in_ms":1000}`)
		},
	},
	"evict": {
		func(ctx context.Context, c *Client, id string) error { return c.Evict(ctx, "a", "01", "") },
		func(*http.Request) (*http.Response, error) { return says(204, "") },
	},
	"inspect": {
		func(ctx context.Context, c *Client, id string) error {
			l, err := c.Inspect(ctx, "a")
			if err == nil && (l.Name != "a" || l.Token != 7) {
				err = fmt.Errorf("%+v", l)
			}
			return err
		},
		func(*http.Request) (*http.Response, error) {
			return says(200, `{"name":"a","held":false,"fencing_token":7,"holders":[]}`)
		},
	},
	"list": {
		func(ctx context.Context, c *Client, id string) (last error) {
			for _, err := range c.List(ctx, "") {
				last = err
			}
			return last
		},
		func(*http.Request) (*http.Response, error) { return says(200, `{"locks":[]}`) },
	},
	"history": {
		func(ctx context.Context, c *Client, id string) error { _, err := c.History(ctx, "a"); return err },
		func(*http.Request) (*http.Response, error) { return says(200, `{"name":"a","grants":[]}`) },
	},
	"judge": {
		func(ctx context.Context, c *Client, id string) error {
			j, err := c.Judge(ctx, "a", 7)
			if err == nil && j.Verdict != VerdictLive {
				err = fmt.Errorf("%+v", j)
			}
			return err
		},
		func(*http.Request) (*http.Response, error) {
			return says(200, `{"name":"a","fencing_token":7,"verdict":"live","highest_issued":7,"highest_admitted":0}`)
		},
	},
	"admit": { // beside readers without a limit nothing has been admitted yet
		func(ctx context.Context, c *Client, id string) error {
			highest, err := c.Admit(ctx, "a", 7, NoSlot)
			if err == nil && highest != 0 {
				err = fmt.Errorf("the highest is %d", highest)
			}
			return err
		},
		func(*http.Request) (*http.Response, error) {
			return says(200, `{"name":"a","admitted":true,"highest_admitted":0}`)
		},
	},
	"events": {
		func(ctx context.Context, c *Client, id string) error {
			for e, err := range c.Events(ctx, "") {
				if err == nil && (e.Kind != "granted" || e.Name != "a") {
					err = fmt.Errorf("%+v", e)
				}
				return err
			}
			return errors.New("nothing is told")
		},
		func(r *http.Request) (*http.Response, error) {
			return streams(r, "text/event-stream; charset=utf-8", "event: granted\ndata: {\"name\":\"a\"}\n\n")
		},
	},
}

// wrong are successes that no gateway answers any of the kinds with.
var wrong = map[string]func(r *http.Request) (*http.Response, error){
	"nothing":        func(*http.Request) (*http.Response, error) { return says(200, "") },
	"a page":         func(*http.Request) (*http.Response, error) { return says(200, "<html>\n\nwelcome\n\n</html>") },
	"empty object":   func(*http.Request) (*http.Response, error) { return says(200, "{}") },
	"null":           func(*http.Request) (*http.Response, error) { return says(200, "null") },
	"list":           func(*http.Request) (*http.Response, error) { return says(200, "[]") },
	"true":           func(*http.Request) (*http.Response, error) { return says(200, "true") },
	"ok":             func(*http.Request) (*http.Response, error) { return says(200, `{"status":"ok"}`) },
	"another name":   func(*http.Request) (*http.Response, error) { return says(200, `{"name":"z"}`) },
	"created":        func(*http.Request) (*http.Response, error) { return says(201, `{"name":"a"}`) },
	"accepted":       func(*http.Request) (*http.Response, error) { return says(202, `{"id":1}`) },
	"partial":        func(*http.Request) (*http.Response, error) { return says(206, "") },
	"cut short":      func(*http.Request) (*http.Response, error) { return says(200, `{"name":"a","lease_id":"01`) },
	"wrong type":     func(*http.Request) (*http.Response, error) { return says(200, `{"name":["a"],"expires_in_ms":"9"}`) },
	"an open stream": func(r *http.Request) (*http.Response, error) { return streams(r, "text/html", "<html>\n\n") },
}

// A success that no gateway answers with says nothing: the client asks again, as it does
// without an answer.
func TestWrongAnswers(t *testing.T) {
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		for _, how := range slices.Sorted(maps.Keys(wrong)) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
					if asked.Add(1) == 1 {
						return wrong[how](r)
					}
					return kinds[kind].right(r)
				})
				defer c.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := kinds[kind].call(ctx, c, NewLeaseID()); err != nil || asked.Load() != 2 {
					t.Errorf("%s, answered %s first: %v, after %d requests", kind, how, err, asked.Load())
				}
			})
		}
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
				asked.Add(1)
				return kinds[kind].right(r)
			})
			defer c.Close()
			if err := kinds[kind].call(t.Context(), c, NewLeaseID()); err != nil || asked.Load() != 1 {
				t.Errorf("%s: %v, after %d requests", kind, err, asked.Load())
			}
		})
	}
}

// Nor does such an answer to a renewal end the lease: it is tried until the deadline, and a
// right answer in time keeps the lease.
func TestWrongAnswersToARenewal(t *testing.T) {
	const lease = `"name":"a","lease":"01","fencing_token":7,"ttl_ms":30000,`
	answers := map[string]func(r *http.Request) (*http.Response, error){}
	maps.Copy(answers, wrong)
	answers["gone"] = func(*http.Request) (*http.Response, error) { return says(204, "") }
	for _, numbers := range []string{
		`"expires_in_ms":9000,"renew_in_ms":-1000000`,
		`"expires_in_ms":9000,"renew_in_ms":-9223372036854775808`,
		`"renew_in_ms":10000`,
		`"expires_in_ms":null`,
		`"expires_in_ms":9223372036854775807`,
		`"expires_in_ms":-9223372036854775807`,
		`"expires_in_ms":30000,"waited_ms":-30000`,
		`"expires_in_ms":30000,"waited_ms":9223372036854775807`,
		`"expires_in_ms":1e99`,
	} {
		answers[numbers] = func(*http.Request) (*http.Response, error) { return says(200, "{"+lease+numbers+"}") }
	}
	answers["without name"] = func(*http.Request) (*http.Response, error) {
		return says(200, `{"expires_in_ms":9000,"renew_in_ms":3000}`)
	}
	for _, how := range slices.Sorted(maps.Keys(answers)) {
		for _, rights := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodPut && (asked.Add(1) <= 3 || !rights) {
						return answers[how](r)
					}
					return grants(r)
				})
				defer c.Close()
				l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
				if rights {
					ended := time.NewTimer(2 * time.Minute)
					select {
					case <-ended.C:
					case <-l.Context().Done():
						t.Errorf("%s: it has ended: %v", how, context.Cause(l.Context()))
					}
					return
				}
				<-l.Context().Done()
				err := context.Cause(l.Context())
				if left := l.Remaining(); !errors.Is(err, ErrUnknown) || left <= 0 || left > time.Second || asked.Load() < 3 {
					t.Errorf("%s: %v, %s before the deadline, after %d renewals", how, err, left, asked.Load())
				}
			})
		}
	}
}

// A key that can't be read, or is none, is asked for again; each request has that of its time.
func TestKeyFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var shown string
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			shown = r.Header.Get("Authorization")
			return kinds["inspect"].right(r)
		})
		defer c.Close()
		c.options.KeyFunc = func() (string, error) {
			asked++
			return []string{"", "two\nlines", "fp_one", "fp_two"}[asked-1], []error{errors.New("it is being written"), nil, nil, nil}[asked-1]
		}
		for i, want := range []string{"Bearer fp_one", "Bearer fp_two"} {
			if _, err := c.Inspect(t.Context(), "a"); err != nil || shown != want || asked != i+3 {
				t.Errorf("%v, shown %q, asked %d times", err, shown, asked)
			}
		}
	})
}
