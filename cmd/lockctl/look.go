package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"fencepost/client"
)

// table prints columns; the first row is their names.
func (c *call) table(rows func(row func(cells ...any))) error {
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	rows(func(cells ...any) {
		for i, cell := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, cell)
		}
		fmt.Fprintln(w)
	})
	return w.Flush()
}

func (c *call) optional() string {
	if len(c.args) == 0 {
		return ""
	}
	return c.args[0]
}

func listFlags(s *settings, f *flag.FlagSet) {
	f.StringVar(&s.filter.Query, "q", "", "only those with this `text` in the name, an owner, a lease or the metadata")
	f.StringVar(&s.filter.Mode, "mode", "", "only those that are held in this `mode`: exclusive or shared")
	f.DurationVar(&s.filter.HeldFor, "held-for", 0, "only those with a holder that has had the lock for at least this `time`")
	f.DurationVar(&s.filter.ExpiresWithin, "expires-within", 0, "only those with a lease that expires within this `time`")
	f.BoolVar(&s.filter.Waiting, "waiting", false, "only those that somebody waits for")
	f.BoolVar(&s.filter.Attached, "attached", false, "only those with a lease that is attached to a stream")
	f.BoolVar(&s.filter.Unrenewed, "unrenewed", false, "only those with a lease that was never renewed")
}

func list(ctx context.Context, c *call) (err error) {
	c.filter.Prefix = c.optional()
	if c.output != "text" {
		for l, err := range c.client.Find(ctx, c.filter) {
			switch {
			case err != nil:
				return err
			case c.output == "name":
				fmt.Fprintln(c.out, l.Name)
			default:
				c.json(l)
			}
		}
		return nil
	}
	flushed := c.table(func(row func(...any)) {
		headed := sync.OnceFunc(func() { row("NAME", "MODE", "OWNER", "TOKEN", "HELD", "LEFT", "WAITING") })
		for l, failed := range c.client.Find(ctx, c.filter) {
			if err = failed; err != nil {
				return
			}
			headed()
			for i, h := range l.Holders {
				name, waiting := l.Name, strconv.Itoa(l.Waiting)
				if i > 0 {
					name, waiting = "", ""
				}
				row(name, h.Mode, printable(h.Owner), h.Token, short(time.Since(h.AcquiredAt)), short(millis(h.ExpiresIn)), waiting)
			}
			if more := l.HolderCount - len(l.Holders); more > 0 {
				row("", "", fmt.Sprintf("and %d more", more))
			}
		}
		headed()
	})
	return errors.Join(err, flushed)
}

func get(ctx context.Context, c *call) error {
	l, err := c.client.Inspect(ctx, c.args[0])
	if err != nil {
		return err
	}
	if c.output == "json" {
		return c.json(l)
	}
	if !l.Held && l.Token == 0 && l.Waiting == 0 && l.Delayed == 0 {
		_, err := fmt.Fprintf(c.out, "%s is free; nothing is known of it\n", l.Name)
		return err
	}
	if !l.Held {
		fmt.Fprintf(c.out, "%s is free; its last token is %d\n", l.Name, l.Token)
	} else {
		fmt.Fprintf(c.out, "%s is held, %s, by %d; %d %s\n", l.Name, l.Mode, l.HolderCount, l.Waiting, plural(l.Waiting, "waits", "wait"))
	}
	if l.Delayed > 0 {
		fmt.Fprintf(c.out, "not granted to anybody for %s: a lease with a lock delay ended without a release\n", short(millis(l.Delayed)))
	}
	if len(l.Holders) > 0 || len(l.Waiters) > 0 {
		if err := c.tableOf(&l); err != nil {
			return err
		}
	}
	for _, h := range l.Holders {
		if len(h.Metadata) > 0 {
			fmt.Fprintf(c.out, "metadata of %s: %s\n", printable(h.Owner), textOfMetadata(h.Metadata))
		}
		if h.BreaksIn != nil {
			fmt.Fprintf(c.out, "notice: the lease of %s is broken in at most %s%s\n", printable(h.Owner), short(millis(*h.BreaksIn)), because(h.BreakReason))
		}
	}
	for _, a := range l.Advice {
		fmt.Fprintf(c.out, "advice: %s\n", printable(a.Text))
	}
	return nil
}

// textOfMetadata shows metadata in the order of its keys.
func textOfMetadata(metadata map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		all = append(all, visible(key+"="+metadata[key]))
	}
	return strings.Join(all, ", ")
}

// because gives the reason of a break, if there is one.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + printable(reason)
}

