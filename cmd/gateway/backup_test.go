package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// longest is the longest TTL that clients use in these tests, in place of the 5 minutes of the document.
const longest = 4 * time.Second

// backups is a machine whose store is backed up and restored. Clients use it before, between and after.
type backups struct {
	*ledger
	s              *service
	kept, released holding // of the copy
	since          holding // of after the copy
}

func newBackups(t *testing.T, s *service) *backups {
	t.Helper()
	b := &backups{ledger: newLedger(t), s: s}
	must(t, s.start())
	b.kept, b.released = b.acquires(s, "kept", time.Hour), b.acquires(s, "released", time.Hour)
	b.releases(s, "ended", b.acquires(s, "ended", longest))
	return b
}

// goesOn is what clients do after the copy.
func (b *backups) goesOn() {
	b.t.Helper()
	b.releases(b.s, "released", b.released)
	b.releases(b.s, "ended", b.acquires(b.s, "ended", longest))
	b.since = b.acquires(b.s, "since", longest)
}

// restored checks what the documents promise of a copy that was put back: what it has is held and can be renewed, what was released since too,
// nothing new is granted while somebody may believe in a lease that it does not have, and tokens go on growing.
func (b *backups) restored() {
	b.t.Helper()
	b.answers(b.s, http.MethodGet, "/locks", nil, http.StatusOK, fmt.Sprintf(`{"name":"kept","held":true,"mode":"exclusive","fencing_token":%d`, b.kept.Token))
	b.answers(b.s, http.MethodGet, "/locks", nil, http.StatusOK, fmt.Sprintf(`{"name":"released","held":true,"mode":"exclusive","fencing_token":%d`, b.released.Token))
	b.answers(b.s, http.MethodGet, "/locks/since", nil, http.StatusOK, `"held":false`)
	b.answers(b.s, http.MethodPost, "/locks/since", nil, http.StatusServiceUnavailable, `"code":"quarantined"`)
	b.answers(b.s, http.MethodPost, "/locks/new", nil, http.StatusServiceUnavailable, `"code":"quarantined"`)
	b.answers(b.s, http.MethodPost, "/locks/kept", nil, http.StatusLocked, `"code":"locked"`)
	b.answers(b.s, http.MethodPut, "/locks/kept", map[string]string{"Lease-Id": b.kept.LeaseID}, http.StatusOK, "")
	b.answers(b.s, http.MethodPut, "/locks/since", map[string]string{"Lease-Id": b.since.LeaseID}, http.StatusPreconditionFailed, `"reason":"unknown"`)
	b.answers(b.s, http.MethodDelete, "/locks/released", map[string]string{"If-Match": fmt.Sprintf(`"%d"`, b.released.Token)}, http.StatusNoContent, "")
	b.releases(b.s, "kept", b.kept)
	b.grantsAll()
}

// grantsAll checks that each name is granted once more, with a higher token.
func (b *backups) grantsAll() {
	b.t.Helper()
	for _, name := range []string{"kept", "released", "ended", "since", "new"} {
		b.acquires(b.s, name, time.Hour)
	}
}

// states of a gateway in which somebody backs it up or restores it.
var states = map[string]func(s *service) error{
	"running": func(*service) error { return nil },
	"stopped": func(s *service) error { return s.end(syscall.SIGTERM) },
	"crashed": func(s *service) error { s.end(syscall.SIGKILL); return nil },
}

// loses has a gateway lose its disk.
func loses(s *service) error {
	s.end(syscall.SIGKILL)
	return os.RemoveAll(s.o.path("var/lib/fencepost"))
}

