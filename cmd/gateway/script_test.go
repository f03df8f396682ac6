package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
	"fencepost/internal/sql"
	"fencepost/internal/sql/sqltest"
)

const (
	// patience bounds every wait for a condition.
	patience = 60 * time.Second

	// look is how often a script asks again: each time takes a process of its own.
	look = 200 * time.Millisecond

	// exitAtOnce keeps processes with the race detector from sleeping for a second at their end.
	exitAtOnce = "GORACE=atexit_sleep_ms=0"
)

// bounded sends the requests of Go tests, of which none waits longer than a minute.
var bounded = &http.Client{Timeout: time.Minute + patience}

func TestMain(m *testing.M) {
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 2000 // crowds of clients come from here
	http.DefaultTransport.(*http.Transport).MaxIdleConns = 0           // any number
	testscript.Main(withDatabases{m}, map[string]func(){"gateway": main})
}

// withDatabases ends the servers that all tests share.
type withDatabases struct{ m *testing.M }

func (w withDatabases) Run() int {
	code := w.m.Run()
	if err := sqltest.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// TestScripts drives the real binary with curl, on four stores. A script starts
// and kills gateways and Redis by the commands of scriptCommands. What no store has
// a part in, those of testdata/settings, runs on one of them.
func TestScripts(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			dirs := []string{"all", store}
			if store == stores[0] {
				dirs = append(dirs, "settings")
			}
			for _, dir := range dirs {
				runScripts(t, store, false, testscript.Params{Dir: "testdata/" + dir})
			}
		})
	}
}

// TestSystemScripts runs the scripts that TestScripts leaves something out of, which they mark
// with [system], and those of testdata/settings on the other stores.
func TestSystemScripts(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			if store != stores[0] {
				runScripts(t, store, true, testscript.Params{Dir: "testdata/settings"})
			}
			for _, dir := range []string{"all", store} {
				if marked := markedScripts(t, "testdata/"+dir); len(marked) > 0 {
					runScripts(t, store, true, testscript.Params{Files: marked})
				}
			}
		})
	}
}

var stores = []string{"embedded", "redis", "raft", "postgres"}

// runScripts runs scripts on a store. The condition system holds in the second tier.
func runScripts(t *testing.T, store string, system bool, scripts testscript.Params) {
	scripts.RequireExplicitExec = true
	scripts.UpdateScripts = os.Getenv("FENCEPOST_UPDATE") != ""
	scripts.Setup = func(env *testscript.Env) error { return setUp(env, store) }
	scripts.Cmds = scriptCommands
	scripts.Condition = func(condition string) (bool, error) {
		if condition != "system" {
			return false, fmt.Errorf("the condition %q is unknown", condition)
		}
		return system, nil
	}
	testscript.Run(t, scripts)
}

// markedScripts returns the scripts of a folder that do more in the second tier.
func markedScripts(t *testing.T, dir string) (marked []string) {
	t.Helper()
	all, err := filepath.Glob(dir + "/*.txtar")
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, path := range all {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), "system] ") {
			marked = append(marked, path)
		}
	}
	return marked
}

// world is what a script has started.
type world struct {
	gateways map[string]*gatewayProcess
	redis    *redistest.Server
	postgres *sqltest.Server // that all scripts share
}

// usePostgres sets FENCEPOST_STORE to a database with the tables, and EMPTY to one without.
func (w *world) usePostgres(env *testscript.Env) error {
	var store, empty string
	_, err := redistest.Launch(func(t testing.TB) {
		w.postgres = sqltest.Postgres(t)
		store, empty = w.postgres.Database(t), w.postgres.Database(t)
	})
	if err == nil {
		_, err = sql.Init(context.Background(), store, sql.Rights{})
	}
	env.Setenv("FENCEPOST_STORE", store)
	env.Setenv("EMPTY", empty)
	return err
}

// busy reports whether a store that answers late may leave nothing known.
func (w *world) busy() bool { return w.redis != nil || w.postgres != nil }

type worldKey struct{}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

