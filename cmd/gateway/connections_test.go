package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// wire is one connection of a client, which stays open.
type wire struct {
	net.Conn
	reader *bufio.Reader
}

func dialGateway(t *testing.T, g *gatewayProcess) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { conn.Close() })
	return &wire{conn, bufio.NewReader(conn)}
}

// do sends a request and returns the answer; an error is one of the connection.
func (w *wire) do(method, path, body string, header map[string]string) (*http.Response, string, error) {
	r, err := http.NewRequest(method, "http://"+w.RemoteAddr().String()+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	for key, value := range header {
		r.Header.Set(key, value)
	}
	if err := r.Write(w); err != nil {
		return nil, "", err
	}
	response, err := http.ReadResponse(w.reader, r)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response, string(data), err
}

// A crowd takes all the connections that a low limit of open files leaves. Who has one
// goes on, a holder renews, others are told at once, and the store is reached all the
// while; when the crowd has gone all is as before.
func TestCrowdOfConnections(t *testing.T) {
	server := redistest.Start(t)
	for title, store := range map[string]string{"embedded": "embedded", "redis": server.URL()} {
		t.Run(title, func(t *testing.T) {
			cfg := config{Storage: Storage{Store: store}}
			files := cfg.reservedFiles() + 40
			g := startLimited(t, files, "FENCEPOST_STORE="+store)

			holder := dialGateway(t, g)
			response, body, err := holder.do("POST", "/locks/held", `{"ttl_ms":60000}`, nil)
			if err != nil || response.StatusCode != http.StatusCreated {
				t.Fatal(response, body, err)
			}
			var h holding
			if err := json.Unmarshal([]byte(body), &h); err != nil {
				t.Fatal(err)
			}
			crowd := []*wire{holder}
			for range 39 {
				w := dialGateway(t, g)
				if response, body, err := w.do("GET", "/locks/held", "", nil); err != nil || response.StatusCode != http.StatusOK {
					t.Fatalf("connection %d: %v %s, %v", len(crowd)+1, response, body, err)
				}
				crowd = append(crowd, w)
			}

			for i := range 200 {
				newcomer := dialGateway(t, g)
				response, body, err := newcomer.do("POST", "/locks/other", "", nil)
				if err != nil || response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" || !strings.Contains(body, "FENCEPOST_MAX_CONNECTIONS") {
					t.Fatalf("newcomer %d: %v %s, %v", i, response, body, err)
				}
				newcomer.Close()
			}
			var silent []*wire
			for range 2 * files { // who connects and says nothing takes nothing from the others
				silent = append(silent, dialGateway(t, g))
			}
			for i, w := range crowd {
				response, body, err := w.do("POST", fmt.Sprintf("/locks/of/%d", i), "", nil)
				if err != nil || response.StatusCode != http.StatusCreated {
					t.Fatalf("connection %d: %v %s, %v", i, response, body, err)
				}
			}
			response, body, err = holder.do("PUT", "/locks/held", "", map[string]string{"Lease-Id": h.LeaseID})
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatalf("renewal: %v %s, %v", response, body, err)
			}
			if _, body, err = holder.do("GET", "/metrics", "", nil); err != nil ||
				!strings.Contains(body, "\nfencepost_http_connections 40\n") || !strings.Contains(body, "\nfencepost_http_connections_limit 40\n") {
				t.Errorf("metrics: %v\n%s", err, grep(body, "fencepost_http_connections"))
			}

			for _, w := range append(crowd[1:], silent...) {
				w.Close()
			}
			for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
				newcomer := dialGateway(t, g)
				response, body, err := newcomer.do("POST", "/locks/after", "", nil)
				newcomer.Close()
				if err == nil && response.StatusCode == http.StatusCreated {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("after the crowd: %v %s, %v", response, body, err)
				}
			}
			if log := g.warnings(); strings.Contains(log, "too many open files") {
				t.Error(log)
			}
		})
	}
}

