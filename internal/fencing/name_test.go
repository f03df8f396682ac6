package fencing_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

func TestParseName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a":                             true,
		"0":                             true,
		"orders/42":                     true,
		"A-Z.a_z:0@9~":                  true,
		"...":                           true,
		"..a":                           true,
		"a..":                           true,
		"a/.b/c":                        true,
		strings.Repeat("a", 255):        true,
		strings.Repeat("a/", 127) + "a": true,
		"":                              false,
		strings.Repeat("a", 256):        false,
		".":                             false,
		"..":                            false,
		"a/.":                           false,
		"./a":                           false,
		"a/../b":                        false,
		"/":                             false,
		"/a":                            false,
		"a/":                            false,
		"a//b":                          false,
		"a b":                           false,
		"a%2Fb":                         false,
		"a\\b":                          false,
		"a\x00":                         false,
		"a\n":                           false,
		"é":                             false,
		"a\xff":                         false,
		"{a}":                           false,
		"a*":                            false,
		"a?b":                           false,
		"a#b":                           false,
		"a+b":                           false,
		"a=b":                           false,
	} {
		got, err := fencing.ParseName(name)
		if (err == nil) != ok {
			t.Errorf("ParseName(%q): %v", name, err)
		}
		if err != nil {
			refusal(t, err, "name")
			if got != "" {
				t.Errorf("ParseName(%q) returns %q beside an error", name, got)
			}
		} else if string(got) != name {
			t.Errorf("ParseName(%q) = %q", name, got)
		}
	}
}

func TestEveryByteOfAName(t *testing.T) {
	form := regexp.MustCompile(`^[A-Za-z0-9._:@~/-]$`)
	for b := range 256 {
		name := "a" + string([]byte{byte(b)}) + "a"
		_, err := fencing.ParseName(name)
		if want := form.MatchString(string([]byte{byte(b)})); (err == nil) != want {
			t.Errorf("ParseName(%q): %v", name, err)
		}
		if strings.IndexByte(fencing.NameBytes, byte(b)) >= 0 != (err == nil) {
			t.Errorf("NameBytes and ParseName differ on %q", name)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, name := range []string{"orders/42", "a//b", "..", "./a", "a%2Fb", "a:b@c~d-e_f", strings.Repeat("a", 256)} {
		f.Add(name)
	}
	form := regexp.MustCompile(`^[A-Za-z0-9._:@~/-]{1,255}$`)
	f.Fuzz(func(t *testing.T, text string) {
		segments := strings.Split(text, "/")
		want := form.MatchString(text) && !slices.Contains(segments, "") && !slices.Contains(segments, ".") && !slices.Contains(segments, "..")
		name, err := fencing.ParseName(text)
		if (err == nil) != want {
			t.Fatalf("ParseName(%q): %v", text, err)
		}
		if err != nil {
			refusal(t, err, "name")
			return
		}
		if again, err := fencing.ParseName(string(name)); err != nil || again != name || string(name) != text {
			t.Fatalf("%q became %q and then %q: %v", text, name, again, err)
		}
	})
}