func setUp(env *testscript.Env, store string) error {
	w := &world{gateways: map[string]*gatewayProcess{}}
	env.Values[worldKey{}] = w
	env.Setenv("FENCEPOST_LISTEN_ADDR", "127.0.0.1:0")
	env.Setenv("FENCEPOST_STORE", store)
	env.Setenv("no_proxy", "*")
	env.Vars = append(env.Vars, exitAtOnce)
	env.Defer(func() {
		for g := range maps.Values(w.gateways) {
			g.end(syscall.SIGKILL)
			env.T().Log(g.warnings())
		}
		if w.redis != nil {
			w.redis.Close()
		}
	})
	switch store {
	case "embedded":
		return nil
	case "postgres":
		return w.usePostgres(env)
	case "raft":
		port, err := redistest.FreePort()
		env.Setenv("FENCEPOST_STORE", fmt.Sprintf("raft://127.0.0.1:%d", port))
		env.Setenv("SECRET", strings.Repeat("secret", 6)) // for FENCEPOST_CLUSTER_SECRET
		return err
	}
	var err error
	if w.redis, err = redistest.Run("--appendonly", "yes", "--appendfsync", "always"); err != nil {
		return err
	}
	env.Setenv("FENCEPOST_STORE", w.redis.URL())
	return nil
}

