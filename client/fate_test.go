package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// said is what stands at a gateway's address says, in a row of the table of docs/clients.md.
type said struct {
	name   string
	row    string // how that begins
	status int    // 0: it does something else
	code   Code
	does   func(w http.ResponseWriter, r *http.Request)
}

// sayings are all of them.
func sayings() (all []said) {
	const page, none = "other 4xx without `code`", "anything else"
	rows := map[string][]Code{
		"2xx of a gateway": {CodeInvalidRequest, CodeUnsupportedByStore, CodeConflict, CodeLeaseLost, CodeStaleToken},
		"404, 405":         {CodeNotFound, CodeMethodNotAllowed, CodeTooLarge, CodeLeaseIDRequired},
		"423":              {CodeLocked},
		"429, and 503":     {CodeTooManyRequests, CodeQuarantined},
		"401, 403":         {CodeUnauthenticated, CodeForbidden, CodeMisdirected},
		none:               {CodeUnavailable, CodeClockSkew, CodeNotReplicated, CodeDraining},
	}
	statuses := map[Code]int{CodeInvalidRequest: 400, CodeUnsupportedByStore: 400, CodeConflict: 409, CodeLeaseLost: 412, CodeStaleToken: 412, CodeNotFound: 404,
		CodeMethodNotAllowed: 405, CodeTooLarge: 413, CodeLeaseIDRequired: 428, CodeLocked: 423, CodeQuarantined: 503, CodeTooManyRequests: 429,
		CodeUnauthenticated: 401, CodeForbidden: 403, CodeMisdirected: 421, CodeUnavailable: 503, CodeClockSkew: 503, CodeNotReplicated: 503, CodeDraining: 503}
	for row, codes := range rows {
		for _, code := range codes {
			all = append(all, said{name: string(code), row: row, status: statuses[code], code: code})
		}
	}
	for _, status := range []int{300, 301, 302, 303, 307, 308, 400, 401, 403, 404, 405, 408, 409, 412, 413, 418, 421, 423, 428, 429, 499, 500, 502, 503, 504, 520, 599} {
		row := none
		switch {
		case status < 400:
			row = "401, 403"
		case status < 500:
			row = page
		}
		all = append(all, said{name: "page " + strconv.Itoa(status), row: row, status: status})
	}
	hijack := func(w http.ResponseWriter, do func(net.Conn)) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			do(conn)
			conn.Close()
		}
	}
	return append(all,
		said{name: "page 200", row: none, status: 200},
		said{name: "nothing 204", row: none, status: 203},
		said{name: "garbage", row: none, does: func(w http.ResponseWriter, r *http.Request) {
			hijack(w, func(conn net.Conn) { io.WriteString(conn, "\x00\x01 no HTTP\r\n\r\n") })
		}},
		said{name: "reset", row: none, does: func(w http.ResponseWriter, r *http.Request) {
			hijack(w, func(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) })
		}},
		said{name: "cut", row: none, does: func(w http.ResponseWriter, r *http.Request) {
			hijack(w, func(conn net.Conn) { io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"name\":") })
		}},
		said{name: "hang", row: none, does: func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
	)
}

// answer is what is said, as a script has it.
func (s said) answer(r *http.Request) (*http.Response, error) {
	switch {
	case s.name == "hang":
		return frozen(r)
	case s.status == 0:
		return nil, errors.New("connection reset by peer")
	case s.code != "":
		return says(s.status, `{"code":"`+string(s.code)+`","detail":"it is so"}`)
	}
	return says(s.status, "<html>")
}

// serve says it.
func (s said) serve(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // else the end of the client's connection is not seen
	if s.does != nil {
		s.does(w, r)
		return
	}
	relay(w, r, s.answer)
}

