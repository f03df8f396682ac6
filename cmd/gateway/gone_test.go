package main

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The files of a gateway that serves are taken away, or another copy is put in their place: it ends with status 1 at the next
// write or the next end, touches nothing there, and no other holder is granted the lock.
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
						status, body, err := request(http.MethodPost, "http://"+m.gateway.addr+"/locks/next", `{"ttl_ms":60000}`, nil)
						if err == nil && status != http.StatusServiceUnavailable {
							t.Errorf("the next request is answered %d, %s", status, body)
						}
						select {
						case <-m.gateway.exited:
						case <-time.After(patience):
							t.Error("it goes on")
						}
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

// listed returns the names and sizes of all that is in a directory.
func listed(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-type", "f", "-size", "+0", "-printf", "%p %s\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