// TestFloodWithoutKey: of a gateway with keys all connections are opened, and used, by somebody
// who has none. Whoever has a key gets in all the same, and a holder keeps its connection.
func TestFloodWithoutKey(t *testing.T) {
	const most = 40
	keys := filepath.Join(t.TempDir(), "keys")
	line, key := newKey(t, "-name", "ci", "-scope", "lock,read", "-prefix", "*")
	writeFile(t, keys, line)
	cfg := config{Storage: Storage{Store: "embedded"}}
	g := startLimited(t, cfg.reservedFiles()+most, "FENCEPOST_KEYS_FILE="+keys)

	holder := dialGateway(t, g)
	response, body, err := holder.do("POST", "/locks/held", `{"ttl_ms":600000}`, key)
	if err != nil || response.StatusCode != http.StatusCreated {
		t.Fatal(response, body, err)
	}
	var flood []*wire
	for i := range 3 * most { // more than there is room for, from the same address
		w := dialGateway(t, g)
		if response, body, err := w.do("GET", "/livez", "", nil); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("connection %d: %v %s, %v", i, response, body, err)
		}
		flood = append(flood, w)
	}
	newcomer := dialGateway(t, g)
	response, body, err = newcomer.do("POST", "/locks/other", "", key)
	if err != nil || response.StatusCode != http.StatusCreated {
		t.Fatalf("a newcomer with a key: %v %s, %v", response, body, err)
	}
	_, body, err = holder.do("GET", "/metrics", "", key)
	open := regexp.MustCompile(`(?m)^fencepost_http_connections (\d+)$`).FindStringSubmatch(body)
	if err != nil || open == nil {
		t.Fatal(err, body)
	}
	if n, _ := strconv.Atoi(open[1]); n < 2 || n > 2+most/4 {
		t.Errorf("%d connections are open, want two with a key and at most %d without", n, most/4)
	}
	for _, w := range flood[:2*most] { // the oldest have gone
		if _, err := io.Copy(io.Discard, w); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("an old connection without a key is open")
		}
	}
	for _, w := range []*wire{holder, newcomer} {
		if response, body, err := w.do("GET", "/locks/held", "", key); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("a connection with a key: %v %s, %v", response, body, err)
		}
	}
}

// startLimited launches a gateway that may have so many files open.
func startLimited(t *testing.T, files int, settings ...string) *gatewayProcess {
	t.Helper()
	env := []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0"}
	g, err := launchBy(t.TempDir(), append(env, settings...), "sh", "-c", fmt.Sprintf("ulimit -n %d; exec gateway", files))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.end(syscall.SIGKILL)
		t.Log(g.warnings())
	})
	return g
}

// grep returns the lines with text.
func grep(body, text string) (found string) {
	for line := range strings.Lines(body) {
		if strings.Contains(line, text) {
			found += line
		}
	}
	return found
}

func TestMaxConnections(t *testing.T) {
	for _, c := range []struct {
		store      string
		set, limit int
		want       int
	}{
		{"embedded", 0, 1024, 960}, {"embedded", 0, 96, 32}, {"embedded", 0, 95, 0}, {"embedded", 100, 1024, 100},
		{"embedded", 960, 1024, 960}, {"embedded", 961, 1024, 0}, {"embedded", -1, 1024, 0}, {"embedded", 0, maxCap, maxCap - 64},
		{"redis://a", 0, 1024, 944}, {"redis+sentinel://a,b,c/main", 0, 1024, 896}, {"redis+quorum://a,b,c,d,e", 0, 1024, 864},
		{"redis+cluster://a", 0, 1024, 640}, {"redis+cluster://a", 0, 256, 0},
	} {
		cfg := config{Serving: Serving{MaxConnections: c.set}, Storage: Storage{Store: c.store}}
		if got, err := cfg.maxConnections(c.limit); got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s, %d of %d: %d, %v", c.store, c.set, c.limit, got, err)
		}
	}
}
