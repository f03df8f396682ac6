package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// The files of a gateway that serves are taken away, or another copy is put in their place: it ends with status 1 at the next
// write, of the snapshots at a write within a second, or at the next end, touches nothing there, and no other holder is granted the lock.
func TestSystemFilesThatGoAway(t *testing.T) {
	t.Parallel()
	for kind, store := range map[string]func(m *member) string{
		"embedded":         func(*member) string { return "FENCEPOST_STORE=embedded" },
		"a cluster of one": func(m *member) string { return "FENCEPOST_STORE=raft://" + m.addr },
	} {
		for what, act := range map[string]struct {
			command string // of a shell, in the data directory; BACKUP is a copy of it from before
			backup  bool   // the next start has what that has
			refused string // or is refused with this
		}{
			"the log is moved":          {"mv log log.old", false, "there is no log in "},
			"the snapshots are moved":   {"mv snapshots ../snapshots", false, ""},
			"a backup is put in place":  {"mkdir ../old && mv * ../old && cp -a \"$BACKUP\"/. .", true, ""},
			"the log is another backup": {"rm -rf log && cp -a \"$BACKUP\"/log .", true, ""},
			"all is removed":            {"rm -rf ./*", false, ""},
		} {
			for _, write := range []bool{true, false} {
				name := kind + ", " + what
				if write {
					name += ", and a request comes"
				}
				t.Run(name, func(t *testing.T) {
					m := loner(t)
					setting, dir, backup := store(m), filepath.Join(m.dir, "fencepost-data"), filepath.Join(m.dir, "backup")
					must(t, m.start(setting))
					m.says(ready)
					_, err := acquireAt(t.Context(), m.gateway, "before", `{"ttl_ms":3600000}`)
					must(t, err, exec.Command("cp", "-a", dir, backup).Run())
					_, err = acquireAt(t.Context(), m.gateway, "after", `{"ttl_ms":3600000}`)
					must(t, err)

					cmd := exec.Command("sh", "-ec", act.command)
					cmd.Dir, cmd.Env = dir, append(os.Environ(), "BACKUP="+backup)
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					there := listed(t, dir)
					if write {
						next(t, m.gateway, what == "the snapshots are moved")
					}
					var ended *exec.ExitError
					if err := m.gateway.end(syscall.SIGTERM); !errors.As(err, &ended) || ended.ExitCode() != 1 {
						t.Errorf("it ends with %v", err)
					}
					if said := m.gateway.warnings(); !strings.Contains(said, "while this process used it") {
						t.Errorf("it says\n%s", said)
					}
					if is := listed(t, dir); is != there {
						t.Errorf("there is\n%s\nand was\n%s", is, there)
					}
					if act.refused != "" {
						refused(t, m.dir, act.refused, setting)
						return
					}
					if what == "all is removed" { // nothing can tell
						return
					}
					must(t, m.start(setting))
					m.says(ready)
					for name, kept := range map[string]bool{"before": true, "after": !act.backup} {
						status, body, err := request(http.MethodPost, "http://"+m.gateway.addr+"/locks/"+name, "", nil)
						if err != nil || kept != (status == http.StatusLocked) {
							t.Errorf("%s is answered %d, %s, %v", name, status, body, err)
						}
					}
				})
			}
		}
	}
}

// next has a gateway that is to end with the next write get one. late says that those of a second may be acknowledged before.
func next(t *testing.T, g *gatewayProcess, late bool) {
	t.Helper()
	for n, begun := 0, time.Now(); ; n++ {
		status, body, err := request(http.MethodPost, fmt.Sprintf("http://%s/locks/next%d", g.addr, n), `{"ttl_ms":60000}`, nil)
		if err != nil || status == http.StatusServiceUnavailable {
			break
		}
		if !late || time.Since(begun) > patience {
			t.Errorf("the next request is answered %d, %s", status, body)
			break
		}
	}
	select {
	case <-g.exited:
	case <-time.After(patience):
		t.Error("it goes on")
	}
}

