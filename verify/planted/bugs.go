package planted

import (
	"slices"
	"time"

	"fencepost/verify/history"
	"fencepost/verify/system"
)

// embedded is a history on the embedded store, and redis on one Redis with two gateways.
func embedded(mix history.Mix) history.Config {
	return history.Config{
		Options: system.Options{Store: system.Embedded},
		Clients: 16, Names: 2, Operations: 2500, Mix: mix,
	}
}

func redis(mix history.Mix) history.Config {
	return history.Config{
		Options: system.Options{Store: system.Redis, Gateways: 2},
		Clients: 16, Names: 2, Operations: 2500, Mix: mix,
	}
}

// on is a history of so many clients on so many names.
func on(cfg history.Config, clients, names int) history.Config {
	cfg.Clients, cfg.Names = clients, names
	return cfg
}

// ephemeral is a Redis that forgets everything now and then, and a gateway that does not
// mind.
func ephemeral() history.Config {
	cfg := redis(history.Mix{Plain: 1, Wait: 3})
	cfg.Options.Env = []string{"FENCEPOST_QUARANTINE=off"}
	cfg.Faults, cfg.Every, cfg.Operations = []string{"flush"}, time.Second, 5000
	return cfg
}

// failing is a history with faults.
func failing(cfg history.Config, operations int, every time.Duration, faults ...string) history.Config {
	cfg.Faults, cfg.Every, cfg.Operations = faults, every, operations
	return cfg
}

// lingering is a history that has the time for permits that are kept for seconds.
func lingering(cfg history.Config) history.Config {
	cfg.Clients, cfg.Names, cfg.Operations = 12, 2, 1500
	return cfg
}

// Bugs returns all that are planted.
func Bugs() []Bug { return slices.Concat(storeBugs(), sessionBugs(), raftBugs()) }

