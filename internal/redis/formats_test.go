package redis

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// stored are the formats of what stays in Redis, in the order of testdata/layout.txt.
// The others are of a call and its reply, which bear the hash of the library.
var stored = []string{"LEASE", "RECORD", "TOMB", "END", "GUARD"}

// TestLayoutVersion: what is stored has the form that testdata/layout.txt has for this
// layoutVersion. A gateway would read records of another form as if they were of its own.
func TestLayoutVersion(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "layout version %s\n", layoutVersion)
	show := func(what string, describe func(*codec)) {
		c := codec{mode: describing}
		describe(&c)
		fmt.Fprintf(&b, "\n%s %s\n", what, strings.Join(c.kinds, ""))
		if c.rare > 0 {
			fmt.Fprintf(&b, "  left out where they are %s:\n", strings.Join(c.values[:c.rare], ", "))
		}
		for _, name := range c.names {
			if name != "" {
				fmt.Fprintf(&b, "  %s\n", name)
			}
		}
	}
	for _, what := range stored {
		show(what, described[what])
	}
	show("entry of a gateway", func(c *codec) { c.entry(&fencing.Entry{}) })

	const path = "testdata/layout.txt"
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(golden) {
		t.Errorf("what is stored in Redis is not what %s has: raise layoutVersion in keys.go if it has not been raised since the last release, and write this to the file:\n%s", path, &b)
	}
}
