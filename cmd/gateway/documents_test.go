package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fencepost/internal/redis/redistest"
)

// Marks stand before a console block, as <!-- console: MARK -->, and say that it can't
// be run like the others. Each is known here with its reason.
var marks = map[string]string{
	"stays in the foreground": "the reader goes on in another terminal, and so does the test",
}

// Addresses of the documents that the test replaces: both ports may be in use.
const (
	documentedGateway = "127.0.0.1:8080"
	documentedRedis   = "localhost:6379"
)

// TestDocuments types what README.md and the pages of docs say to type, in a shell of
// readers, and compares what comes with what is shown.
func TestDocuments(t *testing.T) {
	t.Parallel()
	follow(t, "sh")
}

// TestSystemDocuments does the same in the other shell, which has more of its own.
func TestSystemDocuments(t *testing.T) {
	t.Parallel()
	follow(t, "bash")
}

// follow follows all documents in a shell.
func follow(t *testing.T, shell string) {
	paths := []string{"../../README.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/*/*.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil || len(pages) == 0 {
			t.Fatal(pattern, pages, err)
		}
		paths = append(paths, pages...)
	}
	// Once, before two documents at a time have it done.
	build := exec.Command("make", "--no-print-directory", "-C", "../..", "build")
	build.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	used := map[string]bool{}
	for _, path := range paths {
		blocks := parseDocument(t, path, used)
		if len(blocks) == 0 {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			r := newReader(t, shell, path)
			for _, b := range blocks {
				r.follow(b)
			}
			if r.isReadme() {
				isClean(t, r.dir)
			}
		})
	}
	for mark := range marks {
		if !used[mark] {
			t.Errorf("no document has the mark %q", mark)
		}
	}
}

// block is a console block of a document.
type block struct {
	mark  string
	typed []typed
}

// typed is a command with what the document shows of its output.
type typed struct {
	line        int
	command     string
	shown       []string
	interrupted bool // by Ctrl-C, shown as ^C
}

var markLine = regexp.MustCompile(`^<!-- console: (.*) -->$`)

func parseDocument(t *testing.T, path string, used map[string]bool) (blocks []block) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mark, inside := "", "" // inside: what the open fence says
	for i, line := range strings.Split(string(content), "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && inside == "":
			if inside = fence; fence == "" {
				inside = "text"
			}
			if fence == "console" {
				blocks = append(blocks, block{mark: mark})
			} else if mark != "" {
				t.Errorf("%s:%d: the mark %q is before no console block", path, i+1, mark)
			}
			mark = ""
		case isFence:
			inside = ""
		case inside == "console":
			blocks[len(blocks)-1].add(t, i+1, line)
		case inside != "" && strings.HasPrefix(line, "$ "):
			t.Errorf("%s:%d: a command in a block that is not a console block", path, i+1)
		case inside == "" && markLine.MatchString(line):
			mark = markLine.FindStringSubmatch(line)[1]
			if used[mark] = true; marks[mark] == "" {
				t.Errorf("%s:%d: the mark %q is unknown", path, i+1, mark)
			}
		}
	}
	return blocks
}

func (b *block) add(t *testing.T, number int, line string) {
	if command, ok := strings.CutPrefix(line, "$ "); ok {
		b.typed = append(b.typed, typed{line: number, command: command})
		return
	}
	if len(b.typed) == 0 {
		t.Errorf("line %d: output without a command", number)
		return
	}
	last := &b.typed[len(b.typed)-1]
	if line == "^C" {
		last.interrupted = true
		return
	}
	last.shown = append(last.shown, line)
}

// reader follows a document: in one terminal, and in a second one for what stays in
// the foreground there.
type reader struct {
	t           *testing.T
	shell, path string
	dir         string
	tools       string // has what the test puts in place of programs of the machine
	env         []string
	first       *terminal
	foreground  *terminal
	gateway     string // where it serves; "" until one has been started
	redis       *redistest.Server
}

func newReader(t *testing.T, shell, path string) *reader {
	r := &reader{t: t, shell: shell, path: path, dir: t.TempDir(), tools: t.TempDir()}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if r.isReadme() { // whose reader is in a clone
		r.dir = clone(t)
		root = r.dir
	}
	// make runs where the repository is. Of other documents it leaves no state there.
	r.write("path/make", fmt.Sprintf("#!/bin/sh\nexec %s --no-print-directory -C '%s' \"$@\"\n", r.find("make"), root))
	// A terminal shows no progress, and the test wants to know every status.
	r.write(".curlrc", "silent\nshow-error\nwrite-out = \"%{stderr}<status %{http_code}>\"\n")
	r.env = append(withoutSettings(), "PATH="+filepath.Join(r.tools, "path")+":"+os.Getenv("PATH"), "CURL_HOME="+r.tools, "no_proxy=*", "FENCEPOST_LISTEN_ADDR=127.0.0.1:0")
	if !r.isReadme() {
		r.env = append(r.env, "FENCEPOST_DATA_DIR="+filepath.Join(r.dir, "data"))
	}
	if signal.Ignored(os.Interrupt) { // by a shell that put the tests into the background: the terminals would ignore Ctrl-C too
		interrupts := make(chan os.Signal, 1)
		signal.Notify(interrupts, os.Interrupt)
		t.Cleanup(func() { signal.Stop(interrupts) })
	}
	r.first = openTerminal(t, shell, r.dir, r.env)
	if !r.isReadme() { // which starts its own
		r.gateway = start(t).addr
	}
	return r
}

