package clients

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// lateness is how late each answer to a renewal comes: later than a third of what is left of the
// lease when it is asked for, and long before the lease's end.
const lateness = languageTTL * 3 / 10

// lateTrials is how often a program may miss the end of its lease because the machine was busy.
const lateTrials = 5

// lateAnswers has all renewals carried out at once and answered late, and the work outlast the lease
// several times: the lease is never lost, so all parts come.
func (l language) lateAnswers(ctx context.Context, s *system.System, dir string, r *check.Result) error {
	ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
	defer cancel()
	gateway, err := url.Parse(s.Gateways[0].URL())
	if err != nil {
		return err
	}
	var delayed atomic.Int64
	defer func() {
		r.Harms.Add("late answer", check.Harm{To: l.name, What: "renewals answered late", N: int(delayed.Load())})
	}()
	proxy := httputil.NewSingleHostReverseProxy(gateway)
	proxy.ModifyResponse = func(answer *http.Response) error {
		if answer.Request.Method == http.MethodPut {
			delayed.Add(1)
			select {
			case <-time.After(lateness):
			case <-ctx.Done():
			}
		}
		return nil
	}
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // the program has ended
	late := httptest.NewServer(proxy)
	defer late.Close()
	var ended string
	for range lateTrials {
		st := newStorage(3 * languageTTL / parts)
		cmd, said, err := l.start(ctx, late.URL, dir, st)
		if err != nil {
			return err
		}
		_ = cmd.Wait()
		st.server.Close()
		if cmd.ProcessState.ExitCode() == 0 && st.count() == parts {
			return nil
		}
		ended = fmt.Sprintf("%d parts, exit status %d: %s", st.count(), cmd.ProcessState.ExitCode(), said)
	}
	r.Violation("%s, renewals that are answered after %s: %s", l.name, lateness, ended)
	return nil
}
