package storage_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/proxytest"
	"fencepost/internal/redis/redistest"
	"fencepost/verify/system"
)

// proxied is a file store behind the proxy of a page, which asks a gateway.
type proxied struct {
	t       *testing.T
	system  *system.System
	client  *system.Client
	front   string // where clients come
	files   string // the directory behind it all
	guarded bool
}

// launch starts a server that ends with the test, and waits until it takes connections.
func launch(t *testing.T, address, dir, program string, args ...string) {
	t.Helper()
	path := find(program)
	if path == "" {
		t.Fatalf("%s is not installed; make deps installs it on Debian", program)
	}
	log, err := os.Create(filepath.Join(dir, program+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-exited
		log.Close()
		if said, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s: %s", program, said)
		}
	})
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for deadline := time.After(readyTimeout); ; {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			return
		}
		select {
		case <-look.C:
		case <-exited:
			t.Fatalf("%s has ended", program)
		case <-deadline:
			t.Fatalf("%s does not listen at %s", program, address)
		}
	}
}

// webDAV is a file store that knows nothing of tokens.
func webDAV(t *testing.T) (address, files string) {
	dir := t.TempDir()
	address, files = redistest.FreeAddr(t), filepath.Join(dir, "files")
	conf := "events {}\nhttp {\n" + proxytest.Within(dir)
	conf += "server { listen " + address + "; location /files/ { root " + dir + "; dav_methods PUT DELETE COPY MOVE; create_full_put_path on; } }\n}\n"
	if err := os.Mkdir(files, 0o700); err != nil {
		t.Fatal(err)
	}
	proxytest.NginxWith(t, address, dir, conf)
	return address, files
}

