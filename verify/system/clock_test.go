package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// movedNow takes the place of time.Now: the wall clock is as many seconds ahead as the file says that TEST_CLOCK names. The file is
// read beside it, for the runtime calls time.Now where nothing else may be called.
const movedNow = `func Now() Time {
	sec, nsec, mono := runtimeNow()
	sec += moved.Load()
`

const movedBy = `
var moved atomic.Int64

func init() {
	if name, ok := syscall.Getenv("TEST_CLOCK"); ok {
		moved.Store(movedBy(name))
		go func() {
			for ; ; Sleep(10 * Millisecond) {
				moved.Store(movedBy(name))
			}
		}()
	}
}

func movedBy(name string) (by int64) {
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	var text [32]byte
	n, _ := syscall.Read(fd, text[:])
	syscall.Close(fd)
	sign := int64(1)
	for _, c := range text[:max(n, 0)] {
		if c == '-' {
			sign = -1
		} else if '0' <= c && c <= '9' {
			by = 10*by + int64(c-'0')
		}
	}
	return sign * by
}
`

// movable returns how a gateway is built whose wall clock a test sets; the monotonic one goes on.
func movable(t *testing.T) Build {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(path)
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if err != nil || strings.Count(string(source), now) != 1 || strings.Count(string(source), "import (\n") != 1 {
		t.Fatalf("time.Now is not what this test knows: %v", err)
	}
	changed := strings.Replace(string(source), now, movedNow, 1) + movedBy
	changed = strings.Replace(changed, "import (\n", "import (\n\t\"sync/atomic\"\n\t\"syscall\"\n", 1)
	return Build{Overlay: overlaid(t, path, changed)}
}

// overlaid returns an overlay for a build in which a file has another content.
func overlaid(t *testing.T, path, content string) (overlay string) {
	t.Helper()
	dir := t.TempDir()
	file, overlay := filepath.Join(dir, filepath.Base(path)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: file}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{file: content, overlay: string(replace)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}

// clocked is a gateway with a wall clock that the test sets.
type clocked struct {
	*Gateway
	t     *testing.T
	clock string // the file
	alone []string
}

func newClocked(t *testing.T, build Build) *clocked {
	dir := t.TempDir()
	c := &clocked{t: t, clock: filepath.Join(dir, "clock")}
	c.alone = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "FENCEPOST_DATA_DIR=" + filepath.Join(dir, "data"), "TEST_CLOCK=" + c.clock}
	c.Gateway = &Gateway{Name: "gateway", build: build, env: c.alone}
	t.Cleanup(func() {
		if c.process != nil {
			c.Kill()
		}
		if err := c.Flaws(); err != nil || t.Failed() {
			t.Logf("%v\n%s", err, c.Log())
		}
	})
	c.set(0)
	return c
}

