package history

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// Config says what is run. The zero value is 8 clients with 1,000 operations on 3 names
// of one gateway on one Redis, without faults.
type Config struct {
	// System is used if it is given; else one of Options is started, and ended.
	System  *system.System
	Options system.Options

	Clients    int // 1 to 64
	Operations int // how many requests are sent, at least: who holds goes on to let go
	Names      int // locks
	Seed       uint64
	Mix        Mix // the zero value is Everything

	// Faults are named as in system.Faults; one is chosen about each Every (default: 6s).
	Faults []string
	Every  time.Duration

	Rules *Rules // default: RulesOf the kind of store
	Dir   string // where pictures of violations go; empty: none are made
}

// Mix says how often a client does what, as weights.
type Mix struct {
	Plain    int // an exclusive lease, at once or not at all
	Wait     int // an exclusive one, waiting
	Shared   int // readers: at once, or waiting
	Permit   int // with limit
	Set      int // two or three names
	Stream   int // an attached lease
	Leave    int // the client closes its connection at a random moment of an acquire
	Break    int // an administrator ends somebody's lease
	Stranger int // somebody renews and releases with a wrong secret
	Late     int // a lease is left to expire, then renewed or not; a lease id is used again
	Linger   int // a permit is kept for seconds, and waited for as long
}

// Everything is all that there is, but for Linger, which keeps the others waiting.
func Everything() Mix {
	return Mix{Plain: 40, Wait: 80, Shared: 30, Permit: 15, Set: 6, Stream: 3, Leave: 12, Break: 4, Stranger: 4, Late: 2}
}

func (m Mix) weights() []int {
	return []int{m.Plain, m.Wait, m.Shared, m.Permit, m.Set, m.Stream, m.Leave, m.Break, m.Stranger, m.Late, m.Linger}
}

// Env are the settings of gateways that histories need: a quarantine that is over soon.
func Env(kind system.Kind) []string {
	env := []string{"FENCEPOST_DEFAULT_TTL=1s"}
	if kind == system.Quorum {
		env = append(env, "FENCEPOST_MAX_CLOCK_SKEW=100ms")
	}
	return env
}

func (cfg *Config) fill() error {
	if cfg.System != nil {
		cfg.Options.Store = cfg.System.Kind
	} else if cfg.Options.Store == "" {
		cfg.Options.Store = system.Redis
	}
	for _, d := range []struct {
		n         *int
		otherwise int
	}{{&cfg.Clients, 8}, {&cfg.Operations, 1000}, {&cfg.Names, 3}} {
		if *d.n == 0 {
			*d.n = d.otherwise
		}
	}
	cfg.Options.Clocks = cfg.Options.Clocks || slices.Contains(cfg.Faults, "clock") || slices.Contains(cfg.Faults, "clock-far-ahead")
	if cfg.Every == 0 {
		cfg.Every = 6 * time.Second
	}
	if cfg.Mix == (Mix{}) {
		cfg.Mix = Everything()
	}
	if cfg.Rules == nil {
		rules := RulesOf(cfg.Options.Store)
		rules.NoQuarantine = slices.Contains(cfg.Options.Env, "FENCEPOST_QUARANTINE=off")
		cfg.Rules = &rules
	}
	if cfg.Rules.NoPermits {
		cfg.Mix.Permit, cfg.Mix.Linger = 0, 0
	}
	if cfg.Rules.NoSets {
		cfg.Mix.Set = 0
	}
	for _, fault := range cfg.Faults {
		if _, err := system.FaultNamed(cfg.Options.Store, fault); err != nil {
			return err
		}
	}
	if cfg.Clients < 1 || cfg.Clients > 64 || cfg.Operations < 1 || cfg.Names < 1 {
		return fmt.Errorf("history: %d clients, %d operations, %d names: that is no history", cfg.Clients, cfg.Operations, cfg.Names)
	}
	return nil
}

// Report is what a run came to.
type Report struct {
	Store      system.Kind
	Seed       uint64
	Clients    int
	Names      int
	Operations int // requests sent
	Granted    int // of them with a lease
	Unknown    int // whose answer was lost, or said that nothing is known
	Left       int // that the client did not wait for
	Looks      int
	Verdicts   int           // of fences; none is asked where reads may be old
	Leavers    int           // clients that were gone before they were told, or closed their stream
	Kept       int           // of them, whose lease lived on
	Judged     time.Duration // of Took, in which the times of P4, P5 and P6 were asked for: outside of Troubles
	Harms      *check.Harms  // what the faults did
	Longest    time.Duration // until a request that waited was granted
	Took       time.Duration
	Checked    time.Duration // how long the check took
	Violations []Violation
}

func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, seed %d: %d operations of %d clients on %d names (%d granted, %d unknown, %d left) in %s, longest wait %s, checked in %s",
		r.Store, r.Seed, r.Operations, r.Clients, r.Names, r.Granted, r.Unknown, r.Left,
		r.Took.Round(time.Millisecond), r.Longest.Round(time.Millisecond), r.Checked.Round(time.Millisecond))
	if r.Harms != nil && r.Harms.Times() > 0 {
		fmt.Fprintf(&b, ", %d faults: %s", r.Harms.Times(), strings.Join(r.Harms.Lines(), "; "))
	}
	fmt.Fprintf(&b, ": %d violations", len(r.Violations))
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "\n%s", v)
	}
	return b.String()
}
