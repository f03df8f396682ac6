package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// operator is somebody with a shell on a machine with the packages: sudo, systemctl and redis-cli do there what they would,
// and /var is a directory of the test.
type operator struct {
	t     *testing.T
	root  string // has var
	env   []string
	shims string
	units map[string]unit

	mu    sync.Mutex
	fails error // of a unit
}

// unit is a service.
type unit struct{ start, stop func() error }

func newOperator(t *testing.T) *operator {
	t.Helper()
	o := &operator{t: t, root: t.TempDir(), shims: t.TempDir(), units: map[string]unit{}}
	manager := httptest.NewServer(http.HandlerFunc(o.systemctl))
	t.Cleanup(manager.Close)
	o.shim("sudo", `while :; do case $1 in -u) shift 2;; *=*) export "$1"; shift;; *) break;; esac; done; exec "$@"`)
	o.shim("systemctl", `exec curl -fsS '`+manager.URL+`'/$1/$2`)
	o.shim("fencepost-gateway", `exec gateway "$@"`)
	o.env = append(withoutSettings(), "PATH="+o.shims+":"+os.Getenv("PATH"), "no_proxy=*", exitAtOnce)
	must(t, os.MkdirAll(filepath.Join(o.root, "var/lib"), 0o755))
	return o
}

// withoutSettings is the environment of the test without what would set up a gateway or make, or name a repository.
func withoutSettings() (env []string) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); !strings.HasPrefix(name, "FENCEPOST") && !slices.Contains([]string{"MAKEFLAGS", "MAKELEVEL", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}, name) {
			env = append(env, entry)
		}
	}
	return env
}

// shim puts a command before those of the machine.
func (o *operator) shim(name, script string) {
	o.t.Helper()
	must(o.t, os.WriteFile(filepath.Join(o.shims, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
}

func (o *operator) systemctl(w http.ResponseWriter, r *http.Request) {
	verb, name, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	u, known := o.units[name]
	err := fmt.Errorf("systemctl %s %s: there is no such unit or command", verb, name)
	switch {
	case known && verb == "start":
		err = u.start()
	case known && verb == "stop":
		err = u.stop()
	}
	if err != nil {
		o.mu.Lock()
		o.fails = err
		o.mu.Unlock()
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// path is a path of that machine.
func (o *operator) path(path string) string { return filepath.Join(o.root, path) }

// types has the shell carry out a block of commands, in which places are replaced: pairs of a text and what is in its place. It
// stops at the first command that fails, and fails the test then, unless some may.
func (o *operator) types(block string, mayFail bool, places ...string) (said string) {
	o.t.Helper()
	text := strings.NewReplacer(append(places, "/var/", o.root+"/var/")...).Replace(block)
	args := []string{"-e", "-c", text}
	if mayFail {
		args = args[1:]
	}
	cmd := exec.CommandContext(o.t.Context(), "sh", args...)
	cmd.Dir, cmd.Env = o.root, o.env
	out, err := cmd.CombinedOutput()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fails != nil || err != nil && !mayFail {
		o.t.Fatalf("%s\nends with %v, %v:\n%s", text, err, o.fails, out)
	}
	return string(out)
}

// service is the gateway of such a machine.
type service struct {
	o       *operator
	env     []string
	mayFail bool // to start and to end well
	*gatewayProcess
}

// gateway sets up a gateway as the unit fencepost, with a data directory as that has it.
func (o *operator) gateway(settings ...string) *service {
	s := &service{o: o, env: append([]string{
		"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_DATA_DIR=" + o.path("var/lib/fencepost"),
	}, settings...)}
	o.units["fencepost"] = unit{s.start, s.stop}
	o.t.Cleanup(func() {
		if s.gatewayProcess != nil {
			s.end(syscall.SIGKILL)
			o.t.Log(s.warnings())
		}
	})
	return s
}

func (s *service) start() (err error) {
	g, err := launch(s.o.root, s.env)
	if err == nil {
		s.gatewayProcess = g
	} else if s.mayFail {
		err = nil
	}
	return err
}

// stop ends it, if it runs.
func (s *service) stop() error {
	select {
	case <-s.exited:
		return nil
	default:
	}
	if err := s.end(syscall.SIGTERM); err != nil && !s.mayFail {
		return fmt.Errorf("the gateway ends with %w: %s", err, s.warnings())
	}
	return nil
}

// ledger has what clients were told of a store, over all that happens to it.
type ledger struct {
	t       *testing.T
	highest map[string]int64     // the last token of a name
	until   map[string]time.Time // how long its last holder believes in it at most
}

func newLedger(t *testing.T) *ledger {
	return &ledger{t: t, highest: map[string]int64{}, until: map[string]time.Time{}}
}

// acquires has a client acquire a name, and holds the token and the moment against what the others were told. It asks again while the
// store may have forgotten leases, or has one still whose release it has forgotten, as a gateway that was killed may have.
func (l *ledger) acquires(s *service, name string, ttl time.Duration) holding {
	l.t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(look) {
		sent := time.Now()
		h, err := acquireAt(l.t.Context(), s.gatewayProcess, name, fmt.Sprintf(`{"ttl_ms":%d}`, ttl.Milliseconds()))
		switch {
		case err == nil:
			if h.Token <= l.highest[name] {
				l.t.Errorf("%s: token %d after %d", name, h.Token, l.highest[name])
			}
			if until := l.until[name]; time.Now().Before(until) {
				l.t.Errorf("%s is granted while another client believes in its lease for %s", name, time.Until(until))
			}
			l.highest[name], l.until[name] = h.Token, sent.Add(ttl)
			return h
		case !strings.Contains(err.Error(), `"code":"quarantined"`) && !strings.Contains(err.Error(), `"code":"locked"`) || time.Now().After(deadline):
			l.t.Fatalf("%s: %v", name, err)
		}
	}
}

func (l *ledger) releases(s *service, name string, h holding) {
	l.t.Helper()
	must(l.t, releaseAt(s.gatewayProcess, name, h))
	l.until[name] = time.Time{}
}

// answers sends a request, and fails the test unless it is answered with that status and text.
func (l *ledger) answers(s *service, method, path string, header map[string]string, status int, text string) {
	l.t.Helper()
	var got int
	var body []byte
	var err error
	for deadline := time.Now().Add(patience); ; <-time.After(look) { // a store that was away is connected to anew
		got, body, err = request(method, "http://"+s.addr+path, "", header)
		if err != nil || !unavailable(got, body) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil || got != status || !strings.Contains(string(body), text) {
		l.t.Errorf("%s %s: %d %s, %v; want %d with %q", method, path, got, body, err, status, text)
	}
}