// relay serves what a script answers.
func relay(w http.ResponseWriter, r *http.Request, script script) {
	response, err := script(r)
	if err != nil {
		return
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	http.NewResponseController(w).Flush()
	part := make([]byte, 4096)
	for err == nil {
		var n int
		if n, err = response.Body.Read(part); n > 0 {
			_, _ = w.Write(part[:n])
			http.NewResponseController(w).Flush()
		}
	}
}

// is reports whether an error is what was said.
func (s said) is(err error) bool {
	e := refusal(err)
	switch {
	case err == nil:
		return false
	case s.code != "":
		return e != nil && e.Code == s.code
	case s.status >= 300:
		return e != nil && e.Status == s.status && e.Code == ""
	}
	return e == nil
}

// columns are the calls by which the columns of the table are tried.
func columns() map[string]map[string]func(ctx context.Context, c *Client, id string) error {
	from := func(names ...string) map[string]func(ctx context.Context, c *Client, id string) error {
		calls := map[string]func(ctx context.Context, c *Client, id string) error{}
		for _, name := range names {
			calls[name] = kinds[name].call
		}
		return calls
	}
	all := map[string]map[string]func(ctx context.Context, c *Client, id string) error{
		"Acquire, look":              from("inspect", "break", "admit", "history"),
		"Acquire that waits, events": from("acquire", "attach", "events"),
		"Renew, release":             from("release"),
	}
	for name, names := range map[string][]string{"renew": {"a"}, "renew several": {"a", "b"}} {
		all["Renew, release"][name] = func(ctx context.Context, c *Client, id string) error {
			_, err := c.Renew(ctx, id, 0, names...)
			return err
		}
	}
	all["Acquire, look"]["acquire"] = func(ctx context.Context, c *Client, id string) error {
		_, err := c.TryAcquire(ctx, "a", LeaseID(id), NotRenewed())
		return err
	}
	all["Acquire, look"]["attach"] = func(ctx context.Context, c *Client, id string) error {
		_, err := c.TryAcquire(ctx, "a", LeaseID(id), Attached())
		return err
	}
	return all
}

// table reads the table of docs/clients.md: what follows by row and column.
func table(t *testing.T) (cell func(row, column string) string) {
	t.Helper()
	_, text, found := strings.Cut(string(must[[]byte](t)(os.ReadFile("../docs/clients.md"))), "   | Answer |")
	if !found {
		t.Fatal("docs/clients.md has no table of answers")
	}
	text, _, _ = strings.Cut("   | Answer |"+text, "\n\n")
	var rows [][]string
	for line := range strings.SplitSeq(text, "\n") {
		cells := strings.Split(strings.Trim(line, " |"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return func(row, column string) string {
		t.Helper()
		at := slices.Index(rows[0], column)
		line := slices.IndexFunc(rows, func(r []string) bool { return strings.HasPrefix(r[0], row) })
		if at < 0 || line < 0 {
			t.Fatalf("the table has no cell %q, %q", row, column)
		}
		return rows[line][at]
	}
}

// front is what stands at the address of a gateway: it says something, so many times, and is a gateway after that.
type front struct {
	*httptest.Server
	times atomic.Int64
	asked atomic.Int64
}

func fronts(s said, times int64, right func() script) *front {
	f := &front{}
	f.times.Store(times)
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		if f.times.Add(-1) >= 0 {
			s.serve(w, r)
			return
		}
		relay(w, r, script(right()))
	}))
	return f
}

// Each cell of the table of docs/clients.md is as it says, over real connections: with a gateway that says something once,
// alone and with a second one that is well.
func TestFates(t *testing.T) {
	t.Parallel()
	cell := table(t)
	var cells sync.WaitGroup
	defer cells.Wait()
	room := make(chan struct{}, 64)
	for _, s := range sayings() {
		for column, calls := range columns() {
			for name, call := range calls {
				if s.code == CodeLocked && name == "events" {
					continue // it is of acquires
				}
				for gateways := 1; gateways <= 2; gateways++ {
					room <- struct{}{}
					cells.Go(func() {
						defer func() { <-room }()
						right := func() script { return kinds[name].right }
						a, b := fronts(s, 1, right), fronts(s, 0, right)
						defer a.Close()
						defer b.Close()
						c, err := New(Options{Addresses: []string{a.URL, b.URL}[:gateways], Owner: "me"})
						if err != nil {
							t.Error(err)
							return
						}
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						err = call(ctx, c, NewLeaseID())
						cancel()
						ofA, ofB := a.asked.Load(), b.asked.Load()
						c.Close()
						what := fmt.Sprintf("%s, %s: %s, %d gateways: %v, asked %d and %d times", s.name, column, name, gateways, err, ofA, ofB)
						follows := cell(s.row, column)
						switch {
						case follows == "final", follows == "each" && gateways == 1:
							if !s.is(err) || ofA != 1 || ofB != 0 {
								t.Errorf("%s; want %s", what, follows)
							}
						case follows == "same", gateways == 1:
							if err != nil || ofA != 2 || ofB != 0 {
								t.Errorf("%s; want %s", what, follows)
							}
						case err != nil || ofA != 1 || ofB != 1:
							t.Errorf("%s; want %s", what, follows)
						}
					})
				}
			}
		}
	}
}

// Where both gateways say it all the time a call goes on for as long as the table has it, without a storm of requests, and
// tells what was said.
func TestFatesWithoutAGateway(t *testing.T) {
	cell := table(t)
	for _, s := range sayings() {
		for column, calls := range columns() {
			for name, call := range calls {
				if s.code == CodeLocked && name == "events" {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					var a, b atomic.Int64
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					c := scripted(t, 2, func(r *http.Request) (*http.Response, error) {
						if asked := map[string]*atomic.Int64{"a": &a, "b": &b}[r.URL.Host]; asked.Add(1) > 100 {
							cancel() // in a bubble no time passes without a rest
						}
						return s.answer(r)
					})
					defer c.Close()
					begun := time.Now()
					err := call(ctx, c, NewLeaseID())
					took := time.Since(begun)
					what := fmt.Sprintf("%s, %s: %s: %v after %s, asked %d and %d times", s.name, column, name, err, took, a.Load(), b.Load())
					switch follows := cell(s.row, column); follows {
					case "final":
						if !s.is(err) || took > 0 || a.Load() != 1 || b.Load() != 0 {
							t.Error(what)
						}
					case "each":
						if !s.is(err) || errors.Is(err, ErrUnreachable) || took > 0 || a.Load() != 1 || b.Load() != 1 {
							t.Error(what)
						}
					case "same", "wait":
						if !s.is(err) || took != time.Minute || a.Load() > 60 || b.Load() > 60 || follows == "wait" && b.Load() < 10 {
							t.Error(what)
						}
					case "next":
						ours := s.code == CodeTooManyRequests || s.code == CodeQuarantined || s.code == CodeUnauthenticated || s.code == CodeForbidden || s.code == CodeMisdirected
						if !s.is(err) || errors.Is(err, ErrUnreachable) == ours || took != defaultPatience || a.Load() > 30 || b.Load() > 30 || b.Load() < 1 {
							t.Error(what)
						}
					default:
						t.Errorf("the table has %q", follows)
					}
				})
			}
		}
	}
}

