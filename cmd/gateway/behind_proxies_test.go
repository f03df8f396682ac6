package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost/client"
	"fencepost/internal/proxytest"
	"fencepost/internal/redis/redistest"
)

// proxies are those of docs/proxies.md before a gateway. silence is for how long it lets
// nothing come from either side, 0 for what the file says.
var proxies = map[string]func(t *testing.T, gateway string, silence time.Duration) (front string){
	"nginx": func(t *testing.T, gateway string, silence time.Duration) (front string) {
		front = redistest.FreeAddr(t)
		timeouts := ""
		if silence > 0 {
			timeouts = fmt.Sprintf("proxy_read_timeout %[1]dms; proxy_send_timeout %[1]dms; send_timeout %[1]dms;", silence.Milliseconds())
		}
		proxytest.Nginx(t, front, gateway, timeouts)
		return front
	},
	"shipped nginx": shippedNginx,
	"haproxy": func(t *testing.T, gateway string, silence time.Duration) (front string) {
		front = redistest.FreeAddr(t)
		config, err := os.ReadFile("../../deploy/compose/haproxy.cfg")
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("bind :8080", "bind "+front, "gateway-1:8080", gateway, " resolvers docker init-addr last,libc,none", "").Replace(string(config))
		text = regexp.MustCompile(`(?m)^ *server gateway-[23].*\n`).ReplaceAllString(text, "")
		if silence > 0 {
			text = regexp.MustCompile(`timeout (client|server) .*`).ReplaceAllString(text, fmt.Sprintf("timeout $1 %dms", silence.Milliseconds()))
		}
		proxytest.HAProxy(t, front, text)
		return front
	},
}

// shippedNginx is nginx with the file that docs/proxies.md links to.
func shippedNginx(t *testing.T, gateway string, silence time.Duration) (front string) {
	front = redistest.FreeAddr(t)
	shipped, err := os.ReadFile("../../deploy/nginx/gateways.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("127.0.0.1:8080", gateway, "listen 80;", "listen "+front+";").Replace(string(shipped))
	if silence > 0 {
		text = strings.Replace(text, "proxy_read_timeout 90s", fmt.Sprintf("proxy_read_timeout %dms", silence.Milliseconds()), 1)
	}
	dir := t.TempDir()
	proxytest.NginxWith(t, front, dir, "events {}\nhttp {\n"+proxytest.Within(dir)+text+"}\n")
	return front
}

// behindProxies runs a test with a gateway behind each proxy.
func behindProxies(t *testing.T, silence time.Duration, test func(t *testing.T, g *gatewayProcess, front string)) {
	for name, start := range proxies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startOn(t, "embedded")
			front := start(t, g.addr, silence)
			eventually(t, http.MethodGet, "http://"+front+"/readyz", http.StatusOK)
			test(t, g, front)
		})
	}
}

