package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// clone is the repository as somebody has it who has just cloned it, with what is changed here.
func clone(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	files := git(t, "../..", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	for path := range strings.SplitSeq(strings.TrimSuffix(files, "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join("../..", path))
		if os.IsNotExist(err) { // removed here
			continue
		}
		info, errInfo := os.Stat(filepath.Join("../..", path))
		must(t, err, errInfo, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, path), content, info.Mode().Perm()))
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false", "commit", "-q", "--no-verify", "-m", "all"}} {
		git(t, dir, args...)
	}
	return dir
}

// git asks the repository of a directory, and no other one: a hook of git, which may run tests, sets GIT_DIR.
func git(t *testing.T, dir string, args ...string) (said string) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, withoutSettings(), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, &stderr)
	}
	return string(out)
}

// isClean fails the test if git status shows what the steps of a document have left in a clone.
func isClean(t *testing.T, dir string) {
	t.Helper()
	if left := git(t, dir, "status", "--porcelain"); left != "" {
		t.Errorf("git status shows\n%s", left)
	}
}

// foreground is a command that stays in a terminal of its own.
type foreground struct {
	cmd    *exec.Cmd
	exited chan struct{}

	mu   sync.Mutex
	said bytes.Buffer
}

// stays starts a command that stays, with the processes that it starts.
func (o *operator) stays(text string) *foreground {
	o.t.Helper()
	f := &foreground{cmd: exec.CommandContext(o.t.Context(), "sh", "-e", "-c", text), exited: make(chan struct{})}
	f.cmd.Dir, f.cmd.Env, f.cmd.SysProcAttr = o.root, o.env, &syscall.SysProcAttr{Setpgid: true}
	f.cmd.Stdout, f.cmd.Stderr = f, f
	must(o.t, f.cmd.Start())
	go func() {
		f.cmd.Wait()
		close(f.exited)
	}()
	o.t.Cleanup(func() {
		f.end(syscall.SIGKILL)
		if o.t.Failed() {
			o.t.Log(f.text())
		}
	})
	return f
}

func (f *foreground) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.said.Write(b)
}

func (f *foreground) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.said.String()
}

// end sends a signal to all of it, and waits.
func (f *foreground) end(signal syscall.Signal) {
	syscall.Kill(-f.cmd.Process.Pid, signal)
	<-f.exited
}

// isReady waits until a gateway is that stays.
func (f *foreground) isReady(t *testing.T, addr string) {
	t.Helper()
	for deadline := time.Now().Add(startPatience); ; <-time.After(look) {
		status, body, err := request(http.MethodGet, "http://"+addr+"/readyz", "", nil)
		if err == nil && status == http.StatusOK {
			return
		}
		select {
		case <-f.exited:
			t.Fatalf("it ends:\n%s", f.text())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is not ready: %d %s, %v\n%s", status, body, err, f.text())
		}
	}
}

// inClone is an operator whose directory is a clone.
func inClone(t *testing.T, settings ...string) *operator {
	o := newOperator(t)
	o.root = clone(t)
	o.env = append(o.env, settings...)
	return o
}

// threeGateways starts the cluster of README.md, each gateway in a terminal of its own, has one killed, and starts it again.
func threeGateways(t *testing.T, blocks []string) {
	o := inClone(t)
	var places, gateways []string
	for i := range 3 {
		gateways = append(gateways, redistest.FreeAddr(t))
		places = append(places, fmt.Sprint("127.0.0.1:700", i+1), redistest.FreeAddr(t), fmt.Sprint("127.0.0.1:808", i+1), gateways[i])
	}
	replaced := strings.NewReplacer(places...)
	var common string
	var starts []string
	for line := range strings.Lines(replaced.Replace(blocks[0])) {
		if strings.HasSuffix(line, " bin/gateway\n") {
			starts = append(starts, line)
		} else {
			common += line
		}
	}
	if len(starts) != 3 {
		t.Fatalf("%d gateways are started", len(starts))
	}
	o.types(common, false)
	_, settings, _ := strings.Cut(common, "\n") // without make build
	running := map[string]*foreground{}
	for i, start := range starts {
		running[gateways[i]] = o.stays(settings + start)
	}
	for addr, f := range running {
		f.isReady(t, addr)
	}
	said := o.types(settings+notSlow(replaced.Replace(blocks[1])), false)
	if !strings.Contains(said, `"owner":"me"`) || !strings.Contains(said, "1 more member may fail") {
		t.Error(said)
	}
	leader := regexp.MustCompile(`(\S+) leads in term`).FindStringSubmatch(said)
	if leader == nil || !slices.Contains(places, leader[1]) {
		t.Fatalf("nobody leads:\n%s", said)
	}
	lost := places[slices.Index(places, leader[1])+2]
	running[lost].end(syscall.SIGKILL)
	for addr, f := range running {
		if addr == lost {
			continue
		}
		f.isReady(t, addr)
		if status, body, err := request(http.MethodGet, "http://"+addr+"/locks/orders/42", "", nil); err != nil || !strings.Contains(string(body), `"owner":"me"`) {
			t.Errorf("the lock is lost: %d %s, %v", status, body, err)
		}
	}
	again := o.stays(settings + starts[slices.Index(gateways, lost)])
	again.isReady(t, lost)
	isClean(t, o.root)
}

