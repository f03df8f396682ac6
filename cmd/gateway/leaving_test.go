package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// leaving is a way in which clients go that wait.
type leaving struct {
	title string
	ask   string // the request, with the name to be filled in
	leave func(*net.TCPConn) error
}

const askToWait = "POST /locks/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\n{\"wait_ms\":60000,\"ttl_ms\":100}"

var leavings = []leaving{
	{"closed", askToWait, func(c *net.TCPConn) error { return c.Close() }},
	{"reset", askToWait, func(c *net.TCPConn) error {
		c.SetLinger(0)
		return c.Close()
	}},
	{"half-closed", askToWait, func(c *net.TCPConn) error { return c.CloseWrite() }},
	{"chunked body, closed",
		"POST /locks/%s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1e\r\n{\"wait_ms\":60000,\"ttl_ms\":100}\r\n0\r\n\r\n",
		func(c *net.TCPConn) error { return c.Close() }},
	{"body announced with Expect, closed",
		"POST /locks/%s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 30\r\n\r\n{\"wait_ms\":60000,\"ttl_ms\":100}",
		func(c *net.TCPConn) error { return c.Close() }},
}

// P5, P6: half of the waiters go at random moments, in every way there is. What is
// left is served without a gap, and nothing of the others stays behind.
// FENCEPOST_LONG makes it 2,000.
func TestWaitersLeave(t *testing.T) {
	clients := times(400, 2000)
	for _, store := range []string{"embedded", redistest.Start(t).URL()} {
		t.Run(store[:5], func(t *testing.T) {
			g := start(t, "FENCEPOST_STORE="+store)
			url := "http://" + g.addr
			before := measure(t, g)
			const name = "leave/me"
			first, err := acquireAt(t.Context(), g, name, "")
			if err != nil {
				t.Fatal(err)
			}

			var mu sync.Mutex
			var granted []time.Time
			var staying, going sync.WaitGroup
			for i := range clients {
				if i%2 == 0 {
					staying.Go(func() {
						h, err := acquireAt(t.Context(), g, name, `{"wait_ms":60000}`)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						granted = append(granted, time.Now())
						mu.Unlock()
						<-time.After(time.Millisecond)
						if err := releaseAt(g, name, h); err != nil {
							t.Error(err)
						}
					})
					continue
				}
				way := leavings[(i/2)%len(leavings)]
				after := time.Duration(rand.IntN(1500)) * time.Millisecond
				going.Go(func() {
					conn, err := net.Dial("tcp", g.addr)
					if err != nil {
						t.Error(err)
						return
					}
					defer conn.Close()
					if h, sureUntil, ok := askAt(conn, way.ask, name, after); ok { // it has its turn, as any other
						status, body, err := request(http.MethodDelete, url+"/locks/"+name, "", map[string]string{"Lease-Id": h.LeaseID})
						late := status == http.StatusPreconditionFailed && !time.Now().Before(sureUntil)
						if err != nil || status != http.StatusNoContent && !late {
							t.Errorf("release was answered %d: %s, %v", status, body, err)
						}
						return
					}
					if err := way.leave(conn.(*net.TCPConn)); err != nil {
						t.Errorf("%s: %v", way.title, err)
					}
					if way.title == "half-closed" { // to be hung up on, then
						conn.SetReadDeadline(time.Now().Add(patience))
						for buffer := make([]byte, 4096); err == nil; {
							_, err = conn.Read(buffer)
						}
						if e, ok := err.(net.Error); ok && e.Timeout() {
							t.Error("half-closed: the gateway does not hang up")
						}
					}
				})
			}
			slowest := slowestAnswer(t, g)
			<-time.After(300 * time.Millisecond) // some go while they wait, some while they are served
			if err := releaseAt(g, name, first); err != nil {
				t.Fatal(err)
			}
			released := time.Now()
			going.Wait()
			staying.Wait()
			http.DefaultTransport.(*http.Transport).CloseIdleConnections()
			longest := granted[0].Sub(released)
			slices.SortFunc(granted, func(a, b time.Time) int { return a.Compare(b) })
			for i := 1; i < len(granted); i++ {
				longest = max(longest, granted[i].Sub(granted[i-1]))
			}
			machine := slowest()
			t.Logf("%d of %d were served, the longest gap is %s, and the slowest answer to others took %s", len(granted), clients, longest.Round(time.Millisecond), machine)
			if longest > time.Second+10*machine { // a hand-over is several messages
				t.Errorf("P6: for %s the lock belonged to nobody who was there", longest)
			}

			var after usage
			for deadline := time.Now().Add(5*time.Second + 20*machine); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
				http.DefaultTransport.(*http.Transport).CloseIdleConnections()
				if after = measure(t, g); after.atMost(before) {
					break
				}
			}
			t.Logf("before: %+v, after: %+v", before, after)
			if !after.atMost(before) {
				t.Errorf("seconds later something is left: %+v, before %+v", after, before)
			}
			status, body, err := request(http.MethodGet, url+"/locks/"+name, "", nil)
			if err != nil || status != http.StatusOK || !regexp.MustCompile(`"held":false.*"waiting":0`).Match(body) {
				t.Errorf("%d %s, %v", status, body, err)
			}
		})
	}
}