// startCaddy starts what docs/storage/Caddyfile shows, but for addresses; or without the
// question to the gateway.
func startCaddy(t *testing.T, guarded bool) *proxied {
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	content, err := os.ReadFile("../../docs/storage/Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxied{t: t, system: s, client: system.NewClient(4), front: redistest.FreeAddr(t), guarded: guarded}
	t.Cleanup(p.client.Close)
	store, files := webDAV(t)
	p.files = files
	text := string(content)
	if !guarded {
		begin, end := strings.Index(text, "\t\treverse_proxy @writes"), strings.Index(text, "\t\treverse_proxy 127.0.0.1:9000")
		if begin < 0 || end < begin {
			t.Fatal("the Caddyfile has no question to the gateway before the store")
		}
		text = text[:begin] + text[end:]
	}
	for old, now := range map[string]string{"127.0.0.1:8080": s.Gateways[0].Addr(), "127.0.0.1:8081": p.front, "127.0.0.1:9000": store} {
		text = strings.ReplaceAll(text, old, now)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	launch(t, p.front, dir, "caddy", "run", "--adapter", "caddyfile", "--config", path)
	return p
}

// next takes the lock of a name from whoever has it, and returns its token.
func (p *proxied) next(name string) string {
	p.t.Helper()
	seen, err := p.client.Inspect(p.t.Context(), p.system.Gateways[0], name)
	if err != nil || seen.Status != http.StatusOK {
		p.t.Fatal(seen, err)
	}
	if strings.Contains(string(seen.Body), `"held":true`) {
		r, err := http.NewRequestWithContext(p.t.Context(), http.MethodDelete, p.system.Gateways[0].URL()+"/locks/"+name, nil)
		if err != nil {
			p.t.Fatal(err)
		}
		r.Header.Set("If-Match", fmt.Sprintf(`"%d"`, seen.Lease.Token))
		broken, err := http.DefaultClient.Do(r)
		if err != nil || broken.StatusCode != http.StatusNoContent {
			p.t.Fatal(broken, err)
		}
		broken.Body.Close()
	}
	got, err := p.client.Acquire(p.t.Context(), p.system.Gateways[0], name, "", "")
	if err != nil || got.Status != http.StatusCreated {
		p.t.Fatal(got, err)
	}
	return strconv.FormatInt(got.Lease.Token, 10)
}

// send sends a request with a token, none if it is empty, and returns the status.
func (p *proxied) send(method, path, token, body string) int {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, "http://"+p.front, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	r.URL.Opaque = "//" + p.front + path               // as it is written
	r.Header.Set("Origin", "http://elsewhere.example") // the gateway is not to judge it
	if method == "COPY" || method == "MOVE" {          // what takes no body
		r.Body, r.ContentLength = http.NoBody, 0
		r.Header.Set("Destination", "http://"+p.front+"/files/a/b.txt") // what the test looks at
	}
	if token != "" {
		r.Header.Set("Fencing-Token", token)
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		p.t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

// refused wants a request to have one of some statuses, if the guard is there, and to have
// written nothing.
func (p *proxied) refused(what, method, path, token string, statuses ...int) {
	p.t.Helper()
	before := p.content()
	status := p.send(method, path, token, what)
	wanted := false
	for _, one := range statuses {
		wanted = wanted || status == one
	}
	if after := p.content(); p.guarded && (!wanted || after != before) {
		p.t.Errorf("%s: %s %s is answered %d, wanted %d; the file was %q and is %q", what, method, path, status, statuses, before, after)
	}
}

func (p *proxied) written(what, path, token string, status int) {
	p.t.Helper()
	if got := p.send(http.MethodPut, path, token, what); got != status || p.content() != what {
		p.t.Errorf("%s: it is answered %d, wanted %d; the file is %q", what, got, status, p.content())
	}
}

// content returns what the file store has in its one file, "" if there is none.
func (p *proxied) content() string {
	p.t.Helper()
	content, err := os.ReadFile(filepath.Join(p.files, "a", "b.txt"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.t.Fatal(err)
	}
	return string(content)
}

// Caddy before a file store refuses the stale writer and whoever has no token, admits an
// equal and a newer one, and never opens.
func TestCaddy(t *testing.T) {
	t.Run("guarded", func(t *testing.T) {
		t.Parallel()
		p := startCaddy(t, true)
		const file = "/files/a/b.txt"
		p.refused("no token", "PUT", file, "", 412)
		p.refused("a forged token", "PUT", file, "1795184727477314", 412)
		p.refused("a malformed token", "PUT", file, "x", 412)
		first := p.next("files/a/b.txt")
		p.written("one", file, first, 201)
		p.written("one again", file, first, 204)
		second := p.next("files/a/b.txt")
		p.written("nobody newer has written", file, first, 204)
		p.written("two", file, second, 204)
		p.refused("stale", "PUT", file, first, 412)
		p.refused("stale", "DELETE", file, first, 412)
		other := p.next("files/other.txt")
		p.refused("of another name", "PUT", file, other, 412)
		if status := p.send("PUT", "/files/other.txt", other, "other"); status != http.StatusCreated {
			t.Errorf("another file is answered %d", status)
		}
		for _, method := range []string{"COPY", "MOVE"} { // they write to a name that nobody was asked about
			p.refused(method, method, "/files/other.txt", other, 405)
		}
		for _, path := range []string{"/files/a//b.txt", "/files/a/./b.txt", "/files/x/../a/b.txt", "/files/a%2Fb.txt", "/files/a/%62.txt", "//files/a/b.txt"} {
			p.refused("another spelling of the name", "PUT", path, first, 400, 412)
		}
		if status := p.send("GET", file, "", ""); status != http.StatusOK {
			t.Errorf("who reads is answered %d", status)
		}
		if err := p.system.Gateways[0].Pause(); err != nil {
			t.Fatal(err)
		}
		stopped := make(chan int, 1)
		go func() { stopped <- p.send("PUT", file, second, "the gateway is stopped") }()
		select {
		case status := <-stopped:
			if status < 500 {
				t.Errorf("while the gateway stands still a write is answered %d", status)
			}
		case <-time.After(patience):
			t.Error("while the gateway stands still a write has no answer")
		}
		if err := errors.Join(p.system.Gateways[0].Resume(), p.system.Gateways[0].Kill()); err != nil {
			t.Fatal(err)
		}
		p.refused("nobody was asked", "PUT", file, second, 502, 503)
		p.refused("nobody was asked", "PUT", file, "", 502, 503)
		if p.content() != "two" {
			t.Errorf("at the end the file is %q", p.content())
		}
	})
	t.Run("unguarded", func(t *testing.T) { // what is stale gets through, so that the test bites
		t.Parallel()
		p := startCaddy(t, false)
		const file = "/files/a/b.txt"
		first := p.next("files/a/b.txt")
		p.written("one", file, first, 201)
		p.written("two", file, p.next("files/a/b.txt"), 204)
		p.written("stale", file, first, 204)
		if err := p.system.Gateways[0].Kill(); err != nil {
			t.Fatal(err)
		}
		p.written("nobody was asked", file, first, 204)
	})
}
