package http

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestDefaultHosts: an address that is served on is answered to, by any port and however it is written; one that
// stands for all of the machine's adds nothing.
func TestDefaultHosts(t *testing.T) {
	t.Parallel()
	for listen, hosts := range map[string]map[string]bool{
		"192.0.2.7:8080":          {"192.0.2.7:8080": true, "192.0.2.7": true, "192.0.2.7:80": true, "192.0.2.8:8080": false, "evil.example": false, "192.0.2.7.evil.example": false, "localhost": true},
		"127.0.0.2:8080":          {"127.0.0.2:8080": true, "127.0.0.1": true},
		"[2001:db8::7]:8080":      {"[2001:db8::7]:8080": true, "[2001:DB8::7]": true, "[2001:db8:0:0::7]:8080": true, "[2001:db8::8]": false, "2001:db8::7": false},
		"[2001:db8:0:0::7]:8080":  {"[2001:db8::7]:8080": true, "[2001:db8:0:0::7]:8080": true},
		"[fe80::1%eth0]:8080":     {"[fe80::1]:8080": true},
		"[::ffff:192.0.2.7]:8080": {"192.0.2.7:8080": true, "[::ffff:192.0.2.7]:8080": true, "[::ffff:c000:207]": true},
		"0.0.0.0:8080":            {"192.0.2.7:8080": false, "0.0.0.0:8080": false, "localhost": true},
		"[::]:8080":               {"192.0.2.7:8080": false, "[::]:8080": false, "[::1]": true},
		":8080":                   {"192.0.2.7:8080": false, "127.0.0.1:8080": true},
		"locks.example:8080":      {"locks.example:8080": false, "localhost": true},
		"":                        {"192.0.2.7": false, "localhost": true},
	} {
		list := newHostList(DefaultHosts(listen))
		for host, want := range hosts {
			if got := list.allows(host); got != want {
				t.Errorf("at %q the Host %s: %t", listen, host, got)
			}
		}
	}
}

// TestRefusedHostIsLogged: the log has the Host that was refused, once a minute of one client, and no more of it than
// a name has.
func TestRefusedHostIsLogged(t *testing.T) {
	t.Parallel()
	g := newServer(t)
	logged := func() (hosts []string) {
		for line := range strings.Lines(g.log.String()) {
			var entry struct{ Level, Msg, Host, Client, Setting string }
			if err := json.Unmarshal([]byte(line), &entry); err != nil {
				t.Fatal(err)
			}
			if entry.Msg == "request" && entry.Level != "DEBUG" {
				t.Errorf("each refusal has a line: %s", line)
			}
			if entry.Host != "" {
				hosts = append(hosts, entry.Host+" from "+entry.Client+", "+entry.Setting)
			}
		}
		return hosts
	}
	ask := func(host, client string) {
		t.Helper()
		r := httptest.NewRequest("GET", "http://localhost/locks", nil)
		r.Host, r.RemoteAddr = host, client+":1"
		w := httptest.NewRecorder()
		g.Handler().ServeHTTP(w, r)
		if w.Code != 421 || !strings.Contains(w.Body.String(), "FENCEPOST_ALLOWED_HOSTS") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	long := strings.Repeat("a.", 500) + "example"
	ask("evil.example:80", "192.0.2.1")
	ask("second.example", "192.0.2.1")
	ask(long, "192.0.2.2")
	g.clock.advance(hostRefusalLogged)
	ask("third.example", "192.0.2.1")
	want := []string{"evil.example:80 from 192.0.2.1, FENCEPOST_ALLOWED_HOSTS", long[:maxHostLogged] + " from 192.0.2.2, FENCEPOST_ALLOWED_HOSTS", "third.example from 192.0.2.1, FENCEPOST_ALLOWED_HOSTS"}
	if got := logged(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	var log bytes.Buffer
	admin := OnlyHosts(nil, slog.New(slog.NewTextHandler(&log, nil)), http.NotFoundHandler())
	for range 3 {
		r := httptest.NewRequest("GET", "http://evil.example/metrics", nil)
		admin.ServeHTTP(httptest.NewRecorder(), r)
	}
	if strings.Count(log.String(), "host=evil.example") != 1 {
		t.Errorf("%s", &log)
	}
}