// listed returns the names and sizes of all that is in a directory.
func listed(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-type", "f", "-size", "+0", "-printf", "%p %s\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A node of three that is killed while it takes over a snapshot of the leader starts again by itself, also where another node
// leads by then: its log ends before the snapshot.
func TestSystemKilledWhileItTookOverASnapshot(t *testing.T) {
	t.Parallel()
	var list []string
	for range 3 {
		list = append(list, redistest.FreeAddr(t))
	}
	var all []*member
	for _, addr := range list {
		m := &member{t: t, addr: addr, dir: t.TempDir(), env: []string{
			"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_STORE=raft://" + strings.Join(list, ","), "FENCEPOST_CLUSTER_ADDR=" + addr,
		}}
		t.Cleanup(m.stop)
		must(t, m.start())
		all = append(all, m)
	}
	for _, m := range all {
		m.says(ready)
	}
	snapshots := func(m *member) []string {
		names, err := filepath.Glob(filepath.Join(m.dir, "fencepost-data", "snapshots", "*.snapshot"))
		must(t, err)
		return names
	}
	late, others := all[2], all[:2]
	must(t, late.gateway.end(syscall.SIGTERM))
	// More than a node keeps of its log beside a snapshot, and as many bytes as one is taken after.
	var metadata []string
	for i := range 16 {
		metadata = append(metadata, fmt.Sprintf(`"key%d":"%s"`, i, strings.Repeat("x", 256)))
	}
	body := `{"ttl_ms":3600000,"metadata":{` + strings.Join(metadata, ",") + `}}`
	var asking sync.WaitGroup
	var next atomic.Int64
	for range 4 {
		asking.Go(func() {
			for len(snapshots(others[0])) == 0 || len(snapshots(others[1])) == 0 {
				name := fmt.Sprint("n", next.Add(1))
				if _, err := acquireAt(t.Context(), others[0].gateway, name, body); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	asking.Wait()
	before := len(snapshots(late))
	must(t, late.start())
	for deadline := time.Now().Add(patience); len(snapshots(late)) == before; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is sent no snapshot")
		}
	}
	late.stop()
	if found, err := late.run([]string{"doctor"}); !strings.Contains(found, "was stopped while it took over a snapshot") {
		t.Errorf("it was killed too late, or the doctor does not see it: %v\n%s", err, found)
	}
	for _, m := range others { // so that another node leads
		must(t, m.gateway.end(syscall.SIGTERM))
		must(t, m.start())
		m.says(ready)
	}
	must(t, late.start())
	late.says(ready)
	if said := late.gateway.warnings(); !strings.Contains(said, "the log before that is dropped") {
		t.Errorf("it says\n%s", said)
	}
	status, answer, err := request(http.MethodPost, "http://"+late.gateway.addr+"/locks/n1", "", nil)
	if err != nil || status != http.StatusLocked {
		t.Errorf("a lock that is held: %d, %s, %v", status, answer, err)
	}
	late.members(1, "FENCEPOST_STORE=raft://"+strings.Join(list, ","), all...)
}

// With a mistyped directory a gateway begins anew, and its log warns of it with the directory; where a store is expected, it does
// not start, and makes nothing.
func TestANewStoreIsSeen(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"embedded", "raft://" + redistest.FreeAddr(t)} {
		m := loner(t)
		typo := filepath.Join(m.dir, "typo", "deeper")
		settings := []string{"FENCEPOST_STORE=" + store, "FENCEPOST_DATA_DIR=typo/deeper"}
		refused(t, m.dir, "there is no store in "+typo+", and FENCEPOST_EXPECT_STORE is true", append(settings, "FENCEPOST_EXPECT_STORE=true")...)
		if says, err := m.run([]string{"doctor"}, append(settings, "FENCEPOST_EXPECT_STORE=true")...); err == nil || !strings.Contains(says, "there is no store in "+typo) {
			t.Errorf("%s: the doctor says %v, %s", store, err, says)
		}
		if _, err := os.Stat(filepath.Dir(typo)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: something was made: %v", store, err)
		}
		must(t, m.start(settings...))
		m.says(ready)
		_, err := acquireAt(t.Context(), m.gateway, "a", `{"ttl_ms":3600000}`)
		must(t, err)
		warns := func() bool {
			for line := range strings.Lines(m.gateway.warnings()) {
				if strings.Contains(line, `"WARN"`) && strings.Contains(line, "a new, empty ") && strings.Contains(line, `"directory":"`+typo+`"`) {
					return true
				}
			}
			return false
		}
		if !warns() {
			t.Errorf("%s: nothing warns of a new store:\n%s", store, m.gateway.warnings())
		}
		must(t, m.gateway.end(syscall.SIGTERM), m.start(append(settings, "FENCEPOST_EXPECT_STORE=true")...))
		m.says(ready)
		if warns() {
			t.Errorf("%s: the second start warns\n%s", store, m.gateway.warnings())
		}
	}
}
