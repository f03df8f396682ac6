package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fencepost/verify/check"
)

// goTest is a run of go test.
type goTest struct {
	pkg  string
	args []string // of go test
	env  []string
}

// run returns the output, and notes the command, once, and, as violations, the tests that
// failed. Interrupted, it asks go test to end, which ends its tests.
func (g goTest) run(ctx context.Context, r *check.Result) (out string, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", g.pkg, "-count", "1", "-v"}, g.args...)...)
	cmd.Env = append(os.Environ(), g.env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 20 * time.Second
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if command := strings.TrimSpace(strings.Join(g.env, " ") + " " + strings.Join(cmd.Args, " ")); !slices.Contains(r.Notes(), command) {
		r.Note("%s", command)
	}
	err = cmd.Run()
	out = text.String()
	if err != nil {
		r.Violation("go test: %v\n%s", err, out[max(0, len(out)-6000):])
	} else if strings.Contains(out, "no tests to run") {
		r.Violation("there is no such test in %s: %v", g.pkg, g.args)
	}
	return out, ctx.Err()
}

// sum adds up the numbers that a pattern's first group has found.
func sum(out, pattern string) (total int) {
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1) {
		n, err := strconv.Atoi(found[1])
		if err == nil {
			total += n
		}
	}
	return total
}

// failOvers has masters die with what no replica has. The tests count them.
func failOvers(ctx context.Context, scale check.Scale, r *check.Result) error {
	want := check.Pick(scale, 8, 200)
	out, err := goTest{
		pkg: "./internal/redis", args: []string{"-run", "^TestFailovers$", "-timeout", "40m"},
		env: []string{fmt.Sprintf("FENCEPOST_FAILOVERS=%d", want)},
	}.run(ctx, r)
	if err != nil {
		return err
	}
	lossy := sum(out, `(\d+) fail-overs with a loss`)
	r.Count("fail-overs with lost writes", lossy)
	r.Count("grants", sum(out, `(\d+) grants, \d+ of them lost`))
	r.Count("grants lost", sum(out, `grants, (\d+) of them lost`))
	if lossy < want {
		r.Violation("%d fail-overs lost writes, want %d", lossy, want)
	}
	return nil
}

// durability runs the tests of the embedded store that are about what is on disk: at
// full scale as often as they say at FENCEPOST_LONG.
func durability(ctx context.Context, scale check.Scale, r *check.Result) error {
	g := goTest{pkg: "./internal/embedded", args: []string{"-timeout", "40m"}}
	if scale == check.Full {
		g.env = []string{"FENCEPOST_LONG=1"}
	}
	out, err := g.run(ctx, r)
	r.Count("tests", len(regexp.MustCompile(`(?m)^\s*--- PASS`).FindAllString(out, -1)))
	return err
}

// conformance holds every store against fencing.Step: every case on every topology, of
// which each change plays a sample, in more random histories, and the scripts of Redis
// in longer plays.
func conformance(ctx context.Context, scale check.Scale, r *check.Result) error {
	histories := check.Pick(scale, 20, 200)
	for _, of := range []struct{ pkg, tests string }{
		{"./internal/embedded", "Conformance"}, {"./internal/redis", "Conformance|^TestStep$"}, {"./internal/quorum", "Conformance"},
	} {
		out, err := goTest{
			pkg: of.pkg, args: []string{"-run", of.tests, "-timeout", "40m"}, env: []string{"FENCEPOST_LONG=1", fmt.Sprintf("FENCEPOST_HISTORIES=%d", histories)},
		}.run(ctx, r)
		if err != nil {
			return err
		}
		r.Count("histories, "+of.pkg, sum(out, `(\d+) histories of \d+ steps`))
	}
	return nil
}

// simulations play schedules of the quorum's protocol, and of the queue under the real
// watchdog.
func simulations(ctx context.Context, scale check.Scale, r *check.Result) error {
	for _, s := range []struct {
		pkg, test  string
		part, full int
	}{
		{"./internal/quorum", "^TestSimulation$", 20_000, 1_000_000},
		{"./internal/watchdog", "^TestSimulatedSchedules$", 20, 1_000},
	} {
		out, err := goTest{
			pkg: s.pkg, args: []string{"-run", s.test, "-timeout", "40m"},
			env: []string{fmt.Sprintf("FENCEPOST_SCHEDULES=%d", check.Pick(scale, s.part, s.full))},
		}.run(ctx, r)
		if err != nil {
			return err
		}
		r.Count("schedules, "+s.pkg, sum(out, `(\d+) schedules`))
	}
	return nil
}

// minorities has any minority of 3 and 5 nodes of a quorum fail.
func minorities(ctx context.Context, scale check.Scale, r *check.Result) error {
	g := goTest{pkg: "./internal/quorum", args: []string{"-run", "^TestMinorityFailsUnderLoad$", "-timeout", "20m"}}
	if scale == check.Full {
		g.env = []string{"FENCEPOST_LONG=1"}
	}
	out, err := g.run(ctx, r)
	r.Count("grants", sum(out, `(\d+) grants`))
	return err
}

// fuzzTargets are those that go through the router, with their share of the inputs.
var fuzzTargets = []struct {
	name  string
	share int // of 5
}{{"FuzzBody", 2}, {"FuzzLeaseID", 1}, {"FuzzName", 1}, {"FuzzNames", 1}}

// fuzzRounds of all targets are run, until the limit is over: the next is not begun then.
const fuzzRounds = 10

// fuzz feeds the router of internal/http, with the embedded store behind it. What did
// not fit into the time is told, and no violation.
func fuzz(limit time.Duration) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return fuzzFor(ctx, scale, limit, r)
	}
}

func fuzzFor(ctx context.Context, scale check.Scale, limit time.Duration, r *check.Result) error {
	inputs, rounds := check.Pick(scale, 50_000, 5_000_000), check.Pick(scale, 1, fuzzRounds)
	begun, total := time.Now(), 0
	for round := range rounds {
		if time.Since(begun) > limit {
			r.Note("not covered: %d of %d inputs did not fit into %s", inputs-total, inputs, limit)
			break
		}
		for _, target := range fuzzTargets {
			n := inputs * target.share / 5 / rounds
			out, err := goTest{pkg: "./internal/http", args: []string{
				"-run", "^$", "-fuzz", "^" + target.name + "$", "-fuzztime", fmt.Sprintf("%dx", n), "-timeout", "60m",
			}}.run(ctx, r)
			if err != nil {
				return err
			}
			done := lastNumber(out, `execs: (\d+)`)
			if total += done; done < n*99/100 { // workers stop at about the number
				r.Violation("round %d: %s had %d inputs, want %d", round, target.name, done, n)
			}
		}
	}
	r.Count("inputs", total)
	r.Count("inputs/s", int(float64(total)/time.Since(begun).Seconds()))
	return nil
}

// lastNumber returns the number that a pattern's first group has found last.
func lastNumber(out, pattern string) int {
	all := regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1][1])
	return n
}
