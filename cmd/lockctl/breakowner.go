package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"fencepost/client"
)

const breakHelp = `
With -owner it breaks all leases whose owner is OWNER, or begins with OWNER and a colon. By
default owners are called host:process, so -owner host1 means every process of that host. It
lists the leases first and asks; leases that are granted later are not broken.
`

// ownedLease is one of the leases to break.
type ownedLease struct {
	name string
	client.Holder
}

// isOf reports whether an owner is the one that is meant, or a process of it.
func isOf(owner, meant string) bool {
	return owner == meant || strings.HasPrefix(owner, meant+":")
}

// breakOwned breaks the leases of an owner.
func breakOwned(ctx context.Context, c *call) error {
	owned, unseen, err := c.leasesOf(ctx, c.owner)
	if err != nil {
		return err
	}
	if len(owned) == 0 && len(unseen) == 0 {
		fmt.Fprintf(c.err, "lockctl: no lease belongs to %s\n", visible(c.owner))
		return nil
	}
	if len(owned) > 0 {
		if err := c.confirm(ctx, owned); err != nil {
			return err
		}
	}
	failed := 0
	for i, l := range owned {
		switch err := c.breakOne(ctx, l); {
		case err == nil:
		case errors.Is(err, client.ErrUnreachable), ctx.Err() != nil:
			return fmt.Errorf("%s, and what follows it, %d of %d leases, may not have been broken: %w", l.name, len(owned)-i, len(owned), err)
		case errors.Is(err, client.CodeStaleToken):
			fmt.Fprintf(c.err, "lockctl: %s: the lease %d had already ended\n", l.name, l.Token)
		default:
			failed++
			fmt.Fprintf(c.err, "lockctl: %s: the lease %d was not broken: %s\n", l.name, l.Token, err)
		}
	}
	more := false // there may be, and can be seen once those here are broken
	for _, name := range unseen {
		fmt.Fprintf(c.err, "lockctl: %s has more holders than a list shows, perhaps some of %s\n", name, visible(c.owner))
		more = more || slices.ContainsFunc(owned, func(l ownedLease) bool { return l.name == name })
	}
	if failed > 0 {
		return exit{status: exitFailed, err: fmt.Errorf("%d of %d leases were not broken", failed, len(owned))}
	}
	if more {
		return exit{status: exitFailed, err: errors.New("there may be more leases: run break again")}
	}
	return nil
}

// leasesOf returns the leases of an owner, and the names of which not all holders can be seen. No
// search of the gateway's finds them: that looks at 100 holders of a name.
func (c *call) leasesOf(ctx context.Context, owner string) (owned []ownedLease, unseen []string, err error) {
	for l, err := range c.client.List(ctx, c.filter.Prefix) {
		if err == nil && l.HolderCount > len(l.Holders) {
			l, err = c.client.Inspect(ctx, l.Name)
		}
		if err != nil {
			return nil, nil, err
		}
		for _, h := range l.Holders {
			if isOf(h.Owner, owner) {
				owned = append(owned, ownedLease{l.Name, h})
			}
		}
		if l.HolderCount > len(l.Holders) {
			unseen = append(unseen, l.Name)
		}
	}
	return owned, unseen, nil
}

// confirm shows the leases, and returns an error unless they are to be broken.
func (c *call) confirm(ctx context.Context, owned []ownedLease) error {
	if c.output != "json" {
		err := c.table(func(row func(...any)) {
			row("NAME", "MODE", "OWNER", "TOKEN", "HELD", "LEFT")
			for _, l := range owned {
				row(l.name, l.Mode, printable(l.Owner), l.Token, short(time.Since(l.AcquiredAt)), short(millis(l.ExpiresIn)))
			}
		})
		if err != nil {
			return err
		}
	}
	if c.yes {
		return nil
	}
	if c.output == "json" {
		return usage("nothing was broken: with -o json lockctl does not ask; use -yes to break them without asking")
	}
	if !isTerminal(os.Stdin) {
		return usage("nothing was broken: there is no terminal to ask on; use -yes to break them without asking")
	}
	fmt.Fprintf(c.err, "Break %s? [y/N] ", plural(len(owned), "this lease", fmt.Sprintf("these %d leases", len(owned))))
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return exit{status: exitFailed, err: errors.New("nothing was broken")}
}

// breakOne breaks one of the leases, and says so.
func (c *call) breakOne(ctx context.Context, l ownedLease) error {
	var told client.Holder
	held := false
	var err error
	if c.notice == 0 {
		err = c.client.Break(ctx, l.name, l.Token, c.reason)
	} else {
		told, held, err = c.client.BreakWithNotice(ctx, l.name, l.Token, c.notice, c.reason)
	}
	switch {
	case err != nil:
		return err
	case c.output == "json":
		return c.json(map[string]any{"name": l.name, "fencing_token": l.Token, "owner": l.Owner, "broken": !held})
	case held && told.BreaksIn != nil:
		_, err = fmt.Fprintf(c.out, "%s: %s gets notice and keeps the lock for at most %s\n", l.name, printable(told.Owner), short(millis(*told.BreaksIn)))
	default:
		_, err = fmt.Fprintf(c.out, "%s: the lease %d was broken\n", l.name, l.Token)
	}
	return err
}
