package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"fencepost/client"
)

// TestBoundsWithoutGateways: without a gateway that answers, an acquire ends by the bound that
// it was given, everything else when the patience is over, and says so. How long that takes is
// told apart from hanging only; the bounds themselves are computed.
func TestBoundsWithoutGateways(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ wait, most time.Duration }{{0, 6 * time.Second}, {2 * time.Second, 3 * time.Second}, {time.Minute, 61 * time.Second}} {
		call := call{settings: settings{wait: c.wait}}
		if longest := call.longest() + lastWord; longest < c.wait || longest >= c.most {
			t.Errorf("-wait %s: it takes %s at most, want from that to less than %s", c.wait, longest, c.most)
		}
	}
	frozen, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer busy.Close()
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/event-stream") }))
	defer empty.Close()
	env := []string{"LEASE_ID=" + client.NewLeaseID()}
	var running sync.WaitGroup // all at once: most of it is waiting
	for name, address := range map[string]string{"none": "http://127.0.0.1:1", "frozen": "http://" + frozen.Addr().String(), "busy": busy.URL, "empty": empty.URL} {
		for _, command := range [][]string{{"acquire", "a"}, {"acquire", "-wait", "1s", "a"}, {"get", "a"}, {"ls"}, {"renew", "a"}, {"watch"}} {
			running.Go(func() {
				begun := time.Now()
				status, out := lockctl(t, env, slices.Insert(slices.Clone(command), 1, "-gateway", address)...)
				took := time.Since(begun)
				least := patience - time.Second
				if command[0] == "acquire" {
					least = 0 // see above
				}
				if status != exitUnreachable || took < least || took > atMost {
					t.Errorf("%s, %s: status %d after %s: %s", name, command, status, took, out)
				}
			})
		}
	}
	running.Wait()
}
