package validate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const patience = 30 * time.Second

// TestUpgrade replaces two gateways one after the other behind the balancer of the Compose
// files, and wants clients to see nothing of it: no lease is lost, no request is refused, and
// who waits is served.
func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	binary := build(t, dir)
	store := startRedis(t, binary, dir)
	addrs := []string{freeAddr(t), freeAddr(t)}
	gateways := []*exec.Cmd{startGateway(t, binary, dir, store, addrs[0]), startGateway(t, binary, dir, store, addrs[1])}
	c := client{t, "http://" + startBalancer(t, dir, addrs), keyOf(t, dir, "admin")}
	c.eventually("/readyz")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	var rounds atomic.Int64
	kept := c.acquire("kept", 60_000, 0)
	for i := range 4 { // new leases all the time
		clients.Go(func() {
			for ctx.Err() == nil {
				name := fmt.Sprintf("turns/%d", i)
				if lease := c.acquire(name, 10_000, 0); lease != "" {
					c.want("DELETE", "/locks/"+name, lease, "", http.StatusNoContent)
					rounds.Add(1)
				}
			}
		})
	}
	clients.Go(func() { // one that is renewed all the time
		for ctx.Err() == nil {
			c.want("PUT", "/locks/kept", kept, "", http.StatusOK)
		}
	})
	waited := make(chan string, 1)
	held := c.acquire("waited", 60_000, 0)
	go func() { waited <- c.acquire("waited", 60_000, 50_000) }()
	c.until("/locks/waited", `"waiting":[1-9]`)

	for i := range gateways {
		before := rounds.Load()
		stop(t, gateways[i])
		gateways[i] = startGateway(t, binary, dir, store, addrs[i])
		c.wait("rounds go on", func() bool { return rounds.Load() > before+20 })
		// The balancer has to take it in again before the next one goes.
		c.wait("the balancer has both", func() bool { return served(t, addrs[i], keyOf(t, dir, "prometheus")) })
	}
	cancel()
	clients.Wait()
	c.until("/locks/waited", `"waiting":[1-9]`)
	c.want("DELETE", "/locks/waited", held, "", http.StatusNoContent)
	select {
	case lease := <-waited:
		c.want("DELETE", "/locks/waited", lease, "", http.StatusNoContent)
	case <-time.After(patience):
		t.Error("who waited was not served")
	}
	c.want("DELETE", "/locks/kept", kept, "", http.StatusNoContent)
	t.Logf("%d rounds while both gateways were replaced", rounds.Load())
}

type client struct {
	t   *testing.T
	url string
	key string
}

// keyOf returns a key that makeSecrets has made, as it is sent.
func keyOf(t *testing.T, dir, name string) string {
	t.Helper()
	return "Bearer " + strings.TrimSpace(string(read(t, filepath.Join(dir, "secrets", name+".key"))))
}

// acquire returns the lease id, or nothing where the test has failed.
func (c client) acquire(name string, ttl, wait int) string {
	var lease struct {
		ID string `json:"lease_id"`
	}
	answer := c.want("POST", "/locks/"+name, "", fmt.Sprintf(`{"ttl_ms":%d,"wait_ms":%d}`, ttl, wait), http.StatusCreated)
	_ = json.Unmarshal(answer, &lease)
	return lease.ID
}

func (c client) want(method, path, lease, body string, status int) []byte {
	got, answer, err := c.do(method, path, lease, body)
	if err != nil || got != status {
		c.t.Errorf("%s %s: %d %s %v, want %d", method, path, got, answer, err, status)
	}
	return answer
}

func (c client) do(method, path, lease, body string) (int, []byte, error) {
	request, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", c.key)
	if lease != "" {
		request.Header.Set("Lease-Id", lease)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

func (c client) eventually(path string) { c.until(path, "") }

// until asks until the answer is 200 and has what is looked for.
func (c client) until(path, pattern string) {
	c.t.Helper()
	c.wait(path+" has "+pattern, func() bool {
		status, answer, err := c.do("GET", path, "", "")
		return err == nil && status == http.StatusOK && regexp.MustCompile(pattern).Match(answer)
	})
}

func (c client) wait(what string, is func() bool) {
	c.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			c.t.Fatalf("waited in vain: %s", what)
		}
	}
}

// served reports whether a gateway has had a request for a lock from the balancer.
func served(t *testing.T, addr, key string) bool {
	request, err := http.NewRequest("GET", "http://"+addr+"/metrics", nil)
	must(t, err)
	request.Header.Set("Authorization", key)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	must(t, err)
	return regexp.MustCompile(`fencepost_http_requests_total\{code="ok",method="POST",route="/locks/\{name\}"\} [1-9]`).Match(page)
}

func startGateway(t *testing.T, binary, dir, store, addr string) *exec.Cmd {
	t.Helper()
	gateway := exec.Command(binary)
	gateway.Env = []string{"FENCEPOST_STORE=" + store, "FENCEPOST_DRAIN_DELAY=3s"} // of redis.yaml
	gateway.Env = append(gateway.Env, "FENCEPOST_ALLOWED_HOSTS=*", "FENCEPOST_KEYS_FILE="+filepath.Join(dir, "secrets/gateway/keys"))
	serveOn(t, gateway, addr)
	return gateway
}

// startRedis returns the URL of a Redis with the configuration of the Compose files, but for
// its place.
func startRedis(t *testing.T, gateway, dir string) (url string) {
	t.Helper()
	secrets := filepath.Join(dir, "secrets")
	if out, err := makeSecrets(gateway, secrets); err != nil {
		t.Fatal(err, string(out))
	}
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	conf := filepath.Join(dir, "redis.conf")
	must(t, os.WriteFile(conf, []byte(strings.Replace(string(read(t, filepath.Join(secrets, "standalone.conf"))), "dir /data", "dir "+dir, 1)), 0o600))
	run(t, exec.Command("redis-server", conf, "--bind", "127.0.0.1", "--port", port))
	return strings.Replace(strings.TrimSpace(string(read(t, filepath.Join(secrets, "store-redis")))), "@redis:6379", "@"+addr, 1)
}

// startBalancer returns the address of a balancer with haproxy.cfg, but for addresses.
func startBalancer(t *testing.T, dir string, gateways []string) (addr string) {
	t.Helper()
	addr = freeAddr(t)
	text := strings.NewReplacer(
		"bind :8080", "bind "+addr, "gateway-1:8080", gateways[0], "gateway-2:8080", gateways[1], " resolvers docker init-addr last,libc,none", "",
		"    server gateway-3 gateway-3:8080 # where there is one\n", "",
	).Replace(string(read(t, "../compose/haproxy.cfg")))
	path := filepath.Join(dir, "haproxy.cfg")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	if out, err := exec.Command(haproxy(), "-c", "-f", path).CombinedOutput(); err != nil {
		t.Fatalf("haproxy -c: %v\n%s", err, out)
	}
	run(t, exec.Command(haproxy(), "-f", path, "-db"))
	return addr
}

// haproxy is where Debian has it, if the PATH of a user has not.
func haproxy() string {
	if path, err := exec.LookPath("haproxy"); err == nil {
		return path
	}
	return "/usr/sbin/haproxy"
}

// run starts a server that ends with the test.
func run(t *testing.T, server *exec.Cmd) {
	t.Helper()
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	must(t, server.Start())
	t.Cleanup(func() {
		if t.Failed() {
			defer func() { t.Logf("%s: %s", server.Path, said.String()) }()
		}
		server.Process.Signal(syscall.SIGTERM)
		if err := server.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Error(err)
		}
	})
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().String()
}
