package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/observe"
	"fencepost/internal/redis/redistest"
)

// newKey makes a key, and returns its line and what to send.
func newKey(t *testing.T, args ...string) (line string, header map[string]string) {
	t.Helper()
	var out, secret bytes.Buffer
	if err := run(t.Context(), append([]string{"keygen"}, args...), &out, &secret, nil); err != nil {
		t.Fatal(err)
	}
	return out.String(), map[string]string{"Authorization": "Bearer " + strings.TrimSpace(secret.String())}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// until waits until a request has a status.
func until(t *testing.T, want int, method, url string, header map[string]string) (answer []byte) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		status, answer, err := request(method, url, "", header)
		if err != nil {
			t.Fatal(err)
		}
		if status == want {
			return answer
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s %s: %d %s, want %d", method, url, status, answer, want)
		}
	}
}

// TestHangup: SIGHUP has the keys read at once, and a file that can't be used changes
// nothing. The audit has a line for each change.
func TestHangup(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	first, old := newKey(t, "-name", "first", "-scope", "read", "-prefix", "*")
	second, young := newKey(t, "-name", "second", "-scope", "read", "-prefix", "jobs/")
	writeFile(t, path, first)
	log := filepath.Join(t.TempDir(), "log")
	g := startLogged(t, log, "FENCEPOST_KEYS_FILE="+path)
	url := "http://" + g.addr + "/locks"
	until(t, http.StatusOK, "GET", url, old)

	writeFile(t, path, second)
	g.cmd.Process.Signal(syscall.SIGHUP)
	wantInLog(t, log, "rereading files after SIGHUP")
	until(t, http.StatusOK, "GET", url, young)
	until(t, http.StatusUnauthorized, "GET", url, old)

	writeFile(t, path, strings.TrimSpace(second)+" expires=2199-01-01T00:00:00Z\n")
	wantInLog(t, log, `"audit":{"event":"key changed","principal":"second","key":"`+id(young)+`","scope":"read","prefix":"jobs/","expires":"2199-01-01T00:00:00Z"}`)
	writeFile(t, path, second)
	wantInLog(t, log, `"audit":{"event":"key changed","principal":"second","key":"`+id(young)+`","scope":"read","prefix":"jobs/","expires":"never"}`)

	writeFile(t, path, second+"nonsense\n")
	g.cmd.Process.Signal(syscall.SIGHUP)
	wantInLog(t, log, `"msg":"a file can't be used; its previous content stays in force","setting":"FENCEPOST_KEYS_FILE","error":"line 2: must begin with key or cert"`)
	until(t, http.StatusOK, "GET", url, young)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wantInLog(t, log, `no such file or directory`)
	until(t, http.StatusOK, "GET", url, young)
	for _, want := range []string{
		`"audit":{"event":"key added","principal":"second","key":"` + id(young) + `","scope":"read","prefix":"jobs/","expires":"never"}`,
		`"audit":{"event":"key removed","principal":"first","key":"` + id(old) + `"`,
	} {
		wantInLog(t, log, want)
	}
	if err := g.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// id is the public id in a header with a key.
func id(header map[string]string) string { return strings.Split(header["Authorization"], "_")[1] }

// startLogged starts a gateway whose log is kept in a file.
func startLogged(t *testing.T, log string, settings ...string) *gatewayProcess {
	t.Helper()
	env := append([]string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_LOG_LEVEL=debug", "LOG=" + log}, settings...)
	g, err := launchBy(t.TempDir(), env, "sh", "-c", `mkfifo pipe; tee "$LOG" <pipe >&2 & exec gateway 2>pipe`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.end(syscall.SIGKILL)
		t.Log(g.warnings())
	})
	return g
}

// TestLogWithoutAReader: a gateway whose log's reader has gone serves on, and counts the lines that are lost.
func TestLogWithoutAReader(t *testing.T) {
	t.Parallel()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	addr := redistest.FreeAddr(t)
	gateway := exec.Command("gateway")
	gateway.Dir, gateway.Stderr = t.TempDir(), out
	gateway.Env = []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=" + addr, "FENCEPOST_LOG_LEVEL=debug", exitAtOnce}
	if err := errors.Join(gateway.Start(), out.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gateway.Process.Kill(); gateway.Wait() })
	for said := bufio.NewScanner(in); said.Scan() && !strings.Contains(said.Text(), `"msg":"serving"`); {
	}
	in.Close()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		_, body, err := request("GET", "http://"+addr+"/metrics", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if lost := regexp.MustCompile(`(?m)^fencepost_log_lines_lost_total (\d+)`).FindSubmatch(body); lost != nil && string(lost[1]) != "0" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no line is lost")
		}
		request("PUT", "http://"+addr+"/locks/"+strings.Repeat("a", 300), "", map[string]string{"Host": "elsewhere"})
	}
	if err := gateway.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := gateway.Wait(); err != nil {
		t.Errorf("told to stop, it ends with %v", err)
	}
}

