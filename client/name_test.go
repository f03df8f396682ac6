package client

import (
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// nameForm is the form of a name in api/openapi.yaml.
var nameForm = regexp.MustCompile(`^(\.{0,2}[A-Za-z0-9_:@~-][A-Za-z0-9._:@~-]*|\.{3}[A-Za-z0-9._:@~-]*)(/(\.{0,2}[A-Za-z0-9_:@~-][A-Za-z0-9._:@~-]*|\.{3}[A-Za-z0-9._:@~-]*))*$`)

// testdata/names.txt has a text a line, quoted as in Go, and its name. The encoders of docs and examples are held to it, too.
func TestEncodeName(t *testing.T) {
	lines, err := os.ReadFile("testdata/names.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		at := strings.LastIndexByte(line, ' ')
		text, err := strconv.Unquote(line[:max(at, 0)])
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if got, want := EncodeName(text), strings.TrimSpace(line[at:]); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
	if got := EncodeName(""); got != "" {
		t.Errorf("the empty text is %s", got)
	}
}

// FuzzEncodeName: a name is of the form that gateways take, and says which text it is of, so that
// two texts never have the same one.
func FuzzEncodeName(f *testing.F) {
	for _, text := range []string{"a b", "~7E", "a//./../b/", "\x00\xff", "..", "%20"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name := EncodeName(text)
		if text != "" && !nameForm.MatchString(name) {
			t.Errorf("%q: %q is no name", text, name)
		}
		if back, err := url.PathUnescape(strings.ReplaceAll(name, "~", "%")); err != nil || back != text {
			t.Errorf("%q: %q is of %q: %v", text, name, back, err)
		}
	})
}
