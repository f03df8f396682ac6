package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"fencepost/client"
	"fencepost/verify/system"
)

// hiddenText has a character of each kind that can't be seen.
const hiddenText = "a\u202eb\u200bc\ufeffd\u2028e\u00adf\u3164g\ufe0fh\u2800i\U000e0041j"

// TestNothingIsHidden: whoever sets an owner or a reason that turns text around, or has
// nothing to see, does not deceive those who look.
func TestNothingIsHidden(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	gateway := s.Gateways[0].URL()
	c, err := client.New(client.Options{Addresses: []string{gateway}, Owner: hiddenText})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Acquire(t.Context(), "hidden", client.Metadata(map[string]string{hiddenText: hiddenText}))
	if err != nil {
		t.Fatal(err)
	}
	look := func(want int, args ...string) {
		t.Helper()
		var out bytes.Buffer
		if status := run(t.Context(), append([]string{args[0], "-gateway", gateway}, args[1:]...), &out, &out); status != want {
			t.Errorf("%q: status %d, %s", args, status, &out)
		}
		if text := out.String(); strings.ContainsFunc(strings.ReplaceAll(text, "\n", ""), hidden) || !strings.Contains(text, `a\u202eb\u200bc\ufeffd\u2028e\u00adf\u3164g\ufe0fh\u2800i\U000e0041j`) {
			t.Errorf("%q: %q", args, text)
		}
	}
	look(0, "ls")
	look(0, "get", "hidden")
	look(exitNotAcquired, "acquire", "hidden")
	if _, _, err := c.BreakWithNotice(t.Context(), "hidden", l.Token(), time.Hour, hiddenText); err != nil {
		t.Fatal(err)
	}
	look(0, "get", "hidden")
	look(0, "history", "hidden")
}

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "",
		"ann, host:1":        "ann, host:1",
		"Zoë 张伟 עברית":       "Zoë 张伟 עברית",
		"x\u202ey":           `x\u202ey`,
		"x\u2066y\u2069":     `x\u2066y\u2069`,
		"\u200d\u200b":       `\u200d\u200b`,
		"a\tb\x1b[2J":        `a\u0009b\u001b[2J`,
		"\U000e0020":         `\U000e0020`,
		"\u115f\ufe00\u00a0": `\u115f\ufe00\u00a0`,
	} {
		if got := visible(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