// wantInLog waits until a log has a text.
func wantInLog(t *testing.T, log, text string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		content, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), text) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say %s:\n%s", text, content)
		}
	}
}

// TestAdminKeys: the address of metrics and profiles has the same keys.
func TestAdminKeys(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	readLine, read := newKey(t, "-name", "prometheus", "-scope", "read", "-prefix", "none/")
	adminLine, admin := newKey(t, "-name", "ops", "-scope", "admin", "-prefix", "*")
	writeFile(t, path, readLine+adminLine)
	log := filepath.Join(t.TempDir(), "log")
	g := startLogged(t, log, "FENCEPOST_ADMIN_ADDR=127.0.0.1:0", "FENCEPOST_KEYS_FILE="+path)
	for _, c := range []struct {
		path   string
		header map[string]string
		want   int
	}{
		{"/metrics", nil, 401}, {"/metrics", read, 200}, {"/metrics", admin, 403},
		{"/debug/pprof/", nil, 401}, {"/debug/pprof/", read, 403}, {"/debug/pprof/", admin, 200},
		{"/debug/pprof/profile", nil, 401}, {"/debug/pprof/trace", read, 403}, {"/", nil, 401},
	} {
		status, body, err := request("GET", "http://"+g.admin+c.path, "", c.header)
		if err != nil || status != c.want {
			t.Errorf("%s: %d %s, %v, want %d", c.path, status, body, err, c.want)
		}
	}
	wantInLog(t, log, `"audit":{"event":"profile","client":"127.0.0.1","method":"GET","principal":"ops","key":"`+id(admin)+`","route":"/debug/pprof/"}`)
	wantInLog(t, log, `"audit":{"event":"refused","client":"127.0.0.1","method":"GET","principal":"prometheus","key":"`+id(read)+`","route":"/debug/pprof/","code":"forbidden","reason":"`)
	status := 0
	for range 100 {
		status, _, _ = request("GET", "http://"+g.admin+"/metrics", "", nil)
	}
	if status != http.StatusTooManyRequests {
		t.Errorf("after many failures: %d", status)
	}
}

// TestAuditAtAnyLevel: who turns the log down has the audit still.
func TestAuditAtAnyLevel(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "text"} {
		t.Run(format, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys")
			line, header := newKey(t, "-name", "ops", "-scope", "lock,admin", "-prefix", "*")
			other, _ := newKey(t, "-name", "other", "-scope", "read", "-prefix", "*")
			writeFile(t, path, line+other)
			addr := redistest.FreeAddr(t) // it does not log where it serves
			var said collected
			gateway := exec.Command("gateway")
			gateway.Dir, gateway.Stderr = t.TempDir(), &said
			gateway.Env = []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=" + addr, "FENCEPOST_KEYS_FILE=" + path, "FENCEPOST_LOG_LEVEL=error", "FENCEPOST_LOG_FORMAT=" + format}
			if err := gateway.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { gateway.Process.Kill(); gateway.Wait() })
			wants := func(text string) {
				t.Helper()
				for deadline := time.Now().Add(patience); !strings.Contains(said.String(), text); <-time.After(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("the log does not say %s:\n%s", text, said.String())
					}
				}
			}
			eventually(t, "GET", "http://"+addr+"/livez", http.StatusOK)
			url := "http://" + addr + "/locks/a"
			_, body, _ := request("POST", url, "", header)
			var lease struct {
				Token int64 `json:"fencing_token"`
			}
			if err := json.Unmarshal(body, &lease); err != nil || lease.Token == 0 {
				t.Fatalf("%s %v", body, err)
			}
			status, body, err := request("DELETE", url, "", map[string]string{"Authorization": header["Authorization"], "If-Match": fmt.Sprintf(`"%d"`, lease.Token)})
			if err != nil || status != http.StatusNoContent {
				t.Fatalf("%d %s %v", status, body, err)
			}
			request("GET", url, "", nil)
			writeFile(t, path, line)
			gateway.Process.Signal(syscall.SIGHUP)
			wants("key removed")
			wants("break")
			wants("refused")
			if n := strings.Count(said.String(), "\n"); n != 3 {
				t.Errorf("%d lines:\n%s", n, said.String())
			}
		})
	}
}