// notSlow lets a status pass that has nothing to say but that a disk is slow, as those of a busy machine are.
func notSlow(block string) string {
	return regexp.MustCompile(`(?m)^(\S*gateway cluster status)\b.*$`).ReplaceAllString(block, `said=$$($1 2>&1) || echo "$$said" | grep "the disk of .* is slow"; echo "$$said"`)
}

// aBinary makes keys, starts a gateway and asks it. It does so again after a crash, for whoever pastes the same lines once more.
func aBinary(t *testing.T, blocks []string) {
	addr := redistest.FreeAddr(t)
	o := inClone(t, "FENCEPOST_LISTEN_ADDR="+addr, "FENCEPOST=http://"+addr)
	o.types("make build", false) // which may take longer than a start
	for range 2 {
		f := o.stays(blocks[0])
		f.isReady(t, addr)
		said := o.types(blocks[1], false, "127.0.0.1:8080", addr)
		for _, text := range []string{"HTTP/1.1 200 OK", "I have the lock", "released"} {
			if !strings.Contains(said, text) {
				t.Errorf("no %q in:\n%s", text, said)
			}
		}
		for _, name := range []string{"keys", "ops.key"} {
			if info, err := os.Stat(filepath.Join(o.root, name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		f.end(syscall.SIGKILL)
	}
	isClean(t, o.root)
}

// aDatabase makes the user and the tables, and makes the tables again.
func aDatabase(t *testing.T, blocks []string) {
	o := newOperator(t)
	_, store := o.postgres()
	o.types(blocks[0], false, "postgres://postgres@db.internal/locks", store)
	_, again, _ := strings.Cut(blocks[0], "\n")
	if said := o.types(again, false, "postgres://postgres@db.internal/locks", store); !strings.Contains(said, "The tables existed already") {
		t.Error(said)
	}
	at, err := url.Parse(store)
	must(t, err)
	at.User = url.User("fencepost")
	useStore(t, at.String())
}

// fromOneToThree takes the others into a cluster of one, and removes two of the three.
func fromOneToThree(t *testing.T, blocks []string) {
	a, b, c := loner(t), loner(t), loner(t)
	list := "FENCEPOST_STORE=raft://" + strings.Join([]string{a.addr, b.addr, c.addr}, ",")
	must(t, a.start())
	held, err := acquireAt(t.Context(), a.gateway, "a", `{"ttl_ms":3600000}`)
	must(t, err, a.gateway.end(syscall.SIGTERM))
	for _, m := range []*member{b, c} {
		must(t, m.start(list, "FENCEPOST_CLUSTER_ADDR="+m.addr))
	}
	must(t, a.start(list, "FENCEPOST_CLUSTER_ADDR="+a.addr))
	a.says(ready)
	places := []string{"node1:7000", a.addr, "node2:7000", b.addr, "node3:7000", c.addr}
	o := newOperator(t)
	o.env = append(o.env, list)
	said := o.types("export FENCEPOST_CLUSTER_ADDR="+a.addr+"\n"+notSlow(blocks[0]), false, places...)
	if !strings.Contains(said, "1 more member may fail") {
		t.Error(said)
	}
	b.says(ready)
	said = o.types("export FENCEPOST_CLUSTER_ADDR="+b.addr+"\n"+notSlow(blocks[1]), false, places...)
	if !strings.Contains(said, "0 more members may fail") || strings.Contains(said, c.addr+" leads") {
		t.Error(said)
	}
	must(t, releaseAt(b.gateway, "a", held))
}

// aDamagedKey deletes a key that nobody can read: of a name, then those of the partition.
func aDamagedKey(t *testing.T, blocks []string) {
	o := newOperator(t)
	server := redistest.Start(t, strictRedis...)
	o.redis(server)
	s := o.gateway("FENCEPOST_STORE="+server.URL(), "FENCEPOST_QUARANTINE="+longest.String())
	must(t, s.start())
	l := newLedger(t)
	l.acquires(s, "orders/42", longest)
	admin := server.Client()
	defer admin.Close()
	must(t, admin.Set(t.Context(), "fencepost:{0}:lock:orders/42", "nonsense", 0).Err())
	if status, body, err := request(http.MethodPost, "http://"+s.addr+"/locks/orders/42", "", nil); err != nil || !unavailable(status, body) {
		t.Errorf("a damaged key: %d %s, %v", status, body, err)
	}
	o.types(blocks[0], false)
	kept := l.acquires(s, "orders/42", time.Hour)

	const others = "Delete `fencepost:{0}:token` and `fencepost:{0}:guard`."
	if page := strings.Join(strings.Fields(fileOf(t, failures)), " "); !strings.Contains(page, others) {
		t.Errorf("%s has no %q", failures, others)
	}
	for _, key := range []string{"guard", "token"} {
		must(t, admin.Set(t.Context(), "fencepost:{0}:"+key, "nonsense", 0).Err())
		if status, body, err := request(http.MethodPost, "http://"+s.addr+"/locks/new", "", nil); err != nil || !unavailable(status, body) {
			t.Errorf("a damaged %s: %d %s, %v", key, status, body, err)
		}
		o.types(blocks[0], false, "lock:orders/42", "token")
		l.releases(s, "new", l.acquires(s, "new", time.Hour))
		l.answers(s, http.MethodPut, "/locks/orders/42", map[string]string{"Lease-Id": kept.LeaseID}, http.StatusOK, "")
	}
}

// reads looks whether what commands name is there, where they can't be run: files, targets of make, values of the chart, services of Compose, and
// what gateway is asked to do.
func reads(t *testing.T, blocks []string) {
	for _, block := range blocks {
		if out, err := exec.Command("sh", "-n", "-c", block).CombinedOutput(); err != nil {
			t.Errorf("%v: %s\n%s", err, out, block)
		}
		text := strings.ReplaceAll(block, "\\\n", " ")
		for _, path := range regexp.MustCompile(`\bdeploy/[a-z/.A-Z-]+`).FindAllString(text, -1) {
			if strings.HasPrefix(path, "deploy/compose/secrets/") { // make-secrets makes it
				continue
			}
			if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
				t.Error(err)
			}
		}
		for _, target := range regexp.MustCompile(`(?m)^make ([a-z-]+)`).FindAllStringSubmatch(text, -1) {
			if !strings.Contains(fileOf(t, "Makefile"), "\n"+target[1]+":") {
				t.Errorf("make %s?", target[1])
			}
		}
		for _, sets := range regexp.MustCompile(`--set (\S+)`).FindAllStringSubmatch(text, -1) {
			for set := range strings.SplitSeq(sets[1], ",") {
				name, _, _ := strings.Cut(set, "=")
				if group, value, nested := strings.Cut(name, "."); nested {
					name = group + `:[^\n]*\n(?:(?: .*)?\n)*?  ` + value
				}
				if !regexp.MustCompile(`(?m)^` + name + `:`).MatchString(fileOf(t, "deploy/helm/fencepost/values.yaml")) {
					t.Errorf("the chart has no value %s", set)
				}
			}
		}
		for _, compose := range regexp.MustCompile(`docker compose -f (\S+) .*`).FindAllStringSubmatch(text, -1) {
			for _, name := range regexp.MustCompile(`\bgateway-\d`).FindAllString(text, -1) {
				if !strings.Contains(fileOf(t, compose[1]), "\n  "+name+":") {
					t.Errorf("%s has no %s", compose[1], name)
				}
			}
		}
		for _, command := range regexp.MustCompile(`\b(?:keygen -|gateway (?:doctor|cluster|store|restored))[^2>|\n]*`).FindAllString(text, -1) {
			parses(t, strings.TrimPrefix(command, "gateway "))
		}
	}
}

// readsTable reads the blocks and, as commands that belong to them, the code in the table of the chart's stores.
func readsTable(t *testing.T, blocks []string) {
	_, table, found := strings.Cut(fileOf(t, operations), "\n| store | before | add |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	code := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(table, -1)
	if !found || len(code) < 6 {
		t.Fatalf("a table with %q", code)
	}
	for _, of := range code {
		text := of[1] + "\n"
		if strings.HasPrefix(text, "--set ") {
			text = "helm upgrade " + text
		}
		blocks = append(blocks, text)
	}
	reads(t, blocks)
}

// parses has a gateway without a store take arguments: that they are at fault is status 2.
func parses(t *testing.T, args string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "gateway "+args)
	cmd.Dir, cmd.Env = t.TempDir(), append(withoutSettings(), "FENCEPOST_STORE=raft://"+redistest.FreeAddr(t), exitAtOnce)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if cmd.ProcessState.ExitCode() == 2 {
		t.Errorf("gateway %s: %s", args, out)
	}
}

func fileOf(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../..", path))
	must(t, err)
	return string(content)
}
