package clients

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"fencepost/client"
	"fencepost/internal/seed"
	"fencepost/verify/system"
)

// textsOfNames returns those of client/testdata/names.txt, and random ones. None has a NUL, which no argument of a program can
// have, either.
func textsOfNames(t *testing.T, random int) (texts []string) {
	t.Helper()
	lines, err := os.ReadFile("../../client/testdata/names.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		text, err := strconv.Unquote(line[:max(0, strings.LastIndexByte(line, ' '))])
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	pieces := []string{".", ".", "..", "/", "/", "//", "/./", "/../", "~", "~2E", "%", "%2F", "#", "?", " ", "\n", "\r", "\t", "\x01", "\x7f",
		"a", "Z", "9", "_", "-", "@", ":", "\\", "$", "*", "[", "'", `"`, "é", "e\u0301", "ß", "\u2028", "日本", "😀", "\xff", "\xc3", "\x80", "\xed\xa0\x80"}
	r := rand.New(rand.NewPCG(seed.Of(t), 0))
	for i := range random {
		n := 1 + r.IntN(12)
		if i < 5 {
			n = 2000
		}
		var text strings.Builder
		valid := r.IntN(2) == 0
		for range n {
			if p := pieces[r.IntN(len(pieces))]; !valid || utf8.ValidString(p) {
				text.WriteString(p)
			}
		}
		if text.Len() > 0 {
			texts = append(texts, text.String())
		}
	}
	return texts
}

// part returns what of a file begins with one text and ends before another.
func partOf(t *testing.T, path, from, to string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(content), from)
	part, _, ends := strings.Cut(rest, to)
	if !begins || !ends {
		t.Fatalf("%s has no %q up to %q", path, from, to)
	}
	return from + part
}

// The encoders of the documents and of the programs write each text as client.EncodeName does: those of Node and Java, whose texts
// are Unicode, all that are.
func TestEncodersAgree(t *testing.T) {
	t.Parallel()
	texts := textsOfNames(t, 10_000)
	dir := t.TempDir()
	const eachOfPython = "for text in sys.stdin.buffer.read().split(b'\\0')[:-1]:\n"
	page := partOf(t, "../../docs/locks.md", "import os,re,sys; ", "' '")
	java := filepath.Join(dir, "Names.java")
	if err := os.WriteFile(java, []byte(`
class Names {
	public static void main(String[] args) throws Exception {
		String texts = new String(System.in.readAllBytes(), "UTF-8");
		StringBuilder names = new StringBuilder();
		for (String text : texts.substring(0, texts.length() - 1).split("\0", -1)) names.append(Nightly.encode(text)).append("\n");
		System.out.print(names);
	}
}`), 0o600); err != nil {
		t.Fatal(err)
	}
	bash := partOf(t, examples+"/nightly.sh", "encode() {", "\n}\n") + "\n}\nwhile LC_ALL=C IFS= read -rd '' text; do encode \"$text\"; echo \"$name\"; done"
	for name, c := range map[string]struct {
		unicode bool
		args    []string
		env     string
	}{
		"bash":      {args: []string{"bash", "-uc", bash}, env: "LC_ALL=C.UTF-8"},
		"bash in C": {args: []string{"bash", "-uc", bash}, env: "LC_ALL=C"},
		"python":    {args: []string{"python3", "-c", partOf(t, examples+"/nightly.py", "import contextlib", "\ndef request") + eachOfPython + " print(encode(os.fsdecode(text)))"}},
		"docs":      {args: []string{"python3", "-c", "import os,sys\ncode = compile(sys.argv[1], '', 'exec')\n" + eachOfPython + " sys.argv = ['', os.fsdecode(text)]; exec(code)", page}},
		"node":      {unicode: true, args: []string{"node", "-e", partOf(t, examples+"/nightly.mjs", "function encode", "\n}\n") + "\n}\nconst texts = require('fs').readFileSync(0, 'utf8').split('\\0').slice(0, -1);\nconsole.log(texts.map(encode).join('\\n'));"}},
		"java":      {unicode: true, args: []string{"sh", "-c", "javac -d " + dir + " " + examples + "/Nightly.java " + java + " && java -cp " + dir + " Names"}},
	} {
		if strings.HasPrefix(name, "java") && slices.Contains((Languages{}).Missing(), "java") {
			t.Log("java is not there: its encoder was not run")
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var in, want, said bytes.Buffer
			var asked []string
			for _, text := range texts {
				if !c.unicode || utf8.ValidString(text) {
					asked = append(asked, text)
					in.WriteString(text + "\x00")
					want.WriteString(client.EncodeName(text) + "\n")
				}
			}
			if len(asked) < 5000 {
				t.Fatalf("%d texts", len(asked))
			}
			cmd := exec.CommandContext(t.Context(), c.args[0], c.args[1:]...)
			cmd.Env, cmd.Stdin, cmd.Stderr = append(os.Environ(), c.env, javaOptions), &in, &said
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, &said)
			}
			names := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			wanted := strings.Split(strings.TrimSuffix(want.String(), "\n"), "\n")
			if len(names) != len(wanted) {
				t.Fatalf("%d names of %d texts: %s", len(names), len(wanted), &said)
			}
			differ := 0
			for i := range wanted {
				if names[i] != wanted[i] {
					if differ++; differ <= 5 {
						t.Errorf("%q is %s, want %s", asked[i], names[i], wanted[i])
					}
				}
			}
			if differ > 0 {
				t.Errorf("%d of %d differ", differ, len(wanted))
			}
		})
	}
}

var segmentTakenOut = regexp.MustCompile(`(^|/)(\.{0,2})(/|$)`)

// No name of a text has a segment that is taken out of URLs, and lockctl -encode asks for the same names.
func TestNamesInURLs(t *testing.T) {
	t.Parallel()
	for _, text := range textsOfNames(t, 10_000) {
		if name := client.EncodeName(text); segmentTakenOut.MatchString(name) {
			t.Errorf("%q is %s", text, name)
		}
	}
	lockctl, err := system.Binary(system.Build{Program: "lockctl"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked string
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = r.URL.EscapedPath()
		w.WriteHeader(http.StatusNotFound)
	}))
	defer gateway.Close()
	for _, text := range textsOfNames(t, 0) {
		cmd := exec.CommandContext(t.Context(), lockctl, "get", "-gateway", gateway.URL, "-encode", "--", text)
		said, _ := cmd.CombinedOutput()
		mu.Lock()
		if want := "/locks/" + client.EncodeName(text); asked != want {
			t.Errorf("%q is asked for as %s, want %s: %s", text, asked, want, said)
		}
		mu.Unlock()
	}
}