func (r *reader) isReadme() bool { return r.path == filepath.Join("../..", readme) }

// write writes a file that is none of the document's.
func (r *reader) write(name, content string) {
	path := filepath.Join(r.tools, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		r.t.Fatal(err)
	}
}

func (r *reader) find(program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		r.t.Fatal(err)
	}
	return path
}

func (r *reader) follow(b block) {
	for i, c := range b.typed {
		switch {
		case strings.HasPrefix(b.mark, "not run"):
		case b.mark != "":
			r.stay(c)
		default:
			r.run(c, i+1 < len(b.typed) && b.typed[i+1].command == "echo $?")
		}
		if r.t.Failed() {
			r.t.FailNow() // what follows counts on it
		}
	}
}

// stay runs a command that stays in the foreground, in a terminal of its own. The one
// before is ended with Ctrl-C.
func (r *reader) stay(c typed) {
	if r.foreground != nil {
		r.foreground.interrupt()
		r.foreground.ended()
	}
	r.gateway = ""
	r.foreground = openTerminal(r.t, r.shell, r.dir, r.env)
	r.foreground.patience = startPatience
	r.foreground.enter(r.addressed(c.command))
	output := r.foreground.until(r.wanted(c.shown, false))
	address := regexp.MustCompile(`"msg":"serving","address":"([^"]+)"`).FindStringSubmatch(output)
	if address == nil {
		r.t.Fatalf("%s:%d: %s: it does not serve, but says\n%s", r.path, c.line, c.command, output)
	}
	r.gateway = address[1]
	if _, _, err := net.SplitHostPort(r.gateway); err != nil {
		r.t.Fatal(err)
	}
}

var statusNote = regexp.MustCompile(`<status (\d+)>`)

// run runs a command and compares what comes of it with what is shown: all of its
// output, the statuses of its requests, and that it succeeds, unless the next command
// shows its exit status.
func (r *reader) run(c typed, statusShown bool) {
	r.first.enter(r.addressed(c.command))
	wanted := r.wanted(c.shown, !c.interrupted)
	var output, exit string
	if c.interrupted {
		output = r.first.until(wanted)
		r.first.interrupt()
		r.first.ended()
	} else {
		output, exit = r.first.ended()
	}
	fault := func(format string, args ...any) {
		r.t.Errorf("%s:%d: %s\n%s\nit says\n%s", r.path, c.line, c.command, fmt.Sprintf(format, args...), output)
	}
	for _, status := range statusNote.FindAllStringSubmatch(output, -1) {
		if status[1][0] != '2' && !strings.Contains(strings.Join(c.shown, "\n"), "HTTP/1.1 "+status[1]) {
			fault("a request is answered %s, which is not shown", status[1])
		}
	}
	if output = statusNote.ReplaceAllString(output, ""); !wanted.MatchString(output) {
		fault("the document shows\n%s", strings.Join(c.shown, "\n"))
	}
	if exit != "" && exit != "0" && !statusShown {
		fault("it exits with %s", exit)
	}
}

// addressed puts the addresses of this test in place of the documented ones.
func (r *reader) addressed(text string) string {
	if strings.Contains(text, documentedRedis) {
		if r.redis == nil {
			r.redis = redistest.Start(r.t)
		}
		text = strings.ReplaceAll(text, documentedRedis, r.redis.Addr())
	}
	if r.gateway != "" {
		text = strings.ReplaceAll(text, documentedGateway, r.gateway)
	}
	return text
}

var token = regexp.MustCompile(`\b\d{16}\b`)

// wanted matches output that is as shown: … stands for anything in a line, or for any
// lines, and a number of 16 digits for any such number. Without whole the output may
// go on.
func (r *reader) wanted(shown []string, whole bool) *regexp.Regexp {
	var pattern strings.Builder
	pattern.WriteString(`^`)
	for _, line := range shown {
		if line == "…" {
			pattern.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		line = regexp.QuoteMeta(r.addressed(line))
		line = strings.ReplaceAll(line, regexp.QuoteMeta(documentedGateway), `127\.0\.0\.1:\d+`) // not known yet
		line = token.ReplaceAllString(strings.ReplaceAll(line, "…", `[^\n]*`), `\d{16}`)
		pattern.WriteString(line + `\n`)
	}
	if whole {
		pattern.WriteString(`$`)
	}
	return regexp.MustCompile(pattern.String())
}