// tableOf prints who holds a lock, and who waits for it.
func (c *call) tableOf(l *client.Lock) error {
	return c.table(func(row func(...any)) {
		row("", "OWNER", "MODE", "LEASE", "TOKEN", "TIME", "LEFT") // of a waiter: what it will wait yet
		for _, h := range l.Holders {
			row("holds", printable(h.Owner), h.Mode, h.Lease, h.Token, short(time.Since(h.AcquiredAt)), short(millis(h.ExpiresIn)))
		}
		for _, w := range l.Waiters {
			row(fmt.Sprintf("waits, %d", w.Position), printable(w.Owner), w.Mode, w.Lease, "", short(millis(w.Waited)), estimate(w.EstimatedWait))
		}
	})
}

// estimate says about how much longer somebody waits, if that is known.
func estimate(ms int64) string {
	if ms == 0 {
		return ""
	}
	return "about " + short(max(millis(ms), 100*time.Millisecond))
}

func watch(ctx context.Context, c *call) error {
	for e, err := range c.client.Events(ctx, c.optional()) {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil // that is how it ends
		case err != nil:
			return err
		case c.output == "json":
			if err := c.json(e); err != nil {
				return err
			}
		case e.Kind == "resync":
			if _, err := fmt.Fprintln(c.out, "events may be missing here"); err != nil {
				return err
			}
		default:
			line := fmt.Sprintf("%s  %-8s  %s  %s", e.At.Local().Format("15:04:05.000"), e.Kind, e.Name, printable(e.Owner))
			if e.Token > 0 {
				line += fmt.Sprintf("  %d", e.Token)
			}
			if e.BreaksAt != nil {
				line += "  until " + e.BreaksAt.Local().Format("15:04:05.000")
			}
			if e.Evicted {
				line += "  evicted"
			}
			if e.BreakReason != "" {
				line += "  " + printable(e.BreakReason)
			}
			if _, err := fmt.Fprintln(c.out, line); err != nil {
				return err
			}
		}
	}
	return nil
}

func history(ctx context.Context, c *call) error {
	past, err := c.client.History(ctx, c.args[0])
	if err != nil {
		return err
	}
	if c.output == "json" {
		for _, p := range past {
			c.json(p)
		}
		return nil
	}
	if len(past) == 0 {
		_, err := fmt.Fprintf(c.out, "nobody is known to have had %s\n", c.args[0])
		return err
	}
	return c.table(func(row func(...any)) {
		row("ACQUIRED", "OWNER", "MODE", "TOKEN", "WAITED", "HELD", "OUTCOME")
		for _, p := range past {
			row(p.AcquiredAt.Local().Format(time.DateTime), printable(p.Owner), p.Mode, p.Token, short(millis(p.Waited)), short(millis(p.Held)), p.Outcome+because(p.BreakReason))
		}
	})
}

// doctor fails if a gateway is not ready, or has found that a promise is in danger.
func doctor(ctx context.Context, c *call) error {
	all := c.client.Examine(ctx)
	troubles, silent := 0, 0
	var last error
	for _, r := range all {
		if c.output == "json" {
			c.json(r)
		} else {
			c.printReadiness(r)
		}
		if !r.Ready {
			troubles++
		}
		if !r.Ready && r.Checks == nil {
			silent++
			last = r.Err
		}
		for _, check := range r.Checks {
			if !check.OK {
				troubles++
			}
		}
	}
	switch {
	case silent == len(all) && statusOf(last) == exitNotAllowed: // it can be reached
		return last
	case silent == len(all):
		return exit{status: exitUnreachable, err: fmt.Errorf("no gateway can be reached: %w", last)}
	case troubles == 1:
		return exit{status: exitFailed, err: errors.New("1 finding")}
	case troubles > 0:
		return exit{status: exitFailed, err: fmt.Errorf("%d %s", troubles, plural(troubles, "finding", "findings"))}
	}
	return nil
}

func (c *call) printReadiness(r client.Readiness) {
	state := "ready"
	if !r.Ready {
		state = "NOT READY: " + r.Detail
	}
	fmt.Fprintf(c.out, "%s: %s", r.Address, state)
	if r.Store != "" {
		fmt.Fprintf(c.out, "; store %s, version %s", r.Store, r.Version)
	}
	fmt.Fprintln(c.out)
	for _, check := range r.Checks {
		mark := "ok  "
		if !check.OK {
			mark = "BAD "
		}
		fmt.Fprintf(c.out, "  %s%s", mark, check.Name)
		if left := check.Remaining; !check.OK && left != nil {
			fmt.Fprintf(c.out, "  %s left", short(millis(*left)))
		}
		for _, more := range []string{check.Node, check.Promise, check.Detail} {
			if more != "" {
				fmt.Fprintf(c.out, "  %s", more)
			}
		}
		if !check.OK && check.Remedy != "" {
			fmt.Fprintf(c.out, "\n        %s", check.Remedy)
		}
		fmt.Fprintln(c.out)
	}
}

// plural is the word for so many.
func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