// slowestAnswer asks a gateway for what needs no store, again and again until its result is asked for: how
// long the slowest answer took, which tells how busy the machine is.
func slowestAnswer(t *testing.T, g *gatewayProcess) (stop func() time.Duration) {
	t.Helper()
	over, slowest := make(chan struct{}), make(chan time.Duration)
	go func() {
		var took time.Duration
		for {
			began := time.Now()
			if status, body, err := request(http.MethodGet, "http://"+g.addr+"/livez", "", nil); err != nil || status != http.StatusOK {
				t.Errorf("%d %s, %v", status, body, err)
			}
			took = max(took, time.Since(began))
			select {
			case <-time.After(20 * time.Millisecond):
			case <-over:
				slowest <- took
				return
			}
		}
	}()
	stop = sync.OnceValue(func() time.Duration {
		close(over)
		return <-slowest
	})
	t.Cleanup(func() { stop() })
	return stop
}

// askAt sends a request and returns the lease that its client is told of before it leaves,
// and until when that may rely on it: an end that comes later than that is the TTL's.
func askAt(conn net.Conn, ask, name string, leaving time.Duration) (h holding, sureUntil time.Time, ok bool) {
	asked := time.Now()
	conn.SetDeadline(asked.Add(leaving))
	defer conn.SetDeadline(time.Time{})
	fmt.Fprintf(conn, ask, name)
	for reading := bufio.NewReader(conn); ; {
		response, err := http.ReadResponse(reading, nil)
		if err != nil {
			return holding{}, time.Time{}, false
		}
		if response.StatusCode == http.StatusContinue {
			continue
		}
		if err := json.NewDecoder(response.Body).Decode(&h); err != nil || h.LeaseID == "" {
			return holding{}, time.Time{}, false
		}
		return h, asked.Add(time.Duration(h.Waited+h.ExpiresIn) * time.Millisecond), true
	}
}

// usage is what a gateway uses, by its own metrics.
type usage struct{ waiters, goroutines, files int }

// slack allows for what comes and goes by itself: connections to the store, their
// goroutines, and the request that asks.
const slack = 8

func (u usage) atMost(before usage) bool {
	return u.waiters == 0 && u.goroutines <= before.goroutines+slack && u.files <= before.files+slack
}

var sample = regexp.MustCompile(`(?m)^(fencepost_queue_waiters|go_goroutines|process_open_fds) ([0-9.e+]+)$`)

func measure(t *testing.T, g *gatewayProcess) usage {
	t.Helper()
	status, body, err := request(http.MethodGet, "http://"+g.addr+"/metrics", "", nil)
	if err != nil || status != http.StatusOK {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	found := map[string]int{}
	for _, m := range sample.FindAllStringSubmatch(string(body), -1) {
		value, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		found[m[1]] = int(value)
	}
	if len(found) != 3 {
		t.Fatalf("the metrics have only %v", found)
	}
	return usage{found["fencepost_queue_waiters"], found["go_goroutines"], found["process_open_fds"]}
}
