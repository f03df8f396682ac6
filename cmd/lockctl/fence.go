package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"

	"fencepost/client"
)

const fenceHelp = `
Without -admit it shows the state of the token: live, superseded, ended or unissued.
That guards nothing. With -admit the token is admitted (status 0), and lower tokens are
refused from then on; or it is refused (status 1).
`

func fenceFlags(s *settings, f *flag.FlagSet) {
	f.BoolVar(&s.admit, "admit", false, "admit the token, or refuse it")
	f.IntVar(&s.slot, "slot", client.NoSlot, "with -admit, the slot of the permit; -1: none")
}

// fence judges a token, or admits it.
func fence(ctx context.Context, c *call) error {
	name := c.args[0]
	token, err := strconv.ParseInt(c.args[1], 10, 64)
	if err != nil || token < 1 {
		return usage("%q is not a fencing token", c.args[1])
	}
	if !c.admit {
		j, err := c.client.Judge(ctx, name, token)
		switch {
		case err != nil:
			return err
		case c.output == "json":
			return c.json(j)
		}
		_, err = fmt.Fprintf(c.out, "%s; the highest token issued is %d, the highest admitted %d\n", j.Verdict, j.HighestIssued, j.HighestAdmitted)
		return err
	}
	highest, err := c.client.Admit(ctx, name, token, c.slot)
	switch {
	case err != nil:
		return err
	case c.output == "json":
		return c.json(map[string]any{"name": name, "admitted": true, "highest_admitted": highest})
	}
	_, err = fmt.Fprintf(c.out, "admitted; the highest token admitted is %d\n", highest)
	return err
}
