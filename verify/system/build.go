package system

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Build says how a program is built.
type Build struct {
	Program string // below cmd; default: gateway
	Tags    string // build tags, separated by commas
	LDFlags string // flags of the linker
	Overlay string // a file that tells of files in place of others, as go build -overlay takes it
	Race    bool   // with the race detector, which ends up in the log: see Gateway.Stop
}

var (
	buildsMu sync.Mutex
	builds   = map[Build]*os.File{}
)

// Binary returns the path of the program: go run links it and keeps it, so that it is built
// once for all processes. The file has no name any more: it is there for as long as this
// process, whatever becomes of it.
func Binary(b Build) (path string, err error) {
	buildsMu.Lock()
	defer buildsMu.Unlock()
	if builds[b] == nil {
		if builds[b], err = build(b); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), builds[b].Fd()), nil
}

func build(b Build) (*os.File, error) {
	dir, err := os.MkdirTemp("", "fencepost-build")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := cmp.Or(b.Program, "gateway")
	path := filepath.Join(dir, program)
	args := []string{"run", "-exec", "cp", "-tags", b.Tags, "-ldflags", b.LDFlags}
	if b.Overlay != "" {
		args = append(args, "-overlay", b.Overlay)
	}
	if b.Race {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "fencepost/cmd/"+program, path)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building %s: %w\n%s", program, err, out)
	}
	return os.Open(path)
}
