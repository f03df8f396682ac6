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

// documentedCommand returns how a program is run, from the top of the sources: a line of its head says so, and docs/clients.md too,
// there without the variables.
func documentedCommand(t *testing.T, file string) string {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(examples, file))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^(?:#|//)   ((?:[A-Z]+=\S+ )*([a-z0-9]+ examples/\S+))$`).FindSubmatch(program)
	if line == nil || !strings.HasSuffix(string(line[2]), "/"+file) {
		t.Fatalf("the head of %s does not say how it is run", file)
	}
	page, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "`"+string(line[2])+"`") {
		t.Errorf("docs/clients.md does not say `%s`", line[2])
	}
	return string(line[1])
}

// The commands that are documented are those that the other tests run.
func TestDocumentedCommands(t *testing.T) {
	for _, l := range languages {
		if want := "STORAGE=http://127.0.0.1:8090/report " + l.command + " examples/" + l.file; documentedCommand(t, l.file) != want {
			t.Errorf("%s is documented as %s", want, documentedCommand(t, l.file))
		}
	}
}

// startSample starts the storage of examples, and returns its URL.
func startSample(t *testing.T) string {
	t.Helper()
	port, err := redistest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+documentedCommand(t, "storage.py"))
	cmd.Dir = "../.."
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

// The storage to try the programs with lets nothing through, and the programs write to it, by the command that is documented.
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
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	for _, l := range languages[:2] { // bash and Python: the others write in the same way
		command := strings.Replace(documentedCommand(t, l.file), "http://127.0.0.1:8090/", url+"/", 1)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "FENCEPOST="+s.Gateways[0].URL(), "no_proxy=*")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", l.name, err, said)
		}
		written, err := fencetest.URL{URL: url}.Read(t.Context(), "report")
		if want := fmt.Sprintf("part %d by ", parts); err != nil || !strings.HasPrefix(written, want) {
			t.Errorf("%s: %q is written, %v", l.name, written, err)
		}
	}
}