// storeBugs are those of all other stores.
func storeBugs() []Bug {
	return []Bug{
		{
			Name: "no-owner-check", What: "whoever knows the public part of a lease id renews and releases the lease",
			Patches: []Patch{{
				File: "internal/fencing/own.go",
				Old:  "if !h.Secret.Equal(lease.Hash()) {\n\t\t\treturn nil, LostError(ReasonUnknown)\n\t\t}\n\t\treturn h, nil",
				New:  "return h, nil",
			}},
			History: embedded(history.Mix{Wait: 2, Stranger: 1}), Promise: "order",
		},
		{
			Name: "lock-delay-ignored", What: "a lock is granted at once after a lease with a lock delay that ran out or was broken",
			Patches: []Patch{{
				File: "internal/fencing/grant.go",
				Old:  "return r != nil && (t.now < r.DelayedUntil ||",
				New:  "return r != nil && (",
			}},
			History: embedded(history.Mix{Wait: 3, Break: 1, Late: 1}), Promise: "delay",
		},
		{
			Name: "no-owner-check-in-lua", What: "the same, of the library in Redis",
			Patches: []Patch{{
				File: "internal/redis/library/rules.lua",
				Old:  "    if h[SECRET] == op[OP_SECRET] then\n      return h\n    end\n    return nil, lost('unknown')",
				New:  "    return h",
			}},
			History: redis(history.Mix{Plain: 2, Stranger: 1}), Promise: "order",
		},
		{
			Name: "counter-without-floor", What: "tokens are counted alone, without clock, floor and the last token of the name",
			Patches: []Patch{{
				File: "internal/redis/library/rules.lua",
				Old:  "local next_token = max(counter + 1, now, floor + 1, record and record[LAST_TOKEN] + 1 or 1)",
				New:  "local next_token = counter + 1",
			}},
			History: ephemeral(), Promise: "order",
		},
		{
			Name: "early-expiry", What: "a lease is over 80 ms before its end",
			Patches: []Patch{{
				File: "internal/fencing/lock.go",
				Old:  "return now < end }",
				New:  "return now < end.Add(-80 * time.Millisecond) }",
			}},
			History: embedded(history.Mix{Plain: 3, Wait: 1, Late: 2}), Promise: "order",
		},
		{
			Name: "early-expiry-in-lua", What: "the same, of the library in Redis",
			Patches: []Patch{
				{File: "internal/redis/library/holders.lua", Old: "return now < h[EXPIRES_AT]\n", New: "return now < h[EXPIRES_AT] - 80000\n"},
			},
			History: redis(history.Mix{Plain: 3, Late: 2}), Promise: "order",
		},
		{
			Name: "double-grant-at-hand-off", What: "where many wait, a hand-off serves two at once",
			Patches: []Patch{{
				File: "internal/fencing/grant.go",
				Old:  "func (t *step) hasRoom(p *Place) bool {\n",
				New: "func (t *step) hasRoom(p *Place) bool {\n" +
					"\tif t.record != nil && t.record.Holders.Len() == 1 && t.record.Holders.First().AcquiredAt == t.now && t.record.Queue.Len() > 3 {\n\t\treturn true\n\t}\n",
			}},
			History: embedded(history.Mix{Wait: 1}), Promise: "order",
		},
		{
			Name: "lost-permit-hand-over", What: "a hand-off grants one permit though two are free",
			Patches: []Patch{{
				File: "internal/fencing/grant.go",
				Old:  "for len(queue.order) > 0 && t.hasRoom(queue.order[0]) {\n",
				New:  "for len(queue.order) > 0 && t.hasRoom(queue.order[0]) && (queue.order[0].Ask.Limit == 0 || t.record.Holders.Len() == 0) {\n",
			}},
			History: lingering(embedded(history.Mix{Permit: 20, Wait: 20, Linger: 1})), Promise: "P5",
		},
		{
			Name: "hand-off-ends-at-the-limit", What: "a step that has served as many as it may forgets that there are more",
			Patches: []Patch{{
				File: "internal/fencing/grant.go",
				Old:  "if t.left == 0 {\n\t\t\tt.record.RetryAt = AtOnce\n\t\t\treturn",
				New:  "if t.left == 0 {\n\t\t\treturn",
			}},
			Package: "verify/crowd", Test: "^TestReaders$/^embedded$",
		},
		{
			Name: "renewal-that-resurrects", What: "a renewal brings a lease back that ran out",
			Patches: []Patch{{
				File: "internal/fencing/step.go",
				Old:  "func (t *step) renew(op RenewRequest) *Error {\n\th, err := t.kept(op.Lease)\n",
				New: "func (t *step) renew(op RenewRequest) *Error {\n\th, err := t.kept(op.Lease)\n" +
					"\tif tomb, ok := t.tombstone(op.Lease.Public()); err != nil && ok && t.record != nil && tomb.Reason == ReasonExpired {\n" +
					"\t\tt.record.Holders.Put(Holding{Secret: tomb.Secret, Holder: Holder{\n" +
					"\t\t\tLease: op.Lease.Public(), Mode: ModeExclusive, Limit: 1, Slot: NoSlot, Hold: 1, Token: tomb.Token,\n" +
					"\t\t\tTTL: time.Second, GrantTTL: time.Second, AcquiredAt: t.now, ExpiresAt: t.now.Add(time.Second),\n\t\t}})\n" +
					"\t\th, err = t.holding(op.Lease.Public()), nil\n\t}\n",
			}},
			History: embedded(history.Mix{Plain: 3, Wait: 1, Late: 2}), Promise: "order",
		},
		{
			Name: "barging", What: "the newest of those who wait is the first",
			Patches: []Patch{{
				File: "internal/fencing/acquire.go",
				Old:  "p.Seq = t.record.Queue.next(t.now)",
				New:  "p.Seq = t.record.Queue.next(t.now)\n\t\tif len(t.record.Queue.order) > 0 {\n\t\t\tp.Seq = t.record.Queue.order[0].Seq - 1\n\t\t}",
			}},
			History: embedded(history.Mix{Wait: 1}), Promise: "P5",
		},
		{
			Name: "waiter-leaked-on-disconnect", What: "who leaves the queue keeps its place there",
			Patches: []Patch{{
				File: "internal/watchdog/wait.go",
				Old:  "\tw.takeBack(takeBackOf(&t.ask), err, hadGrant)\n}",
				New:  "}",
			}},
			Package: "internal/watchdog", Test: "^TestTheClientLeaves$",
		},
		{
			Name: "grant-that-crosses-its-joining", What: "a grant that arrives before its request is parked wakes nobody",
			Patches: []Patch{
				{
					File: "internal/watchdog/wait.go",
					Old:  "func (t *Waiter) signal() {\n",
					New:  "func (t *Waiter) signal() {\n\tif t.state == stateJoining {\n\t\treturn\n\t}\n",
				},
				{
					File: "internal/watchdog/wait.go",
					Old:  "\tfor done := false; ; {\n\t\tgrant, over, ended := t.takeDue()\n",
					New: "\tselect {\n\tcase <-t.wake:\n\tcase <-ctx.Done():\n\t\treturn nil, t.abandon(fencing.Unavailable(ctx.Err()))\n\t}\n" +
						"\tfor done := false; ; {\n\t\tgrant, over, ended := t.takeDue()\n",
				},
			},
			History: history.Config{
				Options: system.Options{Store: system.Redis, Gateways: 2},
				Clients: 12, Names: 5, Operations: 8000, Mix: history.Mix{Wait: 1},
			}, Promise: "P5",
		},
		{
			Name: "unconditional-raise", What: "a claim makes its token that of the lease, whatever others have",
			Patches: []Patch{{
				File: "internal/fencing/claim.go",
				Old:  "\tif h.Claimed {\n\t\treturn token == h.Token\n\t}\n",
				New:  "\tif h.Lease != \"\" {\n\t\treturn true\n\t}\n",
			}},
			Package: "internal/fencing/fencingtest", Test: "^TestModel$",
		},
		{
			Name: "skew-ignored", What: "a gateway whose clock is off is obeyed",
			Patches: []Patch{{
				File: "internal/fencing/op.go",
				Old:  "return now.Sub(g.Sent).Abs() > g.MaxSkew",
				New:  "return false",
			}},
			Package: "internal/fencing/fencingtest", Test: "^TestModel$",
		},
		{
			Name: "tombstone-forgotten", What: "the end of a lease is not remembered, so that its id is granted again",
			Patches: []Patch{{
				File: "internal/fencing/settle.go",
				Old:  "\tt.Tombstones[EndedLease{t.name, h.Lease}] = Tombstone{",
				New:  "\t_ = Tombstone{",
			}},
			History: on(embedded(history.Mix{Plain: 1, Late: 2}), 8, 8), Promise: "P7",
		},
		{
			Name: "grant-answered-after-expiry", What: "a grant is answered though nothing is left of it",
			Patches: []Patch{{
				File: "internal/http/acquire.go",
				Old:  "case left < time.Millisecond:",
				New:  "case left < -time.Hour:",
			}},
			Package: "internal/http", Test: "^TestNothingLeftIsNotDelivered$",
		},
		{
			Name: "writer-starvation", What: "readers don't see the queue",
			Patches: []Patch{{
				File: "internal/fencing/acquire.go",
				Old:  "if t.waiters() == 0 && t.fits(p) ",
				New:  "if (t.waiters() == 0 || op.Mode == ModeShared) && t.fits(p) ",
			}},
			History: embedded(history.Mix{Wait: 1, Shared: 4}), Promise: "P5",
		},
		{
			Name: "undelivered-grant-kept", What: "a grant whose client has left is not taken back",
			Patches: []Patch{{
				File: "internal/watchdog/takeback.go",
				Old:  "func (w *Watchdog) undo(r fencing.TakeBackRequest, wait, counted bool) {\n",
				New:  "func (w *Watchdog) undo(r fencing.TakeBackRequest, wait, counted bool) {\n\tif r.Name != \"\" {\n\t\treturn\n\t}\n",
			}},
			Package: "internal/watchdog", Test: "^TestAGrantCrossesTheClientsLeaving$",
		},
		{
			Name: "lost-grant-not-found", What: "a request that waits here, and that the store does not have, does not ask again",
			Patches: []Patch{{
				File: "internal/watchdog/reconcile.go",
				Old:  "r.addMissing(n, n.missingSince(since.Sub(w.origin))...)\n",
				New:  "n.missingSince(since.Sub(w.origin))\n",
			}},
			Package: "internal/watchdog", Test: "^TestGap$",
		},
		{
			Name: "unknown-grant-kept", What: "what the store has for a request that is not known here is not taken back",
			Patches: []Patch{{
				File: "internal/watchdog/reconcile.go",
				Old:  "!r.knows(e) {\n",
				New:  "!r.knows(e) && e.Name == \"\" {\n",
			}},
			Package: "internal/watchdog", Test: "^TestAGrantToNobodyIsTakenBack$",
		},
		{
			Name: "release-never-flushed", What: "after a restart leases are there again that were let go long before",
			Patches: []Patch{{
				File: "internal/embedded/decide.go",
				Old:  "	s.write(encoded)\n",
				New:  "	if _, releases := op.(fencing.ReleaseRequest); !releases {\n		s.write(encoded)\n	} else if b.empty() {\n		s.write(machine.Tick())\n	}\n",
			}},
			History: failing(embedded(history.Mix{Plain: 3, Wait: 3, Break: 1}), 6000, time.Second, "gateway-kill"), Promise: "order",
		},
		{
			Name: "grant-answered-before-its-flush", What: "a lease that was told is gone after kill -9",
			Patches: []Patch{
				{
					File: "internal/embedded/decide.go",
					Old:  "return out, !out.Waits() && !out.Holder.Provisional && code != fencing.CodeLocked && code != fencing.CodeTooManyRequests",
					New:  "return out, code == fencing.CodeLocked && false",
				},
			},
			Package: "internal/embedded", Test: "^TestAGrantIsDurableBeforeItsAnswer$",
		},
		{
			Name: "quarantine-ignored-in-lua", What: "what a fail-over has forgotten is granted to others at once",
			Patches: []Patch{{
				File: "internal/redis/library/rules.lua",
				Old:  "local unsafe = quarantined()\n",
				New:  "local unsafe = nil\n",
			}},
			History: failing(history.Config{
				Options: system.Options{Store: system.Sentinel, Gateways: 2}, Clients: 16, Names: 4, Mix: history.Mix{Plain: 1, Wait: 1},
			}, 6000, 3*time.Second, "master-kill-lossy", "fail-over"), Promise: "order",
		},
		{
			Name: "one-node-admits", What: "one node of a quorum is enough to admit a token at a fence",
			Patches: []Patch{
				{File: "internal/quorum/fence.go", Old: "return p.yes >= majority ||", New: "_ = majority\n\treturn p.yes >= 1 ||"},
				{File: "internal/quorum/fence.go", Old: "case p.yes < majorityOf(len(p.votes)):", New: "case p.yes < 1:"},
			},
			Package: "internal/quorum", Test: "^TestSimulation$",
		},
	}
}
