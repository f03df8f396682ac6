package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"fencepost/client"
)

// namesOf returns those of the arguments that are names.
func (cmd command) namesOf(c *call) []string {
	if cmd.named < 0 {
		return c.args
	}
	return c.args[:min(cmd.named, len(c.args))]
}

// encodeNames has the names, and those of -also, say any text.
func (cmd command) encodeNames(c *call) {
	for _, all := range [][]string{cmd.namesOf(c), c.also} {
		for i, name := range all {
			all[i] = client.EncodeName(name)
		}
	}
}

// hint adds what to do about a name that was refused for what it consists of, or which gateway was asked where none was named.
func (cmd command) hint(c *call, err error) error {
	if !c.asked && os.Getenv(gatewaysVariable) == "" && statusOf(err) == exitUnreachable {
		return fmt.Errorf("%w; %s is not set, so %s was asked", err, gatewaysVariable, defaultGateway)
	}
	refused := new(client.Error)
	if !errors.As(err, &refused) || refused.Code != client.CodeInvalidRequest || refused.Field != "name" && refused.Field != "names" {
		return err
	}
	for _, name := range slices.Concat(cmd.namesOf(c), c.also) {
		if !c.encode && client.EncodeName(name) != name {
			return fmt.Errorf(`%w; with -encode any text can be a name: see "Names" in docs/locks.md`, err)
		}
	}
	return err
}

// explainTimes has a flag that takes a time say what is wrong with one.
func explainTimes(f *flag.Flag) {
	if v, ok := f.Value.(flag.Getter); ok {
		if _, ok := v.Get().(time.Duration); ok {
			f.Value = timeValue{v}
		}
	}
}

// timeValue is a flag that takes a time.
type timeValue struct{ flag.Value }

func (v timeValue) Set(s string) error {
	err := v.Value.Set(s)
	if err == nil {
		return nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return fmt.Errorf("it has no unit; did you mean %ss?", s)
	}
	return errors.New("it must be a time with its unit, such as 5s or 1h30m")
}

// lateFlag returns what stands among the arguments and looks like a flag; "" if nothing does.
// After -- nothing is one; nor is anything after the command that run runs.
func (cmd command) lateFlag(f *flag.FlagSet, args []string) string {
	rest := f.Args()
	if cmd.name == "run" {
		if len(rest) > 1 && strings.HasPrefix(rest[1], "-") && rest[1] != "--" {
			return rest[1]
		}
		return ""
	}
	for _, arg := range rest {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		if strings.HasPrefix(arg, "-") && f.Lookup(name) != nil && !slices.Contains(args, "--") {
			return arg
		}
	}
	return ""
}

// names is a flag that may be given several times.
type names []string

// entries are KEY=VALUE.
type entries map[string]string

func (e *entries) String() string { return "" }
func (e *entries) Set(s string) error {
	key, value, found := strings.Cut(s, "=")
	if !found {
		return errors.New("it must be KEY=VALUE")
	}
	if *e == nil {
		*e = entries{}
	}
	(*e)[key] = value
	return nil
}

func (n *names) String() string     { return strings.Join(*n, ",") }
func (n *names) Set(s string) error { *n = append(*n, s); return nil }