// TestFileSystemHangs: what can't be read holds up neither the other files nor the end, and
// counts when it can be.
func TestFileSystemHangs(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	state := observe.NewFiles(prometheus.NewRegistry())
	contents := map[string]string{"hangs": "1", "answers": "1"}
	applied := map[string]string{}
	var said bytes.Buffer
	watched := &files{log: slog.New(slog.NewTextHandler(&said, nil)), state: state}
	var stuck atomic.Bool
	watched.read = func(path string, _ bool) ([]byte, error) {
		if path == "hangs" && stuck.Load() {
			<-hangs
		}
		return []byte(contents[path]), nil
	}
	for path := range contents {
		if err := watched.add(file{setting: path, paths: []string{path}, apply: func(contents [][]byte) error {
			applied[path] = string(contents[0])
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
	}
	stuck.Store(true)
	const rounds = 30
	began := time.Now()
	for round := range rounds {
		contents["answers"] = fmt.Sprint("round ", round)
		watched.look(t.Context(), false)
		if applied["answers"] != contents["answers"] || applied["hangs"] != "1" {
			t.Errorf("round %d: %v", round, applied)
		}
	}
	if took := time.Since(began); took > rounds/2*lookReading {
		t.Errorf("%d rounds took %s: each waits for what hangs", rounds, took)
	}
	if n := strings.Count(said.String(), errHangs.Error()); n != 1 {
		t.Errorf("it is told %d times:\n%s", n, &said)
	}
	watched.start()
	watched.stop()
	contents["hangs"] = "2"
	close(hangs)
	for deadline := time.Now().Add(patience); applied["hangs"] != "2"; <-time.After(time.Millisecond) {
		watched.look(t.Context(), false)
		if time.Now().After(deadline) {
			t.Fatalf("what was read late does not count: %v", applied)
		}
	}
}

// TestHungReadEnds: what has been read when a look comes counts at that look.
func TestHungReadEnds(t *testing.T) {
	t.Parallel()
	for range 20 {
		applied, content := "", "old"
		hangs := make(chan struct{})
		watched := &files{log: slog.New(slog.DiscardHandler), state: observe.NewFiles(prometheus.NewRegistry())}
		watched.read = func(string, bool) ([]byte, error) {
			<-hangs
			return []byte(content), nil
		}
		one := &file{setting: "X", paths: []string{"x"}, apply: func(contents [][]byte) error {
			applied = string(contents[0])
			return nil
		}}
		if err := watched.load(t.Context(), one, false, 0); !errors.Is(err, errHangs) {
			t.Fatal(err)
		}
		close(hangs)
		for deadline := time.Now().Add(patience); len(one.reading) == 0; <-time.After(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the read does not end")
			}
		}
		if err := watched.load(t.Context(), one, false, lookReading); err != nil || applied != content {
			t.Fatalf("%q is applied, %v", applied, err)
		}
	}
}

// A gateway that reads no files goes on, too: what manages services sends SIGHUP to reload.
func TestHangupWithoutFiles(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	g := startLogged(t, log)
	g.cmd.Process.Signal(syscall.SIGHUP)
	wantInLog(t, log, "rereading files after SIGHUP")
	if status, body, err := request(http.MethodGet, "http://"+g.addr+"/livez", "", nil); err != nil || status != http.StatusOK {
		t.Errorf("%d %s, %v", status, body, err)
	}
}
