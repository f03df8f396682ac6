package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// attempts bounds how often it is tried whether a message comes at once.
const attempts = 15

// breakWithNotice gives notice to the only holder of a name, and returns when it is broken.
func breakWithNotice(t *testing.T, g *gatewayProcess, name string, notice time.Duration, reason string) time.Duration {
	t.Helper()
	url := "http://" + g.addr + "/locks/" + name
	var lock struct {
		Token int64 `json:"fencing_token"`
	}
	answerOf(t, &lock, http.StatusOK, "GET", url, "", nil)
	var noticed struct {
		BreaksIn int64 `json:"breaks_in_ms"`
	}
	answerOf(t, &noticed, http.StatusAccepted, "DELETE", fmt.Sprintf("%s?notice_ms=%d", url, notice.Milliseconds()),
		fmt.Sprintf(`{"reason":%q}`, reason), map[string]string{"If-Match": fmt.Sprintf(`"%d"`, lock.Token)})
	return time.Duration(noticed.BreaksIn) * time.Millisecond
}

// answerOf sends a request and reads its answer, which has to have a status.
func answerOf(t *testing.T, into any, want int, method, url, body string, header map[string]string) {
	t.Helper()
	status, answer, err := request(method, url, body, header)
	if err != nil || status != want {
		t.Fatalf("%s %s was answered %d: %s, %v", method, url, status, answer, err)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(answer, into); err != nil {
		t.Fatal(err)
	}
}

// onOneAndTwoGateways runs a test with the gateway that is asked and that where the client is.
func onOneAndTwoGateways(t *testing.T, test func(t *testing.T, asked, other *gatewayProcess)) {
	t.Run("embedded", func(t *testing.T) {
		g := startAll(t, "embedded")[0]
		test(t, g, g)
	})
	t.Run("two gateways", func(t *testing.T) {
		server := redistest.Start(t)
		gateways := startAll(t, server.URL(), server.URL())
		test(t, gateways[0], gateways[1])
	})
}

// A stream hears of a notice that was given at another gateway long before its lease would
// be renewed, and the lock passes to the next waiter when the notice is over. A machine that is
// busy may delay some messages, and not all.
func TestNoticeReachesAStream(t *testing.T) {
	t.Parallel()
	onOneAndTwoGateways(t, func(t *testing.T, asked, other *gatewayProcess) {
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		t.Cleanup(running.Wait)
		defer stop()
		s := attach(ctx, t, &running, "http://"+other.addr+"/locks/a", `{"ttl_ms":60000}`)
		fastest := patience // a renewal is told each 20 s, and a notice has to be shorter than what is left of the one before
		for n := 0; n < 3 || fastest > 5*time.Second && n < attempts; n++ {
			began := time.Now()
			breakWithNotice(t, asked, "a", 20*time.Minute-time.Duration(n)*time.Minute, "deploy")
			s.await("notice", n+1)
			fastest = min(fastest, time.Since(began))
		}
		if t.Logf("after %v", fastest); fastest > 5*time.Second {
			t.Errorf("the stream heard after %v", fastest)
		}

		s = attach(ctx, t, &running, "http://"+other.addr+"/locks/b", `{"ttl_ms":2000}`)
		granted := make(chan error, 1)
		go func() {
			_, err := acquireAt(ctx, asked, "b", `{"wait_ms":60000}`)
			granted <- err
		}()
		if err := awaitWaiting(asked, "b", 1); err != nil {
			t.Fatal(err)
		}
		told := s.count("renewed") // so far: what comes later was told while the notice ran
		began, breaks := time.Now(), breakWithNotice(t, asked, "b", 3*time.Second, "deploy")
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < breaks-10*time.Millisecond || took > breaks+patience {
			t.Errorf("the waiter was granted after %v, and the notice was of %v", took, breaks)
		}
		s.await("lost", 1)
		if s.count("notice") != 1 || s.count("renewed") <= told {
			t.Errorf("the stream was told %v", s.events)
		}
		var past struct {
			Grants []struct {
				Outcome string
				Reason  string `json:"break_reason"`
			}
		}
		answerOf(t, &past, http.StatusOK, "GET", "http://"+asked.addr+"/history/b", "", nil)
		if past.Grants[1].Outcome != "broken" || past.Grants[1].Reason != "deploy" {
			t.Errorf("%+v", past)
		}
	})
}

// Who waits at another gateway is answered at once when it is evicted; also, a heartbeat later,
// where no message can be told.
func TestEvictedWhereItWaits(t *testing.T) {
	t.Parallel()
	onOneAndTwoGateways(t, func(t *testing.T, asked, other *gatewayProcess) {
		if _, err := acquireAt(t.Context(), asked, "a", ""); err != nil {
			t.Fatal(err)
		}
		fastest := patience
		for n := 0; n < 3 || fastest > time.Second && n < attempts; n++ {
			fastest = min(fastest, evictOne(t, asked, other))
		}
		if t.Logf("after %v", fastest); fastest > time.Second {
			t.Errorf("the waiter was answered after %v", fastest)
		}
	})
	t.Run("without messages", func(t *testing.T) {
		server := redistest.Start(t)
		proxy := redistest.StartProxy(t, server.Addr())
		proxy.SwallowMessages(true)
		gateways := startAll(t, server.URL(), proxy.URL())
		if _, err := acquireAt(t.Context(), gateways[0], "a", ""); err != nil {
			t.Fatal(err)
		}
		t.Logf("after %v", evictOne(t, gateways[0], gateways[1]))
		if proxy.Swallowed() == 0 {
			t.Error("no message was lost: the test misses its aim")
		}
	})
}

// evictOne evicts one that waits for a, and returns how long after that it was answered.
func evictOne(t *testing.T, asked, other *gatewayProcess) time.Duration {
	t.Helper()
	answered := make(chan error, 1)
	go func() {
		_, err := acquireAt(t.Context(), other, "a", `{"wait_ms":60000}`)
		answered <- err
	}()
	if err := awaitWaiting(asked, "a", 1); err != nil {
		t.Fatal(err)
	}
	var lock struct{ Waiters []struct{ Lease string } }
	answerOf(t, &lock, http.StatusOK, "GET", "http://"+asked.addr+"/locks/a", "", nil)
	began := time.Now()
	answerOf(t, nil, http.StatusNoContent, "DELETE", "http://"+asked.addr+"/queues/a?lease="+lock.Waiters[0].Lease, `{"reason":"deploy"}`, nil)
	select {
	case err := <-answered:
		if err == nil || !strings.Contains(err.Error(), `"reason":"evicted","break_reason":"deploy"`) {
			t.Fatalf("it was answered %v", err)
		}
	case <-time.After(patience):
		t.Fatal("it is not answered")
	}
	return time.Since(began)
}