var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	// start [NAME]: starts a gateway and sets $ADDR, $URL and $URL_NAME to where it serves.
	"start": func(ts *testscript.TestScript, neg bool, args []string) {
		name := first(args)
		g, err := startGateway(ts)
		ts.Check(err)
		worldOf(ts).gateways[name] = g
		ts.Setenv("ADDR", g.addr)
		ts.Setenv("URL", "http://"+g.addr)
		ts.Setenv("URL_"+name, "http://"+g.addr)
	},
	// end term|kill [NAME]: ends a gateway. A terminated one must exit with 0.
	"end": func(ts *testscript.TestScript, neg bool, args []string) {
		name := first(args[1:])
		g := worldOf(ts).gateways[name]
		if g == nil {
			ts.Fatalf("no gateway %q is running", name)
		}
		delete(worldOf(ts).gateways, name)
		var err error
		if args[0] == "kill" {
			g.end(syscall.SIGKILL)
		} else {
			err = g.end(syscall.SIGTERM)
		}
		ts.Logf("%s", g.warnings())
		ts.Check(err)
	},
	// redis kill|restart|flushall|script-flush|config KEY VALUE
	"redis": func(ts *testscript.TestScript, neg bool, args []string) {
		server := worldOf(ts).redis
		client := server.Client()
		defer client.Close()
		ctx := context.Background()
		switch args[0] {
		case "kill":
			ts.Check(server.Kill())
		case "restart":
			ts.Check(server.Restart())
		case "flushall":
			ts.Check(client.FlushAll(ctx).Err())
		case "script-flush":
			ts.Check(client.ScriptFlush(ctx).Err())
		case "config":
			ts.Check(client.ConfigSet(ctx, args[1], args[2]).Err())
		default:
			ts.Fatalf("redis %s?", args[0])
		}
	},
	// sql STATEMENT: has the PostgreSQL of FENCEPOST_STORE carry it out.
	"sql": func(ts *testscript.TestScript, neg bool, args []string) {
		stop, err := redistest.Launch(func(t testing.TB) {
			if _, err := worldOf(ts).postgres.DB(t, ts.Getenv("FENCEPOST_STORE")).Exec(args[0]); err != nil {
				t.Fatal(err)
			}
		})
		ts.Check(errors.Join(err, stop()))
	},
	// user NAME PASSWORD: makes a user of PostgreSQL, and sets a variable to its name.
	"user": func(ts *testscript.TestScript, neg bool, args []string) {
		_, err := redistest.Launch(func(t testing.TB) { ts.Setenv(args[0], worldOf(ts).postgres.User(t, args[1])) })
		ts.Check(err)
	},
	// save VAR REGEXP: sets a variable to the first group found in the last output.
	"save": func(ts *testscript.TestScript, neg bool, args []string) {
		found := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
		if found == nil {
			ts.Fatalf("%q is not in the output", args[1])
		}
		ts.Setenv(args[0], found[1])
	},
	// greater A B: two whole numbers.
	"greater": func(ts *testscript.TestScript, neg bool, args []string) {
		a, errA := strconv.ParseInt(args[0], 10, 64)
		b, errB := strconv.ParseInt(args[1], 10, 64)
		ts.Check(errors.Join(errA, errB))
		if a > b == neg {
			ts.Fatalf("%d > %d is %v", a, b, a > b)
		}
	},
	// curl STATUS ARGS...: curl must be answered with the status. Where a busy Redis left nothing
	// known it asks again, as clients do.
	"curl": func(ts *testscript.TestScript, neg bool, args []string) {
		want, args := args[0], args[1:]
		busy := worldOf(ts).busy()
		own := busy && want == "201" && !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "Lease-Id:") })
		if own {
			args = append(args, "-H", newLeaseHeader())
		}
		got, answer := curl(ts, args)
		for deadline := time.Now().Add(patience); busy && got != want && saysUnavailable(got, answer) && time.Now().Before(deadline); <-time.After(look) {
			ts.Logf("%q is asked again, for it was answered\n%s", args, answer)
			switch got, answer = curl(ts, args); {
			case want == "201" && got == "200": // it was granted before, and the answer was lost
				got = want
			case own && got == "412": // it was, and has run out
				args[len(args)-1] = newLeaseHeader()
				got, answer = curl(ts, args)
			}
		}
		fmt.Fprintln(ts.Stdout(), answer)
		if got != want {
			ts.Fatalf("answered %q, want %s", got, want)
		}
	},
	// until STATUS[|STATUS...] ARGS...: repeats curl until the last status is the
	// answer; meanwhile only the others may be, and what a busy store says.
	"until": func(ts *testscript.TestScript, neg bool, args []string) {
		allowed := strings.Split(args[0], "|")
		want := allowed[len(allowed)-1]
		for deadline := time.Now().Add(patience); ; <-time.After(look) {
			got, answer := curl(ts, args[1:])
			if got == want {
				fmt.Fprintln(ts.Stdout(), answer)
				return
			}
			if !slices.Contains(allowed, got) && !saysUnavailable(got, answer) || time.Now().After(deadline) {
				fmt.Fprintln(ts.Stdout(), answer)
				ts.Fatalf("answered %q while waiting for %s", got, args[0])
			}
		}
	},
	// until-says REGEXP ARGS...: repeats curl until the answer matches.
	"until-says": func(ts *testscript.TestScript, neg bool, args []string) {
		wanted := regexp.MustCompile(args[0])
		for deadline := time.Now().Add(patience); ; <-time.After(look) {
			_, answer := curl(ts, args[1:])
			if wanted.MatchString(answer) {
				fmt.Fprintln(ts.Stdout(), answer)
				return
			}
			if time.Now().After(deadline) {
				ts.Fatalf("the answer never matched %s; the last one is\n%s", args[0], answer)
			}
		}
	},
	// until-file REGEXP FILE: waits until the file matches.
	"until-file": func(ts *testscript.TestScript, neg bool, args []string) { untilFile(ts, args) },
}

func untilFile(ts *testscript.TestScript, args []string) {
	wanted := regexp.MustCompile(args[0])
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		content, err := os.ReadFile(ts.MkAbs(args[1]))
		if err == nil && wanted.Match(content) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("after %s %s does not match %s; it is\n%s", patience, args[1], args[0], content)
		}
	}
}

func first(args []string) string {
	if len(args) == 0 {
		return "main"
	}
	return args[0]
}

// curl runs curl -i and returns the status and all of the answer.
func curl(ts *testscript.TestScript, args []string) (status, answer string) {
	cmd := exec.Command("curl", append([]string{"-sS", "-i", "--max-time", strconv.Itoa(int((patience + time.Minute).Seconds()))}, args...)...)
	out, err := cmd.Output()
	if len(out) == 0 {
		ts.Check(err)
	}
	fields := strings.Fields(string(out))
	if len(fields) < 2 {
		ts.Fatalf("no answer from %q", args)
	}
	return fields[1], string(out)
}

