package main

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"fencepost/verify/system"
)

// A command lives on although each renewal is answered later than a third of what is left of the
// lease then: it is carried out at once. On a busy machine an answer may come too late after all, which is
// no defect: then it is tried again.
func TestSystemSlowAnswers(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	gateway, err := url.Parse(s.Gateways[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	const ttl, late, work = 10 * time.Second, 2 * time.Second, 25 * time.Second
	proxy := httputil.NewSingleHostReverseProxy(gateway)
	proxy.ModifyResponse = func(answer *http.Response) error {
		if answer.Request.Method == http.MethodPut {
			<-time.After(late)
		}
		return nil
	}
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // lockctl has ended
	slow := httptest.NewServer(proxy)
	defer slow.Close()
	var said string
	for range 3 {
		var status int
		if status, said = lockctl(t, []string{"FENCEPOST=" + slow.URL, "no_proxy=*"}, "run", "-ttl", ttl.String(), "-wait", "1m", t.Name(), "--", "sleep", work.String()); status == 0 {
			return
		}
	}
	t.Error(said)
}
