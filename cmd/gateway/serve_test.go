package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// start launches a gateway on the embedded store with settings of its own, and
// ends it with the test.
func start(t *testing.T, settings ...string) *gatewayProcess {
	t.Helper()
	env := []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0"}
	g, err := launch(t.TempDir(), append(env, settings...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.end(syscall.SIGKILL)
		t.Log(g.warnings())
	})
	return g
}

// A load balancer sees that the gateway is going before connections are refused.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	const delay = 3 * time.Second
	g := start(t, "FENCEPOST_DRAIN_DELAY="+delay.String())
	url := "http://" + g.addr
	status, body, err := request(http.MethodPost, url+"/locks/a", "", nil)
	if err != nil || status != http.StatusCreated {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	var lease grant
	if err := json.Unmarshal(body, &lease); err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	g.cmd.Process.Signal(syscall.SIGTERM)
	for status = http.StatusOK; status == http.StatusOK; <-time.After(5 * time.Millisecond) {
		if status, _, err = request(http.MethodGet, url+"/readyz", "", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		method, path string
		header       map[string]string
		status       int
		contains     string
	}{
		{"GET", "/readyz", nil, 503, `"code":"draining"`},
		{"POST", "/locks/b", nil, 503, `"code":"draining"`},
		{"PUT", "/locks/a", map[string]string{"Lease-Id": lease.LeaseID}, 200, `"fencing_token"`},
		{"GET", "/livez", nil, 200, "alive"},
	} {
		status, body, err := request(c.method, url+c.path, "", c.header)
		if err != nil || status != c.status || !strings.Contains(string(body), c.contains) {
			t.Errorf("%s %s: %d %s, %v", c.method, c.path, status, body, err)
		}
	}
	select {
	case <-g.exited:
	case <-time.After(patience):
		t.Fatal("the gateway did not end")
	}
	if g.err != nil {
		t.Errorf("the gateway's end: %v", g.err)
	}
	if took := time.Since(began); took < delay {
		t.Errorf("the shutdown took %s, less than the delay", took)
	}
}

// The admin address has the same guards as the main one.
func TestAdminHosts(t *testing.T) {
	t.Parallel()
	g := start(t, "FENCEPOST_ADMIN_ADDR=127.0.0.1:0")
	for _, path := range []string{"/metrics", "/debug/pprof/"} {
		for host, want := range map[string]int{"": 200, "localhost:9090": 200, "evil.example": 421} {
			status, body, err := request(http.MethodGet, "http://"+g.admin+path, "", map[string]string{"Host": host})
			if err != nil || status != want {
				t.Errorf("%s for %q: %d %s, %v", path, host, status, body, err)
			}
		}
	}
	any := start(t, "FENCEPOST_ADMIN_ADDR=127.0.0.1:0", "FENCEPOST_ALLOWED_HOSTS=*")
	for _, addr := range []string{any.addr, any.admin} {
		path := map[string]string{any.addr: "/locks", any.admin: "/metrics"}[addr]
		status, body, err := request(http.MethodGet, "http://"+addr+path, "", map[string]string{"Host": "any.example"})
		if err != nil || status != http.StatusOK {
			t.Errorf("any host: %d %s, %v", status, body, err)
		}
	}
	if err := any.end(syscall.SIGTERM); err != nil {
		t.Errorf("the gateway's end: %v", err)
	}
}

// Who serves on an IP address is asked by it, without a further setting. One that stands for all addresses of the machine
// is not enough for that; the log says which Host was refused, and which setting has it served.
func TestAddressAsHost(t *testing.T) {
	t.Parallel()
	locks := func(host string) (status int, body []byte) {
		t.Helper()
		status, body, err := request(http.MethodGet, "http://"+host+"/locks", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return status, body
	}
	addresses := []string{"127.0.0.2:0"}
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil { // else this machine has no IPv6; TestDefaultHosts has its forms
		l.Close()
		addresses = append(addresses, "[::1]:0")
	}
	for _, listen := range addresses {
		g := start(t, "FENCEPOST_LISTEN_ADDR="+listen, "FENCEPOST_ADMIN_ADDR="+listen)
		if status, body := locks(g.addr); status != http.StatusOK {
			t.Errorf("at %s: %d %s", g.addr, status, body)
		}
		if status, body, err := request(http.MethodGet, "http://"+g.admin+"/metrics", "", nil); err != nil || status != http.StatusOK {
			t.Errorf("at %s: %d %s, %v", g.admin, status, body, err)
		}
		if status, body, err := request(http.MethodGet, "http://"+g.addr+"/locks", "", map[string]string{"Host": "evil.example"}); err != nil || status != http.StatusMisdirectedRequest {
			t.Errorf("another Host: %d %s, %v", status, body, err)
		}
	}
	log := filepath.Join(t.TempDir(), "log")
	all := startLogged(t, log, "FENCEPOST_LISTEN_ADDR=0.0.0.0:0", "FENCEPOST_INSECURE_NO_AUTH=true")
	_, port, _ := net.SplitHostPort(all.addr)
	if status, body := locks("127.0.0.2:" + port); status != http.StatusMisdirectedRequest || !strings.Contains(string(body), "FENCEPOST_ALLOWED_HOSTS") {
		t.Errorf("at all addresses: %d %s", status, body)
	}
	wantInLog(t, log, `"host":"127.0.0.2:`+port+`","client":"127.0.0.1","setting":"FENCEPOST_ALLOWED_HOSTS"`)
	listed := start(t, "FENCEPOST_LISTEN_ADDR=127.0.0.2:0", "FENCEPOST_ALLOWED_HOSTS=locks.example")
	if status, body := locks(listed.addr); status != http.StatusMisdirectedRequest {
		t.Errorf("a list without it: %d %s", status, body)
	}
}

// The embedded store has no late commands, so take-backs need no second attempt.
func TestLateBy(t *testing.T) {
	t.Parallel()
	for store, want := range map[string]time.Duration{"embedded": 0, "redis://localhost": time.Second, "unix:///run/redis.sock": time.Second} {
		cfg := config{Storage: Storage{Store: store, MaxClockSkew: time.Second}}
		if got := lateBy(cfg); got != want {
			t.Errorf("%s: %s, want %s", store, got, want)
		}
	}
}
