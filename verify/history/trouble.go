package history

import (
	"context"
	"fmt"
	"time"

	"fencepost/verify/system"
)

// longestTTL is the longest TTL that clients ask for.
const longestTTL = 4 * time.Second

// aftermath is what follows from a fault when it is healed: for how long the times of P5
// and P6 are not asked for, and whether the store may have forgotten something. P1 to P4
// and P9 are judged all the time. Where a fault is not named, it is the default.
var aftermath = map[string]struct {
	calm      time.Duration
	forgets   bool
	split     bool
	restarts  bool
	harmless  bool // P5 and P6 hold while it lasts, too
	notQuorum bool // a minority of nodes forgets nothing
}{
	"":                   {calm: 5 * time.Second},
	"swallow-messages":   {harmless: true},
	"link-delay":         {calm: 2 * time.Second},
	"gateway-kill":       {calm: 8*time.Second + longestTTL, restarts: true}, // docs/stores.md: its waiters are skipped within 8 s
	"gateway-restart":    {calm: 8*time.Second + longestTTL, restarts: true},
	"gateway-stop":       {calm: 8*time.Second + longestTTL},
	"node-kill":          {calm: 8*time.Second + 2*longestTTL, forgets: true, notQuorum: true},
	"node-stop":          {calm: 8*time.Second + 2*longestTTL},
	"flush":              {calm: 8*time.Second + 2*longestTTL, forgets: true, notQuorum: true},
	"fail-over":          {calm: 8*time.Second + 2*longestTTL, forgets: true, split: true},
	"master-kill":        {calm: 8*time.Second + 2*longestTTL, forgets: true, split: true},
	"master-kill-lossy":  {calm: 8*time.Second + 2*longestTTL, forgets: true, split: true},
	"master-stop":        {calm: 8*time.Second + 2*longestTTL, forgets: true, split: true},
	"link-cut":           {calm: 3*time.Second + longestTTL},
	"swallow-reply-hang": {calm: 3*time.Second + longestTTL},
	"swallow-reply":      {calm: 3*time.Second + longestTTL},
}

// trouble makes faults happen, one after the other, until ctx ends.
func (r *run) trouble(ctx context.Context) error {
	if len(r.cfg.Faults) == 0 {
		return nil
	}
	for {
		pause := r.cfg.Every/2 + time.Duration(r.random.Int64N(int64(r.cfg.Every)))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		if err := r.oneFault(r.cfg.Faults[r.random.IntN(len(r.cfg.Faults))]); err != nil {
			return err
		}
	}
}

func (r *run) oneFault(name string) error {
	fault, err := system.FaultNamed(r.cfg.System.Kind, name)
	if err != nil {
		return err
	}
	after, known := aftermath[name]
	if !known {
		after = aftermath[""]
	}
	t := Trouble{
		What: name, From: r.now(), Until: forever, Calm: forever, Restart: after.restarts, Split: after.split,
		Forgets: after.forgets && !(after.notQuorum && r.cfg.System.Kind == system.Quorum),
	}
	heal, err := fault.Inject(r.cfg.System, r.random)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	time.Sleep(time.Duration(r.random.Int64N(int64(1500 * time.Millisecond)))) // how long the harm lasts
	if err := heal(); err != nil {
		return fmt.Errorf("heal of %s: %w", name, err)
	}
	if err := r.cfg.System.AwaitReady(time.Minute); err != nil {
		return fmt.Errorf("after %s: %w", name, err)
	}
	t.Until = r.now()
	t.Calm = t.Until + after.calm
	if after.harmless {
		t.Until, t.Calm = t.From, t.From
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Troubles = append(r.history.Troubles, t)
	if r.faults == nil {
		r.faults = map[string]int{}
	}
	r.faults[name]++
	return nil
}