// A proxy passes on each event as it comes. Beside those that are waited for a stream here says
// nothing but a comment each 15 s, of which a proxy that gathers 4 KiB would be full after hours.
func TestStreamsThroughAProxy(t *testing.T) {
	t.Parallel()
	behindProxies(t, 0, func(t *testing.T, g *gatewayProcess, front string) {
		const ttl = `{"ttl_ms":86400000}`
		ctx, leave := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		t.Cleanup(reading.Wait)
		defer leave()
		attach(ctx, t, &reading, "http://"+front+"/locks/one", ttl)
		attach(ctx, t, &reading, "http://"+front+"/locks", `{"names":["several/1","several/2"],"ttl_ms":86400000}`)

		c, err := client.New(client.Options{Addresses: []string{"http://" + front}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		lease, err := c.Acquire(t.Context(), "through/client", client.TTL(24*time.Hour), client.Attached(), client.Wait(patience))
		if err != nil {
			t.Fatal(err)
		}
		if n := grantsOf(t, g, "through/client"); n != 1 {
			t.Errorf("the client was granted it %d times", n)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}

		watching, err := net.Dial("tcp", front)
		if err != nil {
			t.Fatal(err)
		}
		defer watching.Close()
		watching.SetDeadline(time.Now().Add(patience))
		fmt.Fprint(watching, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
		lines := bufio.NewScanner(watching)
		for _, wanted := range []string{"id: ", "event: granted"} {
			for !strings.HasPrefix(lines.Text(), wanted) {
				if !lines.Scan() {
					t.Fatalf("the stream of events has no %q: %v", wanted, lines.Err())
				}
			}
			if wanted == "id: " {
				eventually(t, http.MethodPost, "http://"+front+"/locks/another", http.StatusCreated)
			}
		}
	})
}

func grantsOf(t *testing.T, g *gatewayProcess, name string) int {
	t.Helper()
	status, body, err := request(http.MethodGet, "http://"+g.addr+"/history/"+name, "", nil)
	if err != nil || status != http.StatusOK {
		t.Fatal(status, string(body), err)
	}
	return strings.Count(string(body), `"outcome":`)
}

// atOnce is before a proxy's timeouts, the end of a wait, or the next sign of life of a stream
// could have told the gateway that a client has gone.
const atOnce = 12 * time.Second

// becomes waits until the gateway's view of a lock matches.
func becomes(t *testing.T, g *gatewayProcess, name, pattern string, within time.Duration) {
	t.Helper()
	wanted := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(within); ; <-time.After(5 * time.Millisecond) {
		status, body, err := request(http.MethodGet, "http://"+g.addr+"/locks/"+name, "", nil)
		if err == nil && status == http.StatusOK && wanted.Match(body) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not become %s within %s: %d %s %v", name, pattern, within, status, body, err)
		}
	}
}

// P6: who leaves a proxy while it waits is not granted the lock, and who leaves a stream lets go.
func TestLeavingAProxy(t *testing.T) {
	t.Parallel()
	behindProxies(t, 0, func(t *testing.T, g *gatewayProcess, front string) {
		for i, way := range leavings[:3] { // the others differ in the request
			for _, attached := range []string{"", "Accept: text/event-stream\r\n"} {
				name := fmt.Sprintf("left/%d/%t", i, attached != "")
				ask := func(addr string) net.Conn {
					conn, err := net.Dial("tcp", addr)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { conn.Close() })
					const body = `{"ttl_ms":3600000,"wait_ms":60000}`
					fmt.Fprintf(conn, "POST /locks/%s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s", name, attached, len(body), body)
					return conn
				}
				held, err := acquireAt(t.Context(), g, name, `{"ttl_ms":3600000}`)
				if err != nil {
					t.Fatal(err)
				}
				waiter := ask(front)
				becomes(t, g, name, `"waiting":1`, patience)
				if err := way.leave(waiter.(*net.TCPConn)); err != nil {
					t.Fatal(err)
				}
				becomes(t, g, name, `"waiting":0`, atOnce)
				if err := releaseAt(g, name, held); err != nil {
					t.Fatal(err)
				}
				becomes(t, g, name, `"held":false`, patience)
				if attached == "" {
					continue
				}
				holder := ask(front)
				becomes(t, g, name, `"held":true`, patience)
				if err := way.leave(holder.(*net.TCPConn)); err != nil {
					t.Fatal(err)
				}
				becomes(t, g, name, `"held":false`, atOnce)
			}
		}
	})
}

// A client that is stopped while it waits costs the others its TTL, and its max_hold_ms where a
// stream renews the lease: the machine, and a proxy, take what it does not read.
func TestStoppedBehindAProxy(t *testing.T) {
	t.Parallel()
	behindProxies(t, 0, func(t *testing.T, g *gatewayProcess, front string) {
		for name, args := range map[string][]string{
			"stopped/waiting": {"-d", `{"ttl_ms":1000,"wait_ms":60000}`},
			"stopped/stream":  {"-N", "-H", "Accept: text/event-stream", "-d", `{"ttl_ms":500,"max_hold_ms":1000,"wait_ms":60000}`},
		} {
			held, err := acquireAt(t.Context(), g, name, `{"ttl_ms":3600000}`)
			if err != nil {
				t.Fatal(err)
			}
			waiter := exec.Command("curl", append(args, "-s", "http://"+front+"/locks/"+name)...)
			waiter.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it would stay stopped for good
			if err := waiter.Start(); err != nil {
				t.Fatal(err)
			}
			defer waiter.Wait()
			defer waiter.Process.Kill()
			becomes(t, g, name, `"waiting":1`, patience)
			if err := redistest.PauseProcess(waiter.Process); err != nil {
				t.Fatal(err)
			}
			if err := releaseAt(g, name, held); err != nil {
				t.Fatal(err)
			}
			if _, err := acquireAt(t.Context(), g, name, `{"wait_ms":60000}`); err != nil {
				t.Error(err)
			}
			if n := grantsOf(t, g, name); n != 3 {
				t.Errorf("%s: %d grants, want one of the client that was stopped between two others", name, n)
			}
			waiter.Process.Signal(syscall.SIGCONT)
		}
	})
}

// A stream lives on however long it is: its renewals are signs of life.
func TestStreamOutlivesTheTimeoutsOfAProxy(t *testing.T) {
	t.Parallel()
	streamOutlives(t, 3*time.Second, `{"ttl_ms":3000}`)
}

// One that has nothing to say has its comments each 15 s.
func TestSystemStreamOutlivesTheTimeoutsOfAProxy(t *testing.T) {
	t.Parallel()
	streamOutlives(t, 20*time.Second, `{"ttl_ms":86400000}`)
}

// streamOutlives tries it again where a busy machine may have been silent for longer than the proxy bears.
func streamOutlives(t *testing.T, silence time.Duration, body string) {
	behindProxies(t, silence, func(t *testing.T, g *gatewayProcess, front string) {
		var ended []string
		for trial := range 3 {
			ctx, leave := context.WithCancel(t.Context())
			var reading sync.WaitGroup
			s := attach(ctx, t, &reading, fmt.Sprintf("http://%s/locks/long/%d", front, trial), body)
			over := make(chan struct{})
			go func() { reading.Wait(); close(over) }()
			select {
			case <-over:
				ended = append(ended, fmt.Sprint(s.events))
			case <-time.After(2 * silence):
			}
			leave()
			if <-over; len(ended) == trial {
				return
			}
		}
		t.Errorf("the streams have ended: %q", ended)
	})
}

// What clients are not to see of a gateway they don't see by another spelling either, while every
// spelling of a name comes through.
func TestPathsThroughAProxy(t *testing.T) {
	t.Parallel()
	behindProxies(t, 0, func(t *testing.T, g *gatewayProcess, front string) {
		for path, want := range map[string]int{
			"/locks/a/b": 200, "/locks/a%2Fb": 200, "/locks%2Fa%2fb": 200, "/locks/a%3Ab": 200, "/locks/a@b~c": 200,
			"/locks/a//b": 400, "/locks/a%2F%2Fb": 400, "/locks/a/../b": 400, "/locks/a/./b": 400, "/locks/a%2F..%2Fb": 400, "/locks/a%2520": 400,
			"/metrics": 404, "/%6Detrics": 404, "/metric%73": 404,
		} {
			conn, err := net.Dial("tcp", front) // net/http would clean the path up
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(path, err)
			}
			answer.Body.Close()
			if want == http.StatusNotFound && strings.HasSuffix(t.Name(), "/nginx") {
				want = http.StatusOK // of it nothing is asked but to pass requests on
			}
			if answer.StatusCode != want {
				t.Errorf("%s: %d, want %d", path, answer.StatusCode, want)
			}
		}
	})
}

// Two gateways that refuse one request with 503, as in a quarantine, are asked for others all the same.
func TestARefusalPutsNoGatewayOut(t *testing.T) {
	t.Parallel()
	refuses := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	one, two := httptest.NewServer(refuses), httptest.NewServer(refuses)
	defer one.Close()
	defer two.Close()
	front := shippedNginx(t, one.Listener.Addr().String()+" max_fails=0; server "+two.Listener.Addr().String(), 0)
	for i := range 10 {
		for method, want := range map[string]int{http.MethodPost: http.StatusServiceUnavailable, http.MethodPut: http.StatusOK} {
			status, _, err := request(method, "http://"+front+"/locks/a", "", nil)
			if err != nil || status != want {
				t.Fatalf("%s number %d: %d %v, want %d", method, i, status, err, want)
			}
		}
	}
}
