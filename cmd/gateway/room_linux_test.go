package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// withinMounts says that a test has mounts of its own.
const withinMounts = "FENCEPOST_TEST_MOUNTS"

// mounting runs a test again in a process that may mount what it likes, and whose mounts end with it. It reports
// whether this is that process.
func mounting(t *testing.T) bool {
	t.Helper()
	if os.Getenv(withinMounts) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), withinMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Fatalf("this test mounts file systems; run it as root, or allow user namespaces: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// mountRoom mounts a file system with so many MiB.
func mountRoom(t *testing.T, size int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", size)); err != nil {
		t.Fatalf("this test mounts file systems; run it as root, or allow user namespaces: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	return dir
}

// A disk is too small for the first start of a gateway, which says so, or is large enough for all the
// later ones, whether the gateway was killed or asked to end.
func TestSystemSmallDisks(t *testing.T) {
	if !mounting(t) {
		return
	}
	const need = 56 // docs/reference.md
	for size := 8; size <= need+16; size += 4 {
		t.Run(fmt.Sprint(size, " MiB"), func(t *testing.T) {
			d := &smallDisk{mount: mountRoom(t, size)}
			if size < need {
				d.refuses(t, size)
				return
			}
			d.goesOn(t)
			if size == need {
				d.killedUnderLoad(t)
				d.isFull(t)
			}
		})
	}
}

// smallDisk is where one gateway after the other runs.
type smallDisk struct {
	mount string
	held  []string // names that have been granted
}

func (d *smallDisk) env() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_DATA_DIR=" + filepath.Join(d.mount, "data")}
}

// run runs the gateway to its end.
func (d *smallDisk) run(t *testing.T, args ...string) (out string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "gateway", args...)
	cmd.Env = d.env()
	output, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatal(err)
	}
	return string(output), cmd.ProcessState.ExitCode()
}

func (d *smallDisk) refuses(t *testing.T, size int) {
	if g, err := launch(d.mount, d.env()); err == nil {
		g.end(syscall.SIGKILL)
		d.start(t).end(syscall.SIGKILL) // or it says why not
		t.Fatal("it starts with less than is needed")
	}
	for _, args := range [][]string{{"doctor"}, nil} {
		out, status := d.run(t, args...)
		said := fmt.Sprintf("%s/data: a new store needs 56.0 MiB, and its file system has %d.0 MiB free", d.mount, size)
		if status != 1 || !strings.Contains(out, said) {
			t.Errorf("gateway %v: exit status %d, and it does not say %q:\n%s", args, status, said, out)
		}
	}
	if left, err := filepath.Glob(filepath.Join(d.mount, "data", "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("the refused start leaves %v, %v", left, err)
	}
}

// start starts a gateway, which has to have all that was granted, and has it grant one name more.
func (d *smallDisk) start(t *testing.T) *gatewayProcess {
	t.Helper()
	g, err := launch(d.mount, d.env())
	if err != nil {
		out, status := d.run(t)
		t.Fatalf("after %d starts: %v; exit status %d:\n%s", len(d.held), err, status, out)
	}
	for _, name := range d.held {
		if status, body, err := request(http.MethodGet, "http://"+g.addr+"/locks/"+name, "", nil); err != nil || !strings.Contains(string(body), `"held":true`) {
			t.Errorf("%s was granted, and is %d %s, %v", name, status, body, err)
		}
	}
	name := fmt.Sprint("n", len(d.held))
	if _, err := acquireAt(t.Context(), g, name, `{"ttl_ms":3600000}`); err != nil {
		t.Errorf("%s is not granted: %v", name, err)
	}
	d.held = append(d.held, name)
	return g
}

func (d *smallDisk) goesOn(t *testing.T) {
	const kill, stop = syscall.SIGKILL, syscall.SIGTERM
	for _, signal := range []syscall.Signal{kill, kill, kill, stop, stop, kill, kill, stop} {
		g := d.start(t)
		if err := g.end(signal); (err != nil) != (signal == kill) {
			t.Errorf("on %s it ends with %v:\n%s", signal, err, g.warnings())
		}
	}
}

// killedUnderLoad fills more than the whole journal, and kills the gateway while it is at it.
func (d *smallDisk) killedUnderLoad(t *testing.T) {
	for range 3 {
		g := d.start(t)
		const clients, enough = 4, 2500 // each has a flush of its own, or shares it
		ended, reached := make(chan error, clients), make(chan struct{}, clients)
		for i := range clients {
			name := fmt.Sprintf("load%d-%d", len(d.held), i)
			go func() {
				var err error
				for n := 0; err == nil; n++ {
					if n == enough {
						reached <- struct{}{}
					}
					var h holding
					if h, err = acquireAt(t.Context(), g, name, `{"ttl_ms":60000}`); err == nil {
						err = releaseAt(g, name, h)
					}
				}
				ended <- err
			}()
		}
		over := 0
		for at := 0; at < clients && over == 0; {
			select {
			case <-reached:
				at++
			case err := <-ended:
				t.Errorf("under load: %v\n%s", err, g.warnings())
				over++
			}
		}
		g.end(syscall.SIGKILL)
		for ; over < clients; over++ {
			<-ended // nobody answers any more
		}
	}
	must(t, d.start(t).end(syscall.SIGTERM))
}

// isFull ends a gateway on a disk that others have filled. Once there is room again it goes on.
func (d *smallDisk) isFull(t *testing.T) {
	g := d.start(t)
	filler := fill(t, d.mount)
	err := g.end(syscall.SIGTERM)
	if status := g.cmd.ProcessState.ExitCode(); status != 1 || !strings.Contains(g.warnings(), "the shutdown was not clean") || !strings.Contains(g.warnings(), "make room") {
		t.Errorf("on a full disk it ends with %v:\n%s", err, g.warnings())
	}
	must(t, os.Remove(filler))
	must(t, d.start(t).end(syscall.SIGTERM))
}

// fill takes all the room of a file system, and returns the file that has it.
func fill(t *testing.T, dir string) (filler string) {
	t.Helper()
	filler = filepath.Join(dir, "filler")
	file, err := os.Create(filler)
	must(t, err)
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	must(t, file.Close())
	return filler
}

// The commands that back up the embedded store do so on a disk that others have filled, and the copy can be restored once there is room again.
func TestSystemBackupOfAFullDisk(t *testing.T) {
	if !mounting(t) {
		return
	}
	var blocks []string
	for _, b := range shellBlocks(t, operations) {
		if strings.HasSuffix(b.section, ": Backup of the embedded store") {
			blocks = append(blocks, b.text)
		}
	}
	disk := mountRoom(t, 96)
	o := newOperator(t)
	must(t, os.Remove(o.path("var/lib")), os.Symlink(disk, o.path("var/lib")))
	s := o.gateway()
	b := newBackups(t, s)
	filler := fill(t, disk)
	s.mayFail = true // it has no room for its last snapshot, nor for the start behind the copy
	putBack(o, b, blocks, func() {
		if said := s.warnings(); !strings.Contains(said, `"check":"space"`) {
			t.Errorf("the disk was not full:\n%s", said)
		}
		s.mayFail = false
		must(t, os.Remove(filler), s.stop(), s.start())
	}, states["running"])
}