// embeddedBackups backs up and restores the embedded store, and a cluster of one, by the commands of the document.
func embeddedBackups(t *testing.T, blocks []string) {
	for _, store := range []string{"embedded", "raft"} {
		for state, enter := range states {
			t.Run(store+", "+state, func(t *testing.T) {
				t.Parallel()
				o := newOperator(t)
				s := o.gateway(storeOf(t, store)...)
				b := newBackups(t, s)
				must(t, enter(s))
				putBack(o, b, blocks, nil, enter)
			})
		}
	}
	t.Run("the disk is lost", func(t *testing.T) {
		t.Parallel()
		o := newOperator(t)
		s := o.gateway()
		putBack(o, newBackups(t, s), blocks, nil, loses)
	})
	t.Run("no copy", func(t *testing.T) {
		t.Parallel()
		o := newOperator(t)
		s := o.gateway()
		b := newBackups(t, s)
		o.types(blocks[2], true)
		b.answers(s, http.MethodPut, "/locks/kept", map[string]string{"Lease-Id": b.kept.LeaseID}, http.StatusOK, "")
		backup, _ := backupAndCheck(t, blocks)
		leavesNoHalfCopy(o, backup, "fencepost-*")
		systemctl := filepath.Join(o.shims, "systemctl")
		must(t, os.Rename(systemctl, systemctl+".well"))
		o.shim("systemctl", "exit 1")
		o.types(blocks[0], true)
		if copies, err := filepath.Glob(o.path("var/backups/*")); err != nil || copies != nil {
			t.Errorf("a gateway that can't be stopped is copied: %v, %v", copies, err)
		}
		must(t, os.Rename(systemctl+".well", systemctl))
		b.answers(s, http.MethodPut, "/locks/kept", map[string]string{"Lease-Id": b.kept.LeaseID}, http.StatusOK, "")
	})
	t.Run("an empty directory", func(t *testing.T) {
		t.Parallel()
		o := newOperator(t)
		s := o.gateway()
		b := newBackups(t, s)
		b.goesOn()
		b.releases(s, "kept", b.kept) // an hour is longer than the longest TTL
		s.end(syscall.SIGKILL)
		o.types(blocks[1], false, "5m", fmt.Sprint(longest.Seconds()))
		b.answers(s, http.MethodGet, "/locks", nil, http.StatusOK, `{"locks":[]}`)
		b.grantsAll()
	})
	t.Run("a copy of a directory in use", func(t *testing.T) {
		t.Parallel()
		copiesInUse(t)
	})
}

// leavesNoHalfCopy has copying fail: what is there of the copy is not to be taken for one later.
func leavesNoHalfCopy(o *operator, block, copies string) {
	o.t.Helper()
	o.shim("cp", `mkdir "$3"; echo there is no room >&2; exit 1`)
	said := o.types(block, false)
	left, err := filepath.Glob(o.path("var/backups/" + copies))
	if must(o.t, err); left != nil || !strings.Contains(said, "there is no room") {
		o.t.Errorf("%v is left:\n%s", left, said)
	}
	must(o.t, os.Remove(filepath.Join(o.shims, "cp")))
}

func storeOf(t *testing.T, kind string) []string {
	if kind != "raft" {
		return nil
	}
	return []string{"FENCEPOST_STORE=raft://" + redistest.FreeAddr(t)}
}

// backupAndCheck returns the two parts of the first block: what copies the directory, and what looks at the copy, whose status may be
// another than 0.
func backupAndCheck(t *testing.T, blocks []string) (backup, check string) {
	t.Helper()
	const begin = "sudo FENCEPOST_DATA_DIR="
	backup, check, found := strings.Cut(blocks[0], begin)
	if !found || strings.Count(check, "\n") != 1 {
		t.Fatalf("the last command does not look at the copy:\n%s", blocks[0])
	}
	return backup, begin + check
}

// putBack copies the directory, looks at the copy, and puts it back later. between is what is done after the copy, if anything is, and enter what
// becomes of the gateway before the restore.
func putBack(o *operator, b *backups, blocks []string, between func(), enter func(s *service) error) {
	o.t.Helper()
	const shown = "\nfor copy in /var/backups/*; do echo copy=$copy; done"
	backup, check := backupAndCheck(o.t, blocks)
	out := o.types(backup+shown, false)
	path := regexp.MustCompile(`copy=(\S+)`).FindStringSubmatch(out)
	if path == nil {
		o.t.Fatalf("there is no copy:\n%s", out)
	}
	if between != nil {
		between()
	}
	b.goesOn()
	if out := o.types(check, true, "$COPY", path[1]); !regexp.MustCompile(`ok +file +`).MatchString(out) {
		o.t.Errorf("of the copy the doctor says\n%s", out)
	}
	must(o.t, enter(b.s))
	o.types(blocks[2], false, "-longest-ttl 5m", "-longest-ttl "+longest.String())
	b.restored()
}

