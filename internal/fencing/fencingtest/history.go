package fencingtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// historySteps is the length of a random history: long enough that leases are
// granted, end in every way and are forgotten in it, several times over.
const historySteps = 120

var historyNames = []fencing.Name{"a", "a/b", "b"}

// randomHistory plays a history on a fresh backend. It returns the commands up
// to the one that failed, and what went wrong.
func randomHistory(t testing.TB, open Open, caps Capabilities, seed uint64) ([]*command, error) {
	defer scoped(&t)()
	d := newComparison(t, open, caps)
	g := newGenerator(seed, d)
	var commands []*command
	for i := range historySteps {
		c := g.next(i)
		commands = append(commands, c)
		if _, err := d.run(c); err != nil {
			return commands, fmt.Errorf("%s: %s: %w", c.where, c, err)
		}
	}
	return commands, d.finish()
}

// replay plays commands on a fresh backend.
func replay(t testing.TB, open Open, caps Capabilities, commands []*command) error {
	defer scoped(&t)()
	d := newComparison(t, open, caps)
	for _, c := range commands {
		if r, err := d.run(c); err != nil {
			return fmt.Errorf("%s: %s\n=> %s\n%w", c.where, c, describe(c, &r, side{d, ofStore}), err)
		}
	}
	return d.finish()
}

// maxReplays bounds the search for a shorter history.
const maxReplays = 400

// shrink leaves out all commands without which a history still fails.
func shrink(t testing.TB, open Open, caps Capabilities, commands []*command) []*command {
	replays := 0
	for size := len(commands) / 2; size > 0; {
		before := len(commands)
		for at := 0; at+size <= len(commands) && replays < maxReplays; {
			shorter := slices.Delete(slices.Clone(commands), at, at+size)
			replays++
			if replay(t, open, caps, shorter) != nil {
				commands = shorter
			} else {
				at += size
			}
		}
		if size > 1 || len(commands) == before {
			size /= 2
		}
	}
	return commands
}

// writeCase writes a history as a case, with the outcomes that Step decides.
func writeCase(t testing.TB, caps Capabilities, title string, commands []*command) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "# %s\n", title)
	for _, need := range []struct {
		word string
		is   func(*command) bool
	}{
		{"own_clock", func(c *command) bool { return c.needs() == "own_clock" }},
		{"flush", func(c *command) bool { return c.verb == "flush" }},
		{"claims", func(c *command) bool { return c.needs() == "claims" }},
		{"quarantine", func(c *command) bool { return c.needs() == "quarantine" }},
		{"gateways", func(c *command) bool { return caps.Gateways && (c.wait > 0 || c.setName != "") }},
		{"one_state", func(c *command) bool { return caps.OneState && (c.wait > 0 || c.setName != "") }},
		{"tells", func(c *command) bool { return caps.Quorum && c.verb == "heartbeat" }},
	} {
		if slices.ContainsFunc(commands, need.is) {
			fmt.Fprintf(b, "needs %s\n", need.word)
		}
	}
	b.WriteString("\n")
	d := newComparison(t, openModel(caps), caps)
	d.number = true
	write := func(c *command) {
		written := *c
		if c.verb == "break" {
			written.token = d.toBreak(c).label
			if written.token == "" {
				written.token = "#0" // was never issued
			}
		}
		if (c.verb == "claim" || c.verb == "admit" || c.verb == "judge") && c.token == "" {
			written.token = d.toBreak(c).label
		}
		fmt.Fprintf(b, "%s\n", &written)
		r, err := d.run(c)
		if err != nil {
			fmt.Fprintf(b, "# the model itself fails: %v\n", err)
		}
		if !slices.Contains(outcomeless, c.verb) {
			fmt.Fprintf(b, "=> %s\n", describe(c, &r, side{d, ofStore}))
		}
	}
	for _, c := range commands {
		known := map[fencing.Name]int{}
		for name, grants := range d.grants {
			known[name] = len(grants)
		}
		write(c)
		for _, name := range historyNames {
			if (c.verb == "expire" || c.verb == "heartbeat") && len(d.grants[name]) > known[name] {
				write(&command{where: c.where, verb: "inspect", name: name}) // binds the label of the token
			}
		}
	}
	return b.String()
}

// scope is a testing.TB whose cleanups run when a replay is over, not when the
// test is: a search for a shorter history opens hundreds of backends.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

// scoped replaces *t by a scope and returns the function that ends it.
func scoped(t *testing.TB) (end func()) {
	s := &scope{TB: *t}
	*t = s
	return func() {
		for _, f := range slices.Backward(s.cleanups) {
			f()
		}
	}
}
