// Verify runs what is too long for make test: real gateways on real stores with crowds
// of clients, faults, attacks and long random histories. Every check prints what it
// counted and what it found. At full scale it writes VERIFICATION.md; it exits with 1
// if anything was found.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"fencepost/verify/attack"
	"fencepost/verify/check"
	"fencepost/verify/clients"
)

func main() {
	attack.Main()  // does not return in a process that is part of an attack
	clients.Main() // nor this in one that is a client of a trial
	list := flag.Bool("list", false, "list the checks")
	only := flag.String("only", "", "names of checks to run, separated by commas; no report is written then")
	scale := flag.String("scale", string(check.Full), "part (some minutes) or full (an hour and a half on two cores)")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of all that is random")
	soak := flag.Duration("soak", 0, "how long each soak takes; 0: as the scale has it")
	limit := flag.Duration("limit", 30*time.Minute, "no history is begun after it; how many did not fit is reported")
	report := flag.String("report", "VERIFICATION.md", "file to write at full scale")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	all := checks(*soak, *limit)
	if *list {
		for _, c := range all {
			fmt.Printf("%-20s %s\n", c.Name, c.Title)
		}
		return
	}
	if err := run(ctx, all, *only, check.Scale(*scale), *seed, *report); err != nil {
		fmt.Fprintln(os.Stderr, "verify:", err)
		stop()
		os.Exit(1)
	}
}

// outcome is what came of a check.
type outcome struct {
	check.Check
	result *check.Result
	took   time.Duration
	err    error // why it could not be run to its end
}

func (o outcome) passed() bool {
	n, _ := o.result.Violations()
	return n == 0 && o.err == nil
}

func run(ctx context.Context, all []check.Check, only string, scale check.Scale, seed uint64, report string) error {
	if scale != check.Part && scale != check.Full {
		return fmt.Errorf("-scale is %q; it must be part or full", scale)
	}
	if only != "" {
		var err error
		if all, err = choose(all, strings.Split(only, ",")); err != nil {
			return err
		}
	}
	begun := time.Now()
	all = slices.DeleteFunc(all, func(c check.Check) bool { return c.FullOnly && scale == check.Part && only == "" })
	var done []outcome
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[0].Beside != "" && all[n].Beside == all[0].Beside {
			n++
		}
		done = append(done, beside(ctx, all[:n], scale, seed)...)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		all = all[n:]
	}
	failed := 0
	for _, o := range done {
		if !o.passed() {
			failed++
		}
	}
	fmt.Printf("%d checks in %s with seed %d, %d failed\n", len(done), time.Since(begun).Round(time.Second), seed, failed)
	if scale == check.Full && only == "" {
		if err := writeReport(report, done, seed, time.Since(begun)); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

// beside runs checks side by side, and tells what came of each when it is over.
func beside(ctx context.Context, checks []check.Check, scale check.Scale, seed uint64) []outcome {
	var running sync.WaitGroup
	var printing sync.Mutex
	done := make([]outcome, len(checks))
	for i, c := range checks {
		running.Go(func() {
			o := outcome{Check: c, result: check.NewResult(seed)}
			started := time.Now()
			o.err = c.Run(ctx, scale, o.result)
			o.took = time.Since(started)
			done[i] = o
			printing.Lock()
			defer printing.Unlock()
			o.print()
		})
	}
	running.Wait()
	return done
}

func (o outcome) print() {
	fmt.Printf("== %s: %s\n   %s (%s)\n", o.Name, o.Title, o.result, o.took.Round(time.Second))
	for _, did := range o.result.Harms.Lines() {
		fmt.Println("   fault", did)
	}
	for _, note := range o.result.Notes() {
		fmt.Println("  ", note)
	}
	n, violations := o.result.Violations()
	for _, v := range violations {
		fmt.Println("   VIOLATION:", v)
	}
	if n > len(violations) {
		fmt.Printf("   and %d more\n", n-len(violations))
	}
	if o.err != nil {
		fmt.Println("   FAILED:", o.err)
	}
}

// choose returns the checks of these names, in the order of the list.
func choose(all []check.Check, names []string) (chosen []check.Check, err error) {
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c check.Check) bool { return c.Name == name }) {
			return nil, fmt.Errorf("there is no check %q; -list lists them", name)
		}
	}
	for _, c := range all {
		if slices.Contains(names, c.Name) {
			chosen = append(chosen, c)
		}
	}
	return chosen, nil
}
