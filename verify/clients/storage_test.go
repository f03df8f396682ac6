package clients

import (
	"context"
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

	"fencepost/fence/fencetest"
	"fencepost/internal/redis/redistest"
	"fencepost/verify/system"
)

// startSample starts the storage of docs/clients.md, and returns its URL.
func startSample(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^```python storage\n(.*?)^```$").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no storage")
	}
	path := filepath.Join(t.TempDir(), "storage.py")
	if err := os.WriteFile(path, block[1], 0o600); err != nil {
		t.Fatal(err)
	}
	port, err := redistest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "python3", path)
	cmd.Env = append(os.Environ(), fmt.Sprintf("PORT=%d", port))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { cancel(); <-ended })
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	for late := time.After(patience); ; {
		answer, err := http.Get(url)
		if err == nil {
			answer.Body.Close()
			return url
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the storage has ended: %v", err)
		case <-late:
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The storage that docs/clients.md has to try the programs with lets nothing through, and the programs
// write to it.
func TestSampleStorage(t *testing.T) {
	t.Parallel()
	url := startSample(t)
	report, err := fencetest.Attack(t.Context(), fencetest.URL{URL: url}, fencetest.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Findings) > 0 || report.Blind {
		t.Errorf("the attack: blind %t, %q", report.Blind, report.Findings)
	}
	page, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	for _, l := range languages[:2] { // bash and Python: the others write in the same way
		dir := t.TempDir()
		if err := l.extract(string(page), dir, documentedTTL); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), l.command, l.file)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "FENCEPOST="+s.Gateways[0].URL(), "STORAGE="+url+"/report", "no_proxy=*")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", l.fence, err, said)
		}
		written, err := fencetest.URL{URL: url}.Read(t.Context(), "report")
		if want := fmt.Sprintf("part %d by ", parts); err != nil || !strings.HasPrefix(written, want) {
			t.Errorf("%s: %q is written, %v", l.fence, written, err)
		}
	}
}