// newLeaseHeader is a lease id of a client's own.
func newLeaseHeader() string { return "Lease-Id: " + fencing.NewLeaseID(time.Now()).Reveal() }

// saysUnavailable reports an answer that says that nothing is known of what was asked for.
func saysUnavailable(status, answer string) bool {
	return status == strconv.Itoa(http.StatusServiceUnavailable) && strings.Contains(answer, codeUnavailable)
}

// gatewayProcess is the real program.
type gatewayProcess struct {
	cmd    *exec.Cmd
	addr   string
	admin  string // where FENCEPOST_ADMIN_ADDR came to be
	exited chan struct{}
	err    error // of Wait, once exited is closed

	mu  sync.Mutex
	log strings.Builder // what it logged above info
}

func (g *gatewayProcess) warnings() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.log.String()
}

// startGateway starts it with the script's environment and waits until it serves.
func startGateway(ts *testscript.TestScript) (*gatewayProcess, error) {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "GOCOVERDIR"} {
		if value := ts.Getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	for _, name := range []string{"LISTEN_ADDR", "STORE", "DATA_DIR", "ADMIN_ADDR", "LOG_LEVEL", "MAX_CLOCK_SKEW", "DRAIN_TIMEOUT", "MAX_WAIT", "MAX_HOLDERS_PER_NAME", "STRICT", "QUARANTINE", "KEYS_FILE", "CLUSTER_SECRET"} {
		if value := ts.Getenv("FENCEPOST_" + name); value != "" {
			env = append(env, "FENCEPOST_"+name+"="+value)
		}
	}
	return launch(ts.MkAbs("."), env)
}

// launch starts the program in dir.
func launch(dir string, env []string) (*gatewayProcess, error) {
	return launchBy(dir, env, "gateway")
}

// launchBy starts it in dir by another command, which it replaces.
func launchBy(dir string, env []string, command string, args ...string) (*gatewayProcess, error) {
	cmd := exec.Command(command, args...)
	if cmd.Err != nil {
		return nil, cmd.Err
	}
	cmd.Dir, cmd.Env = dir, append(env, exitAtOnce)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	g := &gatewayProcess{cmd: cmd, exited: make(chan struct{})}
	addr := make(chan string, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			var entry struct{ Msg, Address, Level string }
			json.Unmarshal(lines.Bytes(), &entry)
			if entry.Msg == "serving metrics and profiles" {
				g.admin = entry.Address // logged before the next
			} else if entry.Msg == "serving" {
				addr <- entry.Address
			} else if entry.Level != "INFO" && entry.Level != "DEBUG" {
				g.mu.Lock()
				fmt.Fprintln(&g.log, lines.Text())
				g.mu.Unlock()
			}
		}
	})
	go func() {
		reading.Wait()
		g.err = cmd.Wait()
		close(g.exited)
	}()
	select {
	case g.addr = <-addr:
		return g, nil
	case <-g.exited:
		return nil, fmt.Errorf("the gateway ended before it served: %w", g.err)
	case <-time.After(patience):
		return nil, errors.Join(errors.New("the gateway does not serve"), g.end(syscall.SIGKILL))
	}
}

// end sends a signal and waits. It returns an error if the exit status is not 0.
func (g *gatewayProcess) end(signal os.Signal) error {
	g.cmd.Process.Signal(signal)
	select {
	case <-g.exited:
		return g.err
	case <-time.After(patience):
		g.cmd.Process.Kill()
		<-g.exited
		return errors.New("the gateway did not end")
	}
}

// request is one HTTP request of a Go test; body is not nil after an answer.
func request(method, url, body string, header map[string]string) (status int, answer []byte, err error) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	for key, value := range header {
		r.Header.Set(key, value)
	}
	r.Host = r.Header.Get("Host") // empty: that of the URL
	response, err := bounded.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}