// set has the wall clock be ahead by so much. A gateway that runs says so by the date of its answers when it returns.
func (c *clocked) set(ahead time.Duration) {
	c.t.Helper()
	if err := os.WriteFile(c.clock+".new", fmt.Append(nil, int64(ahead/time.Second)), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(c.clock+".new", c.clock); err != nil {
		c.t.Fatal(err)
	}
	for deadline := time.Now().Add(startTimeout); c.process != nil && c.Running(); {
		answer, err := http.Get(c.URL() + "/livez")
		if err != nil {
			c.t.Fatal(err)
		}
		answer.Body.Close()
		date, err := http.ParseTime(answer.Header.Get("Date"))
		if err == nil && time.Until(date.Add(-ahead)).Abs() < time.Minute {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the clock of the gateway is not set: %s, %v", date, err)
		}
		Pause(10 * time.Millisecond)
	}
}

func (c *clocked) start() {
	c.t.Helper()
	if err := c.Start(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clocked) stop() {
	c.t.Helper()
	if err := c.Stop(); err != nil {
		c.t.Fatal(err)
	}
}

// asCluster has the next start be that of a cluster of one.
func (c *clocked) asCluster() {
	port, err := redistest.FreePort()
	if err != nil {
		c.t.Fatal(err)
	}
	c.env = append(c.alone[:len(c.alone):len(c.alone)], fmt.Sprintf("FENCEPOST_STORE=raft://127.0.0.1:%d", port))
}

// asked is how a request is to be answered.
func (c *clocked) asked(status int, method, path, lease, body string, headers ...string) Answer {
	c.t.Helper()
	client := NewClient(1)
	defer client.Close()
	if lease != "" {
		headers = append(headers, "Lease-Id", lease)
	}
	a, err := client.do(c.t.Context(), method, c.URL()+path, body, headers...)
	if err != nil || a.Status != status {
		c.t.Errorf("%s %s: %s, %v; want %d", method, path, a, err, status)
	}
	return a
}

// keeps has the gateway promise something for a minute, and fails the test unless all of that is kept once between has happened.
func (c *clocked) keeps(between func()) {
	c.t.Helper()
	job := c.asked(201, "POST", "/locks/job", "", `{"ttl_ms":60000,"max_hold_ms":60000}`)
	delayed := c.asked(201, "POST", "/locks/delayed", "", `{"lock_delay_ms":60000}`)
	c.asked(204, "DELETE", "/locks/delayed", "", "", "If-Match", fmt.Sprintf("%q", fmt.Sprint(delayed.Lease.Token)))
	noticed := c.asked(201, "POST", "/locks/noticed", "", `{"ttl_ms":60000}`)
	c.asked(202, "DELETE", "/locks/noticed?notice_ms=60000", "", "", "If-Match", fmt.Sprintf("%q", fmt.Sprint(noticed.Lease.Token)))
	between()
	if late := time.Since(job.Sent); late > 50*time.Second {
		c.t.Fatalf("the machine is too slow: it took %s", late)
	}
	for _, name := range []string{"job", "delayed", "noticed"} {
		c.asked(423, "POST", "/locks/"+name, "", "")
	}
	c.asked(200, "PUT", "/locks/job", job.Lease.ID, "")
	if after := c.asked(201, "POST", "/locks/after", "", ""); after.Lease.Token <= noticed.Lease.Token {
		c.t.Errorf("token %d after %d", after.Lease.Token, noticed.Lease.Token)
	}
}

func (c *clocked) again() { c.stop(); c.start() }

// P1, P2, P9: no wall clock that is set ends what was promised, whichever driver made the promise and which one goes on; a clock that is
// right starts; and the quarantine of a restored copy begins with the next start.
func TestSystemClocksThatAreSet(t *testing.T) {
	build := movable(t)
	for name, play := range map[string]func(c *clocked){
		"a cluster that stood still becomes one gateway": func(c *clocked) {
			c.asCluster()
			c.start()
			c.asked(201, "POST", "/locks/before", "", "")
			c.stop()
			c.set(time.Hour) // so long
			c.start()
			c.keeps(func() {
				c.stop()
				c.env = c.alone
				c.start()
			})
		},
		"one gateway whose clock was set becomes a cluster": func(c *clocked) {
			c.start()
			c.set(time.Hour)
			c.keeps(func() {
				c.stop()
				c.asCluster()
				c.start()
			})
		},
		"set forward while it runs": func(c *clocked) {
			c.start()
			c.keeps(func() { c.set(time.Hour); c.again() })
		},
		"set back while it is down": func(c *clocked) {
			c.start()
			c.keeps(func() { c.stop(); c.set(-time.Hour); c.start() })
		},
		"a first start in 2010": func(c *clocked) {
			c.set(time.Until(time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC)))
			c.start()
			c.keeps(func() { c.set(0); c.again() })
		},
		"restored with a clock that is behind": func(c *clocked) {
			c.start()
			kept := c.asked(201, "POST", "/locks/kept", "", `{"ttl_ms":60000}`)
			c.stop()
			c.set(-10 * time.Minute)
			path, err := Binary(build)
			if err != nil {
				c.t.Fatal(err)
			}
			command := exec.Command(path, "restored", "-longest-ttl", "5s")
			command.Env = c.alone
			if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), "in the first 5s after the next start") {
				c.t.Errorf("%s, %v", out, err)
			}
			c.set(0)
			c.start()
			c.asked(503, "POST", "/locks/since", "", "")
			c.asked(200, "PUT", "/locks/kept", kept.Lease.ID, "")
			for deadline := time.Now().Add(startTimeout); !c.said("the quarantine of the restored copy is over"); Pause(50 * time.Millisecond) {
				if time.Now().After(deadline) {
					c.t.Fatal("the quarantine does not end")
				}
			}
			c.asked(201, "POST", "/locks/since", "", "")
			if !c.said("the data is a restored copy") {
				c.t.Error("the log does not say that it began")
			}
		},
	} {
		t.Run(name, func(t *testing.T) { play(newClocked(t, build)) })
	}
}
