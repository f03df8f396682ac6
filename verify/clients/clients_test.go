package clients

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fencepost/internal/seed"
	"fencepost/verify/check"
)

// examples has the programs.
const examples = "../../examples"

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// The short version; go run ./verify -only clients-do,clients-lockctl has the long one.
func TestRounds(t *testing.T) {
	for _, kind := range []Holder{Do, Lockctl} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			r := check.NewResult(seed.Of(t))
			if err := (Rounds{Holder: kind, Rounds: 4}).Run(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if n, violations := r.Violations(); n > 0 {
				t.Errorf("%d violations, seed %d: %q", n, r.Seed, violations)
			}
			t.Log(r, r.Notes())
		})
	}
}

// The programs of examples. Java is big: where it is not there its program is not run
// here, which the log says; go run ./verify -only languages then fails.
func TestLanguages(t *testing.T) {
	t.Parallel()
	r := check.NewResult(1)
	if err := (Languages{Dir: examples}).Run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for _, command := range (Languages{}).Missing() {
		if command != "java" {
			t.Errorf("%s is not there: make deps installs it", command)
		}
	}
	if n, violations := r.Violations(); n > 0 {
		t.Errorf("%d violations: %q", n, violations)
	}
	t.Log(r, r.Notes())
}

// The short version; go run ./verify -only trials has the long one.
func TestSystemTrials(t *testing.T) {
	t.Parallel()
	r := check.NewResult(seed.Of(t))
	if err := (Trials{Dir: examples, Each: 3, Lanes: 6}).Run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if n, violations := r.Violations(); n > 0 {
		t.Errorf("%d violations, seed %d: %q", n, r.Seed, violations)
	}
	t.Log(r, r.Notes())
}

// A client with a defect is found.
func TestSystemTrialsFindDefects(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile(filepath.Join(examples, "nightly.py"))
	if err != nil {
		t.Fatal(err)
	}
	for name, defect := range map[string]struct{ old, new, found string }{
		"does not release":             {`self.insist("DELETE", now() + 5)`, "pass", "longer than it may be"},
		"does not look at the clock":   {"def left(self):", "def left(self):\n        return 1e9", "past the deadline"},
		"ends as if all had been well": {"128 + number", "0 * number", "the exit status is 0"},
		"leaves something behind":      {"import contextlib,", "import subprocess\nsubprocess.Popen([\"sleep\", \"60\"])\nimport contextlib,", "of its processes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			altered := strings.ReplaceAll(string(program), defect.old, defect.new)
			if altered == string(program) {
				t.Fatalf("%q is not in the program", defect.old)
			}
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(examples)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "nightly.py"), []byte(altered), 0o600); err != nil {
				t.Fatal(err)
			}
			var found []string
			for attempt := range uint64(3) { // a busy machine excuses much
				r := check.NewResult(seed.Of(t) + attempt)
				if err := (Trials{Dir: dir, Each: 8, Lanes: 4, only: "python"}).Run(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				_, violations := r.Violations()
				if found = append(found, violations...); strings.Contains(strings.Join(found, "\n"), defect.found) {
					return
				}
			}
			t.Errorf("it is not found: %q", found)
		})
	}
}

// A request of the Python program that was given up while its connection was being made is not sent
// once that is there: a POST would come after the DELETE that releases the lock.
func TestPythonSendsNothingLate(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile(filepath.Join(examples, "nightly.py"))
	if err != nil {
		t.Fatal(err)
	}
	program, _, found := strings.Cut(string(whole), "\nclass Lease:")
	if !found {
		t.Fatal("the program is not there")
	}
	python := exec.CommandContext(t.Context(), "python3", "-c", program+`
listener = socket.create_server(("127.0.0.1", 0))
connect, may = http.client.HTTPConnection.connect, threading.Event()
http.client.HTTPConnection.connect = lambda conn: may.wait() and connect(conn)
answer = request("POST", "http://127.0.0.1:%d/locks/a" % listener.getsockname()[1], "{}", {}, 0.1)
may.set()
print(answer, listener.accept()[0].recv(4))
`)
	python.Env = append(os.Environ(), "STORAGE=http://127.0.0.1")
	if said, err := python.CombinedOutput(); err != nil || string(said) != "(0, 'no answer in time', 0) b''\n" {
		t.Errorf("%s%v", said, err)
	}
}

// A program without STORAGE says in one line what to set, ends with 2, and has asked nobody for the lock.
func TestLanguagesSayWhatToSet(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		if l.command == "java" && slices.Contains(Languages{}.Missing(), l.command) {
			t.Log("java is not there: its program was not run")
			continue
		}
		for what, environment := range map[string][]string{"unset": nil, "empty": {"STORAGE="}} {
			t.Run(l.name+"/"+what, func(t *testing.T) {
				t.Parallel()
				gateway := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("it asks %s %s", r.Method, r.URL) }))
				defer gateway.Close()
				dir := t.TempDir()
				if err := l.copy(examples, dir, documentedTTL); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), patienceOfPrograms)
				defer cancel()
				var said bytes.Buffer
				program := exec.CommandContext(ctx, l.command, l.file)
				program.Dir, program.Stderr = dir, &said
				program.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "STORAGE=") }), environment...)
				program.Env = append(program.Env, "FENCEPOST="+gateway.URL, "no_proxy=*")
				_ = program.Run()
				if status := program.ProcessState.ExitCode(); status != 2 {
					t.Errorf("exit status %d", status)
				}
				if line := said.String(); !strings.HasPrefix(line, "set STORAGE to ") || strings.Count(line, "\n") != 1 {
					t.Errorf("it says %q", line)
				}
			})
		}
	}
}
