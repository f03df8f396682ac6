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
	module string // directory of another module that pkg is of; empty: this one
	pkg    string
	args   []string // of go test
	env    []string
}

// run returns the output, and notes the command, once, and, as violations, the tests that
// failed. Interrupted, it asks go test to end, which ends its tests.
func (g goTest) run(ctx context.Context, r *check.Result) (out string, err error) {
	args := []string{"test"}
	if g.module != "" {
		args = append(args, "-C", g.module)
	}
	args = append(args, g.pkg, "-count", "1", "-v")
	cmd := exec.CommandContext(ctx, "go", append(args, g.args...)...)
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
		r.Violation("go test: %v\n%s", err, failures(out))
	} else if strings.Contains(out, "no tests to run") {
		r.Violation("there is no such test in %s: %v", g.pkg, g.args)
	}
	return out, ctx.Err()
}

// serverLog is a line of a Redis's log, of which a test that fails shows thousands.
var serverLog = regexp.MustCompile(`^(\S+: \S+ \d+: \.\.\. .*|\d+:[XCSM] \d+ \w+ \d{4} .*)$`)

// failures returns what an output has about tests that failed, without the logs of
// servers, its end if it is long.
func failures(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		word := strings.TrimSpace(line)
		if !strings.HasPrefix(word, "--- PASS") && !strings.HasPrefix(word, "=== ") && !serverLog.MatchString(word) {
			lines = append(lines, line[:min(len(line), 1000)])
		}
	}
	told := strings.Join(lines, "")
	return told[max(0, len(told)-6000):]
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
	r.Reach("fail-overs with lost writes", lossy, want)
	r.Count("grants", sum(out, `(\d+) grants, \d+ of them lost`))
	lost := sum(out, `grants, (\d+) of them lost`)
	r.Count("grants lost", lost)
	r.Harms.Add("master killed with what no replica has", check.Harm{To: "masters", What: "grants lost", N: lost})
	return nil
}

// standstills has gateways stand still in a turn. The tests tell for how long others have waited.
func standstills(ctx context.Context, scale check.Scale, r *check.Result) error {
	const longest = 3000 // ms, as docs/stores/database.md says
	harmed := check.Pick(scale, 8, 40)
	out, err := goTest{
		pkg: "./verify/system", args: []string{"-run", "^TestSystemTurns$", "-timeout", "40m"}, env: []string{fmt.Sprintf("FENCEPOST_TURNS=%d", harmed)},
	}.run(ctx, r)
	r.Reach("harmed turns", sum(out, `(\d+) turns harmed`), 2*harmed)
	var worst []string
	for _, database := range regexp.MustCompile(`longest wait (\d+) ms`).FindAllStringSubmatch(out, -1) {
		if wait, err := strconv.Atoi(database[1]); err != nil || wait > longest {
			r.Violation("others waited for %s ms, %d are promised", database[1], longest)
		}
		worst = append(worst, database[1])
	}
	r.Count("longest waits of others, ms", strings.Join(worst, ", "))
	return err
}

// durabilities are what the tests of the embedded store count, and how much of it full
// scale asks for.
var durabilities = []check.Reached{
	{What: "kill -9", Asked: 300}, {What: "power-loss images", Asked: 5_000}, {What: "failed fsync", Asked: 50},
	{What: "disk full", Asked: 50}, {What: "damaged places", Asked: 2_000},
}

// durability runs the tests of the embedded store that are about what is on disk: at
// full scale as often as they say at FENCEPOST_LONG.
func durability(ctx context.Context, scale check.Scale, r *check.Result) error {
	g := goTest{pkg: "./internal/embedded", args: []string{"-timeout", "40m"}}
	if scale == check.Full {
		g.env = []string{"FENCEPOST_LONG=1"}
	}
	out, err := g.run(ctx, r)
	for _, d := range durabilities {
		done := sum(out, "verified: "+d.What+` (\d+), `)
		r.Reach(d.What, done, check.Pick(scale, min(done, d.Asked), d.Asked))
	}
	r.Count("tests", len(regexp.MustCompile(`(?m)^\s*--- PASS`).FindAllString(out, -1)))
	return err
}

