package client

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// nameForm is the form of a name in api/openapi.yaml.
var nameForm = regexp.MustCompile(`^(\.{0,2}[A-Za-z0-9_:@~-][A-Za-z0-9._:@~-]*|\.{3}[A-Za-z0-9._:@~-]*)(/(\.{0,2}[A-Za-z0-9_:@~-][A-Za-z0-9._:@~-]*|\.{3}[A-Za-z0-9._:@~-]*))*$`)

func TestEncodeName(t *testing.T) {
	for text, want := range map[string]string{
		"orders/42":      "orders/42",
		"A-z_0.9:a@b":    "A-z_0.9:a@b",
		"a b":            "a~20b",
		"50%":            "50~25",
		"~root":          "~7Eroot",
		"a~20b":          "a~7E20b",
		"Zürich":         "Z~C3~BCrich",
		"a\xff\n":        "a~FF~0A",
		"https://x/?y#z": "https:/~2Fx/~3Fy~23z",
		"/":              "~2F",
		"/a/":            "~2Fa~2F",
		"a///b":          "a/~2F~2Fb",
		".":              "~2E",
		"..":             "~2E.",
		"./../...":       "~2E/~2E./...",
		"a/..b/.c":       "a/..b/.c",
		"":               "",
	} {
		if got := EncodeName(text); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
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