// copiesInUse copies the directory of a gateway while it is used: each copy is refused, with a message that docs/format.md has, or is as good as
// after a crash.
func copiesInUse(t *testing.T) {
	o := newOperator(t)
	s := o.gateway()
	b := newBackups(t, s)
	ended := make(chan error, 4)
	stop := make(chan struct{})
	for i := range cap(ended) {
		go func() {
			for {
				h, err := acquireAt(t.Context(), s.gatewayProcess, fmt.Sprint("load", i), `{"ttl_ms":2000}`)
				if err == nil {
					err = releaseAt(s.gatewayProcess, fmt.Sprint("load", i), h)
				}
				select {
				case <-stop:
					ended <- err
					return
				default:
				}
				if err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	var copies []string
	for i := range 5 {
		copied := o.path(fmt.Sprint("copy", i))
		if out, err := exec.Command("cp", "-a", o.path("var/lib/fencepost"), copied).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		copies = append(copies, copied)
	}
	close(stop)
	for range cap(ended) {
		must(t, <-ended)
	}
	must(t, s.stop())
	damage := regexp.MustCompile(`the log is damaged|the snapshot is damaged|entries .* are missing|ends with entry|can't follow entry`)
	for _, copied := range copies {
		cmd := exec.Command("gateway", "restored", "-longest-ttl", longest.String())
		cmd.Env = append(withoutSettings(), "FENCEPOST_DATA_DIR="+copied)
		out, err := cmd.CombinedOutput()
		if err != nil {
			if !damage.Match(out) {
				t.Errorf("%s is refused with %v:\n%s", filepath.Base(copied), err, out)
			}
			continue
		}
		s.env = append(s.env, "FENCEPOST_DATA_DIR="+copied)
		must(t, s.start())
		b.answers(s, http.MethodPut, "/locks/kept", map[string]string{"Lease-Id": b.kept.LeaseID}, http.StatusOK, "")
		must(t, s.stop())
	}
}

// redisBackups backs up and restores a Redis by the commands of the document, while a gateway runs.
func redisBackups(t *testing.T, blocks []string) {
	for _, crashed := range []bool{false, true} {
		t.Run(fmt.Sprint("crashed: ", crashed), func(t *testing.T) {
			t.Parallel()
			o := newOperator(t)
			server := redistest.Start(t, strictRedis...)
			o.redis(server)
			admin := server.Client()
			defer admin.Close()
			dir, err := admin.ConfigGet(t.Context(), "dir").Result()
			must(t, err)
			must(t, os.Symlink(dir["dir"], o.path("var/lib/redis")))
			s := o.gateway("FENCEPOST_STORE="+server.URL(), "FENCEPOST_QUARANTINE="+longest.String())
			b := newBackups(t, s)
			if crashed {
				must(t, server.Kill())
			} else {
				o.types(blocks[1], true) // without a copy it changes nothing
				leavesNoHalfCopy(o, blocks[0], "redis-*")
				must(t, admin.BgRewriteAOF(t.Context()).Err()) // it is waited for
			}
			o.types(blocks[0], crashed)
			if crashed {
				must(t, server.Restart())
			} else if got := admin.ConfigGet(t.Context(), "auto-aof-rewrite-percentage").Val(); got["auto-aof-rewrite-percentage"] != "100" {
				t.Errorf("after the copy: %v", got)
			}
			b.goesOn()
			if crashed {
				must(t, os.RemoveAll(o.path("var/lib/redis/appendonlydir"))) // it loses its disk
			}
			o.types(blocks[1], false)
			b.restored()
		})
	}
}

// redis has redis-cli and systemctl be about a server.
func (o *operator) redis(server *redistest.Server) {
	o.t.Helper()
	cli, err := exec.LookPath("redis-cli")
	must(o.t, err)
	_, port, _ := strings.Cut(server.Addr(), ":")
	o.shim("redis-cli", "exec "+cli+" -p "+port+` "$@"`)
	o.units["redis-server"] = unit{start: server.Restart, stop: server.Stop}
}
