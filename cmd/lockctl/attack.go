package main

import (
	"context"
	"flag"
	"fmt"

	"fencepost/client"
	"fencepost/fence/fencetest"
)

const attackHelp = `
The storage is a URL that accepts PUT with Fencing-Token, or the commands of -write and
-read, which sh runs with RESOURCE, FENCING_TOKEN, VALUE and, for a permit, SLOT in their
environment: status 0 means that the write was admitted, 1 that it was refused. The attack
uses resources with names of its own. The exit status is 1 if a write was admitted or
refused wrongly.
`

func attackFlags(s *settings, f *flag.FlagSet) {
	f.StringVar(&s.write, "write", "", "`COMMAND` that writes VALUE to RESOURCE under FENCING_TOKEN")
	f.StringVar(&s.read, "read", "", "`COMMAND` that prints the content of RESOURCE; without one only answers are judged")
	f.BoolVar(&s.attack.Permits, "permits", false, "attack with slots of permits as well")
	f.BoolVar(&s.issued, "issued", false, "take the tokens from the gateway, and require that others are refused")
	f.IntVar(&s.attack.Rounds, "rounds", 0, "`number` of random and of concurrent writes; 0: 20")
	f.IntVar(&s.attack.Writers, "writers", 0, "`number` of concurrent writers; 0: 8")
	f.Uint64Var(&s.attack.Seed, "seed", 0, "seed of an earlier attack to repeat; 0: from the time")
}

// attack throws tokens at storage, and says what got through.
func attack(ctx context.Context, c *call) error {
	var storage fencetest.Storage
	switch {
	case len(c.args) == 1 && c.write == "" && c.read == "":
		storage = fencetest.URL{URL: c.args[0]}
	case len(c.args) == 0 && c.write != "":
		command := fencetest.Command{WriteArgs: []string{"sh", "-c", c.write}}
		if c.read != "" {
			command.ReadArgs = []string{"sh", "-c", c.read}
		}
		storage = command
	default:
		return usage("usage: lockctl attack [flags] URL, or lockctl attack [flags] -write COMMAND")
	}
	if c.issued {
		c.attack.KnowsIssued, c.attack.Issue = true, c.issue
	}
	report, err := fencetest.Attack(ctx, storage, c.attack)
	if err != nil {
		return err
	}
	if c.output == "json" {
		err = c.jsonReport(report)
	} else {
		_, err = fmt.Fprintf(c.out, "%sseed %d\n", report, report.Seed)
	}
	if err == nil && report.Err() != nil {
		err = exit{status: exitFailed}
	}
	return err
}

// issue has the gateway issue tokens, by taking a lock in turn.
func (c *call) issue(ctx context.Context, resource string, n int) (tokens []int64, err error) {
	for range n {
		l, err := c.client.Acquire(ctx, resource, client.NotRenewed())
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, l.Token())
		if err := l.Release(ctx); err != nil {
			return nil, err
		}
	}
	return tokens, nil
}

// jsonReport prints an object for each kind of attack, and one for the whole.
func (c *call) jsonReport(r *fencetest.Report) error {
	for _, t := range r.Tallies {
		if err := c.json(map[string]any{
			"attack": t.Attack, "writes": t.Writes, "admitted": t.Admitted, "refused": t.Refused, "failed": t.Failed, "findings": t.Through,
		}); err != nil {
			return err
		}
	}
	return c.json(map[string]any{"seed": r.Seed, "ok": r.Err() == nil, "blind": r.Blind, "findings": append([]string{}, r.Findings...), "notes": append([]string{}, r.Notes...)})
}
