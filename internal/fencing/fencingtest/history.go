package fencingtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// historySteps is the length of a random history: long enough that leases are
// granted, end in every way and are forgotten in it, several times over.
const historySteps = 120

var historyNames = []fencing.Name{"a", "a/b", "b"}

// generator makes up the next command of a history. It looks at the model to
// aim at what is interesting: the present holder, the instant of an expiry.
type generator struct {
	rand   *rand.Rand
	d      *duel
	recent []string // leases used lately, the newest last
	fresh  int      // how many leases were made up
}

func newGenerator(seed uint64, d *duel) *generator {
	return &generator{rand: rand.New(rand.NewPCG(seed, 0)), d: d}
}

func pick[T any](g *generator, from ...T) T { return from[g.rand.IntN(len(from))] }

// oneIn is true once in n times.
func (g *generator) oneIn(n int) bool { return g.rand.IntN(n) == 0 }

func (g *generator) next(step int) *command {
	c := &command{where: fmt.Sprintf("step %d", step)}
	if g.oneIn(3) {
		c.handle = 1
	}
	switch n := g.rand.IntN(100); {
	case n < 30:
		c.verb = "acquire"
		g.acquire(c)
	case n < 44:
		c.verb = "renew"
		g.lease(c)
		c.ttl = pick(g, 0, 0, time.Second, 10*time.Second, 10*time.Minute)
	case n < 54:
		c.verb = "release"
		g.lease(c)
	case n < 61:
		c.verb = "takeback"
		g.lease(c)
		c.stamp = pick(g, "r1", "r2")
	case n < 68:
		c.verb, c.name = "break", pick(g, historyNames...)
		c.back = pick(g, 0, 1, 1, 1, 1, 2, 3, 8, 9)
	case n < 72:
		g.list(c)
	case n < 77:
		c.verb, c.limit, c.repeat = "expire", pick(g, 0, 0, 1, 2), !g.oneIn(3)
	case n < 79:
		c.verb = "stats"
	case n < 85 && g.d.caps.OwnClock:
		c.verb = "skew"
		c.by = pick(g, 0, 0, 0, 0, MaxSkew, -MaxSkew, MaxSkew+time.Microsecond, -MaxSkew-time.Microsecond, 5*time.Second, -time.Hour)
	default:
		c.verb, c.by = "advance", g.step()
	}
	return c
}

func (g *generator) acquire(c *command) {
	g.lease(c)
	c.ttl = pick(g, 0, time.Second, 10*time.Second, 10*time.Second, 10*time.Minute)
	if g.oneIn(40) {
		c.ttl = 24 * time.Hour
	}
	if g.oneIn(4) {
		c.maxHold = pick(g, 10*time.Minute, 24*time.Hour)
	}
	c.owner = pick(g, "", "w1", "W 2", `"<%s>"`)
	if g.oneIn(3) {
		c.metadata = map[string]string{"build": pick(g, "42", "", "4 2")}
	}
	if g.oneIn(4) {
		c.metadata = map[string]string{"zone": "b", "ключ": "☂ 𝄞"}
	}
	c.stamp = pick(g, "r1", "r1", "r2")
}

// lease picks a name and a lease: that of the holder, one used lately, or a new
// one; sometimes with another secret.
func (g *generator) lease(c *command) {
	c.name = pick(g, historyNames...)
	record := g.d.model.memory().state.Records[c.name]
	switch n := g.rand.IntN(100); {
	case n < 45 && record != nil && len(record.Holders) > 0:
		c.lease = side{g.d, ofModel}.leaseLabel(record.Holders[0].Lease)
	case n < 70 && len(g.recent) > 0:
		c.lease = pick(g, g.recent...)
	default:
		c.lease = string(rune('A' + g.fresh%26))
		if g.fresh >= 26 {
			c.lease += fmt.Sprint(g.fresh / 26)
		}
		g.fresh++
		g.recent = append(g.recent, c.lease)
		if len(g.recent) > 4 {
			g.recent = g.recent[1:]
		}
	}
	if g.oneIn(12) {
		c.lease += "'"
	}
}

func (g *generator) list(c *command) {
	c.verb, c.walk = "list", g.oneIn(2)
	c.list.Prefix = pick(g, "", "", "a", "a/", "c")
	c.list.Query = pick(g, "", "", "", "W1", "b", "%")
	c.list.After = pick[fencing.Name](g, "", "", "a", "a/a")
	c.limit = pick(g, 0, 1, 2)
	c.list.Limit = c.limit
}

// step picks how far to move the time: a little, much, or exactly to where
// something ends or is forgotten, give or take a microsecond.
func (g *generator) step() time.Duration {
	if g.oneIn(2) {
		var ends []fencing.Instant
		state := g.d.model.memory().state
		for _, name := range historyNames {
			if record := state.Records[name]; record != nil {
				if len(record.Holders) > 0 || g.oneIn(10) {
					ends = append(ends, record.Due())
				}
			}
			for _, lease := range g.recent {
				if tomb, ok := state.Tombstones[fencing.EndedLease{Name: name, Lease: leaseOf(lease).Public()}]; ok {
					ends = append(ends, tomb.Until)
				}
			}
		}
		ends = slices.DeleteFunc(ends, func(end fencing.Instant) bool { return end <= g.d.now+1 })
		if len(ends) > 0 {
			return pick(g, ends...).Sub(g.d.now) + pick(g, -time.Microsecond, 0, 0, time.Microsecond)
		}
	}
	if g.oneIn(30) {
		return pick(g, 24*time.Hour, 25*time.Hour)
	}
	return pick(g, time.Microsecond, time.Millisecond, 100*time.Millisecond, time.Second, 9*time.Second, 30*time.Second, fencing.TombstoneTTL, 6*time.Minute)
}

// randomHistory plays a history on a fresh backend. It returns the commands up
// to the one that failed, and what went wrong.
func randomHistory(t testing.TB, open Open, caps Capabilities, seed uint64) ([]*command, error) {
	defer scoped(&t)()
	d := newDuel(t, open, caps)
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
	d := newDuel(t, open, caps)
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
	for _, need := range []string{"own_clock", "flush"} {
		verb := map[string]string{"own_clock": "skew", "flush": "flush"}[need]
		if slices.ContainsFunc(commands, func(c *command) bool { return c.verb == verb }) {
			fmt.Fprintf(b, "needs %s\n", need)
		}
	}
	b.WriteString("\n")
	d := newDuel(t, openModel(caps.OwnClock || caps.Flush), caps)
	d.number = true
	for _, c := range commands {
		written := *c
		if c.verb == "break" {
			written.token = d.toBreak(c).label
			if written.token == "" {
				written.token = "#0" // was never issued
			}
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
