package clients

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"sync/atomic"
	"time"

	"fencepost/verify/check"
)

// badAnswers are what renewals are answered by something that is no gateway, or no longer
// one: none says that the lease was renewed, and some never end.
var badAnswers = map[string]func(w io.Writer){
	"no JSON":          whole("<html>maintenance</html>"),
	"JSON of no lease": whole("{}"),
	"no object":        whole("null"),
	"endless header":   endless("HTTP/1.1 200 OK\r\n", "X-A: b\r\n"),
	"endless body":     endless("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{", " "),
}

func whole(body string) func(io.Writer) {
	return func(w io.Writer) {
		fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
}

// endless sends a little again and again, until nobody reads it.
func endless(first, more string) func(io.Writer) {
	return func(w io.Writer) {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for _, err := io.WriteString(w, first); err == nil; _, err = io.WriteString(w, more) {
			<-tick.C
		}
	}
}

// despiteAnswers grants the lock and answers renewals badly: no part may come after the
// lease's end. One answer after the other: several programs that start at once, such as Java's,
// could use up their leases before they write.
func (l language) despiteAnswers(ctx context.Context, dir string, r *check.Result) error {
	for name, answer := range badAnswers {
		ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
		defer cancel()
		badly, err := l.despite(ctx, dir, name, answer, r)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.Harms.Add("bad answer: "+name, check.Harm{To: l.name, What: "renewals answered so", N: badly})
	}
	return nil
}

// despite has a program work while its renewals are answered badly, and returns how many were.
func (l language) despite(ctx context.Context, dir, name string, answer func(io.Writer), r *check.Result, env ...string) (badly int, err error) {
	st := newStorage(languageTTL / parts)
	defer st.server.Close()
	granted := make(chan time.Time, 1)
	var answered atomic.Int64
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.Method {
		case http.MethodPost:
			select {
			case <-granted: // the answer came too late, and it asks again
			default:
			}
			granted <- time.Now()
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"fencing_token":5,"waited_ms":0,"expires_in_ms":%d,"renew_in_ms":%d}`, languageTTL.Milliseconds(), languageTTL.Milliseconds()/3)
		case http.MethodPut:
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				defer conn.Close()
				answered.Add(1)
				answer(conn)
			}
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer gateway.Close()
	var cmd *exec.Cmd
	var said *bytes.Buffer
	for st.count() == 0 { // on a busy machine the lease may end before it writes
		if ctx.Err() != nil {
			return 0, fmt.Errorf("it has written nothing: %s", said)
		}
		if cmd, said, err = l.start(ctx, gateway.URL, dir, st, env...); err != nil {
			return 0, err
		}
		_ = cmd.Wait()
	}
	st.mu.Lock()
	last := st.taken[len(st.taken)-1].at
	st.mu.Unlock()
	margin := (<-granted).Add(languageTTL).Sub(last)
	if status := cmd.ProcessState.ExitCode(); status != exitLost || margin <= 0 {
		r.Violation("%s, renewals answered with %s: its last part came %s before the lease's end, exit status %d: %s", l.name, name, margin, status, said)
	}
	return int(answered.Load()), nil
}