// conformance holds every store against fencing.Step: every case on every topology, of
// which each change plays a sample, in more random histories, and the library of Redis
// in longer plays.
func conformance(ctx context.Context, scale check.Scale, r *check.Result) error {
	histories := check.Pick(scale, 5, 50)
	for _, of := range []struct{ pkg, tests string }{
		{"./internal/embedded", "^TestConformance"}, {"./internal/redis", "^TestConformance|^TestStep$"}, {"./internal/quorum", "^TestConformance"},
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

// simulations play schedules of the quorum's protocol, of the queue under the real
// watchdog, and of streams at real gateways.
func simulations(ctx context.Context, scale check.Scale, r *check.Result) error {
	for _, s := range []struct {
		pkg, test  string
		part, full int
	}{
		{"./internal/quorum", "^TestSimulation$", 20_000, 1_000_000},
		{"./internal/watchdog", "^TestSimulatedSchedules$", 20, 1_000},
		{"./internal/session", "^TestSimulatedStreams$", 1_000, 100_000},
	} {
		out, err := goTest{
			pkg: s.pkg, args: []string{"-run", s.test, "-timeout", "90m"},
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
	for _, did := range regexp.MustCompile(`fault ([a-z ]+): (\d+) ([a-z ]+)`).FindAllStringSubmatch(out, -1) {
		n, _ := strconv.Atoi(did[2])
		r.Harms.Add("node "+did[1], check.Harm{To: "nodes", What: did[3], N: n})
	}
	return err
}

// storageRecipes runs what docs/storage says on the real servers, which a module of its own does.
func storageRecipes(ctx context.Context, scale check.Scale, r *check.Result) error {
	rounds := check.Pick(scale, 3, 200)
	out, err := goTest{
		module: "verify/storage", pkg: ".", args: []string{"-parallel", "8", "-timeout", "40m"},
		env: []string{fmt.Sprintf("FENCEPOST_ROUNDS=%d", rounds)},
	}.run(ctx, r)
	recipes := len(regexp.MustCompile(`: with its guard`).FindAllString(out, -1))
	r.Reach("stopped holders", sum(out, `: with its guard (\d+) stopped holders`), rounds*recipes)
	if r.Count("recipes", recipes); recipes == 0 {
		r.Violation("no recipe was tried")
	}
	r.Count("stale writes that stand", sum(out, `: with its guard \d+ stopped holders, (\d+) stale`))
	r.Count("stale writes that stand without the guard", sum(out, `: without its guard \d+ stopped holders, (\d+) stale`))
	r.Count("writes of the attack kit", sum(out, `attacked with (\d+) writes`))
	return err
}

// fuzzTargets are those that go through the router, with their share of the inputs.
var fuzzTargets = []struct {
	name  string
	share int // of 5
}{{"FuzzBody", 2}, {"FuzzLeaseID", 1}, {"FuzzName", 1}, {"FuzzNames", 1}}

// fuzz feeds the router of internal/http, with the model of the rules behind it: most
// inputs are made of seeds by chance, at full scale some are searched for, which is slow and
// needs a build of its own.
func fuzz(ctx context.Context, scale check.Scale, r *check.Result) error {
	made, searched := check.Pick(scale, 200_000, 4_800_000), check.Pick(scale, 0, 200_000)
	out, err := goTest{
		pkg: "./internal/http", args: []string{"-run", "^TestMutatedInputs$", "-timeout", "40m"},
		env: []string{fmt.Sprintf("FENCEPOST_INPUTS=%d", made), fmt.Sprintf("FENCEPOST_SEED=%d", r.Seed)},
	}.run(ctx, r)
	if err != nil {
		return err
	}
	done := sum(out, `(\d+) inputs`)
	r.Count("made of seeds", done)
	guided, targets := 0, fuzzTargets
	if searched == 0 {
		targets = nil
	}
	for _, target := range targets {
		out, err := goTest{pkg: "./internal/http", args: []string{
			"-run", "^$", "-fuzz", "^" + target.name + "$", "-fuzztime", fmt.Sprintf("%dx", searched*target.share/5), "-timeout", "60m",
		}}.run(ctx, r)
		if err != nil {
			return err
		}
		guided += lastNumber(out, `execs: (\d+)`)
	}
	r.Count("searched for new code", guided)
	r.Reach("inputs", done+guided, (made+searched)*99/100) // workers of a search stop at about the number
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
