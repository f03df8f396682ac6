package history

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"fencepost/verify/system"
)

// longestTTL is the longest TTL that clients ask for.
const longestTTL = 4 * time.Second

// What docs/stores.md promises after a fault.
const (
	// heard: what a lost message or connection has kept from a waiter or a holder it
	// learns by the next heartbeat.
	heard = 2 * time.Second

	// answered: an operation whose answer never comes is given up (Redis), and what it
	// has done is taken back then.
	answered = 2 * time.Second

	// patient: the same of a database. A gateway that stands still in its turn is thrown out sooner.
	patient = 5 * time.Second

	// dead: the waiters of a gateway that died are skipped, and what it was handed is
	// taken back. What it had confirmed costs its TTL, which is less.
	dead = 8 * time.Second

	// quarantined: a store that has forgotten something grants nothing for the longest
	// TTL in use.
	quarantined = longestTTL

	// electing: a cluster of gateways has another leader, and its time has stood still for as long.
	electing = 2 * time.Second
)

// aftermath is what follows from a fault: for how long the times of P4, P5 and P6 are
// not asked for, and whether the store may have forgotten something. P1 to P3, P9 and
// the order are judged all the time. Where a fault is not named, it is the default.
type aftermath struct {
	calm     time.Duration // after it is healed
	since    time.Duration // after it began
	forgets  bool
	ends     bool // it may have forgotten leases that had ended
	split    bool
	restarts bool
	killed   bool
	harmless bool // P5 and P6 hold while it lasts, too
}

func aftermathOf(fault string, kind system.Kind) aftermath {
	if kind == system.Raft { // it forgets nothing; what an election adds is told by elections
		switch fault {
		case "gateway-kill", "gateway-restart", "leader-kill", "disk-full":
			return aftermath{since: dead + electing, calm: heard}
		case "transfer":
			return aftermath{calm: heard}
		}
		return aftermath{calm: answered + heard}
	}
	if kind == system.Postgres || kind == system.MariaDB { // it forgets nothing
		switch fault {
		case "gateway-kill", "gateway-restart":
			return aftermath{since: dead, calm: heard}
		}
		return aftermath{calm: patient + heard}
	}
	switch fault {
	case "swallow-messages":
		return aftermath{harmless: true}
	case "gateway-kill", "gateway-restart":
		if kind == system.Embedded { // every lease has its whole TTL again, also those whose client has left
			return aftermath{calm: longestTTL, restarts: true, killed: fault == "gateway-kill"}
		}
		return aftermath{since: dead, restarts: true}
	case "clock-far-ahead":
		return aftermath{calm: heard, ends: kind == system.Redis} // of a quorum a minority forgets
	case "index-lost":
		return aftermath{calm: heard}
	case "node-kill", "flush", "key-lost":
		if kind == system.Quorum { // a minority of nodes forgets nothing
			return aftermath{calm: heard}
		}
		return aftermath{calm: quarantined + heard, forgets: true}
	case "fail-over", "master-kill", "master-kill-lossy", "master-stop":
		return aftermath{calm: quarantined + heard, forgets: true, split: true}
	case "link-cut", "swallow-reply", "swallow-reply-hang":
		return aftermath{calm: answered + heard}
	}
	return aftermath{calm: heard}
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
		if err := r.oneFault(ctx, r.cfg.Faults[r.random.IntN(len(r.cfg.Faults))]); err != nil {
			return err
		}
	}
}

// oneFault has a fault happen. One that has done nothing when ctx ends, with the clients, was none.
func (r *run) oneFault(ctx context.Context, name string) error {
	fault, err := system.FaultNamed(r.cfg.System.Kind, name)
	if err != nil {
		return err
	}
	after := aftermathOf(name, r.cfg.System.Kind)
	t := Trouble{
		What: name, From: r.now(), Until: forever, Calm: forever,
		Restart: after.restarts, Killed: after.killed, Split: after.split, Forgets: after.forgets, Ends: after.ends,
	}
	did, err := fault.Do(ctx, r.cfg.System, r.random, func() {
		time.Sleep(time.Duration(r.random.Int64N(int64(1500 * time.Millisecond)))) // how long the harm lasts
	})
	if err != nil {
		return err
	}
	if did.N > 0 || ctx.Err() == nil {
		r.harms.Add(name, did)
	}
	if err := r.cfg.System.AwaitReady(time.Minute); err != nil {
		return fmt.Errorf("after %s: %w", name, err)
	}
	t.Until = r.now()
	t.Calm = max(t.Until+after.calm, t.From+after.since)
	if after.harmless {
		t.Until, t.Calm = t.From, t.From
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Troubles = append(r.history.Troubles, t)
	return nil
}

// elections are troubles of a cluster of gateways too, also those that nobody has brought about: a
// leader that had to wait for a processor for too long. Whoever lost the lead did so by the fault in which
// another one was elected, or shortly before.
func (r *run) elections() {
	faults := r.history.Troubles
	for _, moment := range r.cfg.System.Elections() {
		at := moment.Sub(r.began)
		if at < 0 {
			continue // the first one
		}
		t := Trouble{What: "election", From: max(0, at-electing), Until: at, Calm: at + heard, Stopped: true}
		for _, f := range faults {
			if f.From <= at && at <= f.Until+electing {
				t.From = min(t.From, f.From)
			}
		}
		r.history.Troubles = append(r.history.Troubles, t)
	}
	slices.SortFunc(r.history.Troubles, func(a, b Trouble) int { return cmp.Compare(a.From, b.From) })
}