// A lease is renewed at the second gateway whatever the first says, unless that is a loss; it goes on until its deadline
// where both say it.
func TestFatesOfRenewals(t *testing.T) {
	cell := table(t)
	for _, s := range sayings() {
		for _, bad := range []string{"a", "ab"} {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				c := scripted(t, 2, func(r *http.Request) (*http.Response, error) {
					if r.Method == http.MethodPut && strings.Contains(bad, r.URL.Host) {
						if asked.Add(1) > 500 {
							return frozen(r)
						}
						return s.answer(r)
					}
					if r.Method == http.MethodDelete {
						return says(204, "")
					}
					return grants(r)
				})
				defer c.Close()
				l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
				begun := time.Now()
				select {
				case <-l.Context().Done():
				case <-time.After(5 * time.Minute):
				}
				lived, err := time.Since(begun), context.Cause(l.Context())
				what := fmt.Sprintf("%s, by %s: it has lived for %s, asked %d times: %v", s.name, bad, lived, asked.Load(), err)
				switch follows := cell(s.row, "Renew, release"); {
				case s.code == CodeLeaseLost || s.code == CodeStaleToken:
					if !s.is(err) || asked.Load() != 1 {
						t.Error(what)
					}
				case follows == "final" || bad == "ab": // it is asked until the deadline
					if !errors.Is(err, ErrUnknown) || lived < 28*time.Second || asked.Load() < 4 || asked.Load() > 100 {
						t.Error(what)
					}
				case err != nil || asked.Load() != 1:
					t.Error(what)
				}
			})
		}
	}
}

// What says most is told at the end: a refusal of a gateway rather than a page, and that rather than no answer.
func TestTheBestError(t *testing.T) {
	denied := said{status: 401, code: CodeUnauthenticated}
	forbidden := said{status: 403}
	for name, test := range map[string]struct{ a, b, told said }{
		"a page and a refusal":  {forbidden, denied, denied},
		"a refusal and a page":  {denied, forbidden, denied},
		"a page and nothing":    {forbidden, said{}, forbidden},
		"nothing and a refusal": {said{}, denied, denied},
		"not ready, and a page": {said{status: 503, code: CodeUnavailable}, said{status: 502}, said{status: 503, code: CodeUnavailable}},
	} {
		for kind, call := range columns()["Acquire, look"] {
			synctest.Test(t, func(t *testing.T) {
				c := scripted(t, 2, func(r *http.Request) (*http.Response, error) {
					if r.URL.Host == "a" {
						return test.a.answer(r)
					}
					return test.b.answer(r)
				})
				defer c.Close()
				if err := call(t.Context(), c, NewLeaseID()); !test.told.is(err) {
					t.Errorf("%s, %s: %v", name, kind, err)
				}
			})
		}
	}
}

// A place in the queue is not given up for a gateway that refuses: the wait goes on at the next one, also where all refuse for a while.
func TestAWaitGoesOn(t *testing.T) {
	for _, s := range sayings() {
		if s.row == "2xx of a gateway" || s.row == "404, 405" {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			c := scripted(t, 2, func(r *http.Request) (*http.Response, error) {
				var asks acquireRequest
				_ = json.NewDecoder(r.Body).Decode(&asks)
				switch at := time.Since(begun); {
				case r.Method == http.MethodDelete:
					return says(204, "")
				case at > 8*time.Second && at < 18*time.Second:
					return s.answer(r)
				case at > 30*time.Second:
					return grants(r)
				}
				sleep(r.Context(), millis(asks.Wait))
				return says(423, `{"code":"wait_timeout","name":"a"}`)
			})
			defer c.Close()
			if _, err := c.Acquire(t.Context(), "a", Wait(time.Minute), NotRenewed()); err != nil {
				t.Errorf("%s: %v after %s", s.name, err, time.Since(begun))
			}
		})
	}
}
