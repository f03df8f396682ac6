package fencingtest

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// cases are the case files: a paragraph that says what is shown, then commands
// and what comes of them.
//
//go:embed testdata/*.txt
var cases embed.FS

// testcase is one parsed file.
type testcase struct {
	file     string
	needs    []string // capabilities, by the words of needed
	commands []*command
}

// smallSteps is the limit of a step in the cases that say `needs small_steps`; no
// other case is about more than one step does.
const smallSteps = 2

// fewHolders is how many holders a name may have in the cases that say `needs
// few_holders`; in no other case there is such a bound.
const fewHolders = 2

// special reports whether a store is only for the cases that need one like that, and
// for histories.
func (caps Capabilities) special() bool { return caps.StepLimit != 0 || caps.MaxHolders != 0 }

// tells reports whether the store has to tell a gateway anything in heartbeats. With one gateway there
// is nothing, but where the gateway asks several nodes.
func (caps Capabilities) tells() bool { return caps.Gateways || caps.Quorum }

// needed are the words with which a case asks for a capability.
func (caps Capabilities) needed() map[string]bool {
	return map[string]bool{
		"own_clock": caps.OwnClock, "flush": caps.Flush, "gateways": caps.Gateways, "one_state": caps.OneState,
		"claims": caps.Claims, "quarantine": caps.Quarantine, "small_steps": caps.StepLimit == smallSteps,
		"few_holders": caps.MaxHolders == fewHolders, "tells": caps.tells(),
	}
}

// offers reports whether a store can do all that a case needs.
func (caps Capabilities) offers(c *testcase) bool {
	lacks := func(need string) bool { return !caps.needed()[need] }
	if caps.special() && !slices.Contains(c.needs, "small_steps") && !slices.Contains(c.needs, "few_holders") {
		return false
	}
	return !slices.ContainsFunc(c.needs, lacks) && !(caps.Quorum && slices.ContainsFunc(c.commands, (*command).beyondQuorum))
}

// samples reports whether the case of a number is among those that are played: what
// few stores can play always is.
func (caps Capabilities) samples(c *testcase, n uint64) bool {
	every := long(uint64(max(1, caps.Sample)), 1)
	return n%every == 0 || caps.special() || caps.OneState && slices.Contains(c.needs, "one_state")
}

// beyondQuorum reports whether a command is about the queue, limits and slots, sets, lock delays or
// labels that change, or tells who was replaced.
func (c *command) beyondQuorum() bool {
	if c.want != nil && slices.ContainsFunc(c.want.items, func(it item) bool { return it.key == "replaced" }) {
		return true
	}
	switch c.verb {
	case "leave", "confirm", "evict", "heard":
		return true
	case "admit":
		return c.slot != fencing.NoSlot
	case "acquire", "renew":
		return c.wait > 0 || c.limit > 0 || c.lockDelay > 0 || c.setName != "" || c.verb == "renew" && (c.owner != "" || c.metadata != nil)
	}
	return false
}

// parseCase reads a case file. Errors start with file:line.
func parseCase(file, text string) (*testcase, error) {
	c := &testcase{file: file}
	lines := strings.Split(text, "\n")
	if !strings.HasPrefix(lines[0], "# ") {
		return nil, fmt.Errorf("%s:1: a case starts with a paragraph that says what it shows, in lines that start with #", file)
	}
	for i, line := range lines {
		where := fmt.Sprintf("%s:%d", file, i+1)
		if err := c.parseLine(where, strings.TrimSpace(line)); err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
	}
	if last := c.last(); last == nil {
		return nil, fmt.Errorf("%s: no commands", file)
	} else if last.wanting() {
		return nil, fmt.Errorf("%s: %s lacks an outcome, a line that starts with =>", last.where, last.verb)
	}
	return c, c.arrives()
}

// arrives checks that a case in which gateways arrive has them arrive in the partitions of all names.
func (c *testcase) arrives() error {
	arrived := map[fencing.Name]bool{}
	for _, command := range c.commands {
		if command.verb == "arrive" {
			arrived[command.name] = true
		}
	}
	for _, command := range c.commands {
		if len(arrived) > 0 && command.name != "" && !arrived[command.name] && !slices.Contains(c.needs, "one_state") {
			return fmt.Errorf("%s: %s may be in a partition in which nobody arrives: that wants a line above: needs one_state", command.where, command.name)
		}
	}
	return nil
}

func (c *testcase) parseLine(where, line string) error {
	if line == "" || strings.HasPrefix(line, "# ") || line == "#" {
		return nil
	}
	last := c.last()
	if text, ok := strings.CutPrefix(line, "=>"); ok {
		if last == nil || !last.wanting() {
			return errors.New("this outcome belongs to no command")
		}
		var err error
		last.want, err = parseExpectation(text)
		return err
	}
	if last != nil && last.wanting() {
		return fmt.Errorf("%s above lacks an outcome, a line that starts with =>", last.verb)
	}
	if need, ok := strings.CutPrefix(line, "needs "); ok {
		if _, known := (Capabilities{}).needed()[need]; !known || last != nil {
			return fmt.Errorf("needs comes first, with one of %s", strings.Join(slices.Sorted(maps.Keys((Capabilities{}).needed())), " "))
		}
		c.needs = append(c.needs, need)
		return nil
	}
	command, err := parseCommand(where, line)
	if err != nil {
		return err
	}
	if need := command.needs(); need != "" && !slices.Contains(c.needs, need) {
		return fmt.Errorf("%s wants a line above: needs %s", command.verb, need)
	}
	c.commands = append(c.commands, command)
	return nil
}

func (c *testcase) last() *command {
	if len(c.commands) == 0 {
		return nil
	}
	return c.commands[len(c.commands)-1]
}

// needs returns the capability without which a command makes no sense, or nothing.
func (c *command) needs() string {
	switch c.verb {
	case "skew", "clock":
		return "own_clock"
	case "flush":
		return "flush"
	case "claim":
		return "claims"
	case "arrive", "heed":
		return "quarantine"
	}
	if c.claimed || c.intent > 0 || c.verb == "acquire" && c.token != "" {
		return "claims"
	}
	return ""
}

// wanting reports whether a command lacks its outcome.
func (c *command) wanting() bool { return c.want == nil && !slices.Contains(outcomeless, c.verb) }

// run plays a case on a fresh backend and returns what went wrong first.
func (c *testcase) run(t testing.TB, open Open, caps Capabilities) error {
	d := newComparison(t, open, caps)
	for _, command := range c.commands {
		if r, err := d.run(command); err != nil {
			return fmt.Errorf("%s: %s\n=> %s\n%w", command.where, command, describe(command, &r, side{d, ofStore}), err)
		}
	}
	if err := d.finish(); err != nil {
		return fmt.Errorf("%s: %w", c.file, err)
	}
	return nil
}

// loadCases parses all case files.
func loadCases() ([]*testcase, error) {
	files, err := fs.Glob(cases, "testdata/*.txt")
	if err != nil {
		return nil, err
	}
	var all []*testcase
	for _, file := range files {
		text, err := cases.ReadFile(file)
		if err != nil {
			return nil, err
		}
		c, err := parseCase(file, string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}
