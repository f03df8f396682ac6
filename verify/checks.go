package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fencepost/verify/attack"
	"fencepost/verify/check"
	"fencepost/verify/clients"
	"fencepost/verify/crowd"
	"fencepost/verify/members"
	"fencepost/verify/sessions"
	"fencepost/verify/soak"
	"fencepost/verify/system"
)

// checks is the table of all checks, in the order in which they run. soaking is how long
// each soak takes; 0: as the scale has it. No history is begun after limit.
func checks(soaking, limit time.Duration) []check.Check {
	one, two := system.Options{Store: system.Redis}, system.Options{Store: system.Redis, Gateways: 2}
	file := system.Options{Store: system.Embedded}
	return []check.Check{
		{Name: "turns-redis", FullOnly: true, Title: "32 threads on 5 names with waits, on one Redis: everybody gets a turn within 3 s, tokens grow, nobody shares", Run: turns(one, 2_000, 20_000, 180_000)},
		{Name: "turns-gateways", FullOnly: true, Title: "the same with two gateways on one Redis", Run: turns(two, 2_000, 10_000, 90_000)},
		{Name: "turns-embedded", FullOnly: true, Title: "the same on the embedded store", Run: turns(file, 2_000, 20_000, 180_000)},
		{Name: "turns-databases", FullOnly: true, Title: "gateways on PostgreSQL and on MariaDB stand still in their turns, or are cut off in one, also in the middle of a message: others wait for 3 s at most", Run: standstills},
		{Name: "closers-redis", FullOnly: true, Title: "clients leave at a random moment before their answer: fewer than 1 in 1,000 that close, and 1 in 100 that reset, leave a lock held; on one Redis", Run: closers(one)},
		{Name: "closers-embedded", FullOnly: true, Title: "the same on the embedded store", Run: closers(file)},
		{Name: "waiters-redis", FullOnly: true, Title: "half of a queue disconnects: the others are served in order, and nothing stays held; on one Redis", Run: waiters(one, 1, 4)},
		{Name: "waiters-gateways", FullOnly: true, Title: "the same with two gateways on one Redis", Run: waiters(two, 1, 3)},
		{Name: "waiters-embedded", FullOnly: true, Title: "the same on the embedded store", Run: waiters(file, 1, 3)},
		{Name: "readers-redis", FullOnly: true, Title: "crowds of readers, larger than one step of the store, are served together and in order; two gateways on one Redis", Run: readers(two)},
		{Name: "readers-embedded", FullOnly: true, Title: "the same on the embedded store", Run: readers(file)},
		{Name: "attack-redis", FullOnly: true, Title: "writers are stopped past their TTL in the middle of a write: the storage admits no stale write; two gateways on one Redis", Run: attacked(two, true, 30, 250)},
		{Name: "attack-embedded", Title: "the same on the embedded store", Run: attacked(file, true, 30, 250)},
		{Name: "attack-unfenced", FullOnly: true, Title: "the same storage without its check is corrupted, so the attack works", Run: attacked(file, false, 15, 30)},
		{Name: "storage", Title: "a holder stopped past its TTL writes nothing through a recipe of docs/storage, nor does the attack kit; without the recipe's guard both do", Run: storageRecipes, FullOnly: true},
		{Name: "clients-do", FullOnly: true, Title: "gateways and Redis are killed and stopped, networks are cut: the context of client.Do ends before another client is granted the lock", Run: clientRounds(clients.Do)},
		{Name: "clients-lockctl", FullOnly: true, Title: "the same with lockctl run, also stopped, and with commands that ignore SIGTERM, fork and detach: everything it started is dead before another client is granted the lock, and the exit status says why", Run: clientRounds(clients.Lockctl)},
		{Name: "languages", Title: "the programs of examples/ in bash, Python, Node and Java take turns, and stop before their lease can have ended", Run: allLanguages, FullOnly: true},
		{Name: "trials", FullOnly: true, Title: "every client gets SIGTERM, SIGSTOP or a frozen gateway at a random moment, with one gateway or two: no lock is held for over a second past its bound, no work is done past its deadline, the exit status says what happened, no process is left", Run: clientTrials},
		{Name: "soak-redis", Title: "a fault every 5 s on one Redis with two gateways: memory and goroutines stay level, every lost lease is reported, service returns", Run: soaked(system.Redis, soaking), Beside: "soaks"},
		{Name: "soak-sentinel", Title: "the same with Sentinel", Run: soaked(system.Sentinel, soaking), Beside: "soaks"},
		{Name: "soak-cluster", Title: "the same on a Cluster", Run: soaked(system.Cluster, soaking), Beside: "soaks"},
		{Name: "soak-quorum", Title: "the same on a quorum of three", Run: soaked(system.Quorum, soaking), Beside: "soaks"},
		{Name: "soak-embedded", Title: "the same on the embedded store", Run: soaked(system.Embedded, soaking), Beside: "soaks"},
		{Name: "soak-raft", Title: "the same on a cluster of three gateways", Run: soaked(system.Raft, soaking), Beside: "soaks"},
		{Name: "soak-postgres", Title: "the same on PostgreSQL with two gateways", Run: soaked(system.Postgres, soaking), Beside: "soaks"},
		{Name: "soak-mariadb", Title: "the same on MariaDB with two gateways", Run: soaked(system.MariaDB, soaking), Beside: "soaks"},
		{Name: "sessions-embedded", Beside: "sessions", FullOnly: true, Title: sessionsTitle + ", on the embedded store", Run: sessionsOf(system.Options{Store: system.Embedded})},
		{Name: "sessions-redis", Beside: "sessions", FullOnly: true, Title: "the same on one Redis with two gateways", Run: sessionsOf(system.Options{Gateways: 2})},
		{Name: "sessions-raft", Beside: "sessions", FullOnly: true, Title: "the same in a cluster of three gateways", Run: sessionsOf(system.Options{Store: system.Raft, Gateways: 3})},
		{Name: "sessions-postgres", Beside: "sessions", FullOnly: true, Title: "the same on PostgreSQL with two gateways", Run: sessionsOf(system.Options{Store: system.Postgres, Gateways: 2})},
		{Name: "streams-embedded", Beside: "streams", FullOnly: true, Title: streamsTitle + ", on the embedded store", Run: streamsOf(system.Embedded, 1)},
		{Name: "streams-redis", Beside: "streams", FullOnly: true, Title: "the same on one Redis with two gateways", Run: streamsOf(system.Redis, 2)},
		{Name: "streams-raft", Beside: "streams", FullOnly: true, Title: "the same in a cluster of three gateways", Run: streamsOf(system.Raft, 3)},
		{Name: "streams-postgres", Beside: "streams", FullOnly: true, Title: "the same on PostgreSQL with two gateways", Run: streamsOf(system.Postgres, 2)},
		{Name: "streams-sentinel", Beside: "streams others", FullOnly: true, Title: "the same with Sentinel, and three gateways", Run: streamsOf(system.Sentinel, 3)},
		{Name: "streams-cluster", Beside: "streams others", FullOnly: true, Title: "the same on a Cluster", Run: streamsOf(system.Cluster, 2)},
		{Name: "streams-quorum", Beside: "streams others", FullOnly: true, Title: "the same on a quorum of three, one name each", Run: streamsOf(system.Quorum, 2)},
		{Name: "raft-fail-overs", Beside: "raft", FullOnly: true, Title: "leaders of a cluster of three gateways are killed and stopped, also while clients wait: no lease is lost, tokens grow, the queue keeps its order", Run: cluster(3, members.Members{Kills: 3, Stops: 1, Queues: 1}, members.Members{Kills: 20, Stops: 5, Queues: 5})},
		{Name: "raft-partitions", Beside: "raft", FullOnly: true, Title: "the same while its nodes are cut off from each other, also in one direction only", Run: cluster(3, members.Members{Partitions: 1}, members.Members{Partitions: 3})},
		{Name: "raft-members", Beside: "raft", FullOnly: true, Title: "the same while its nodes lose their disks, are restarted one by one, added and removed (two at once, while a leader dies, while they are cut off); removed nodes neither vote nor serve", Run: cluster(3, members.Members{Rolls: 1, Disks: 1, Races: 1, Exiles: 1, Changes: 1}, members.Members{Rolls: 3, Disks: 4, Races: 5, Exiles: 6, Changes: 2})},
		{Name: "raft-reads", Beside: "raft", FullOnly: true, Title: "the leader is stopped, a lock is handed on, and the old leader continues: its answers about the lock, a list, a token and the history, asked for meanwhile, are not stale", Run: cluster(3, members.Members{Reads: 1}, members.Members{Reads: 200})},
		{Name: "raft-disks", Beside: "raft", FullOnly: true, Title: "a script replaces the disks of all its nodes, one by one, and relies only on the exit status of gateway cluster status: leases, fences and token counters survive, and locks are granted all the time", Run: cluster(3, members.Members{AllDisks: 1}, members.Members{AllDisks: 20})},
		{Name: "raft-five", Beside: "raft", Title: "all of that in a cluster of five", Run: cluster(5, members.Members{Kills: 2, Queues: 1}, members.Members{Kills: 10, Stops: 2, Queues: 2, Partitions: 1, Rolls: 1, Disks: 2, Changes: 1})},
		{Name: "raft-refusals", FullOnly: true, Title: "500 clients at once ask a follower for a name that 100 hold with 4 kB of metadata each: all are refused, others are served there meanwhile, and the leader needs less than 200 MiB for it", Run: cluster(3, members.Members{Refusals: 1}, members.Members{Refusals: 10})},
		{Name: "fail-overs", Beside: "soaks", Title: "Redis masters die with grants that no replica has: no lock has two holders, tokens grow, clients hear of lost leases", Run: failOvers},
		{Name: "histories", Beside: "soaks", Title: "histories of real clients on all stores except clusters of gateways, with and without faults: an order that the rules allow exists, waiters are served, nothing stays held", Run: histories(false, limit)},
		{Name: "histories-raft", Beside: "raft", Title: "the same on clusters of 1, 3 and 5 gateways: leaders and followers are killed and stopped, links are cut in each direction, disks are slow and full, the leadership is transferred", Run: histories(true, limit)},
		{Name: "planted", Beside: "planted", Title: "bugs planted in the program are caught, each by name, and nothing is found without them", Run: bugs},
		{Name: "durability", Beside: "planted", Title: "the embedded store through kill -9, power loss, failing disks and damaged files: the right state, or a refusal that says why", Run: durability, FullOnly: true},
		{Name: "minorities", Beside: "planted", Title: "any minority of a quorum fails under load: no answer is wrong, and locks are still granted", Run: minorities, FullOnly: true},
		{Name: "conformance", Title: "every store and topology does what the rules do, in every case and in random histories", Run: conformance, FullOnly: true},
		{Name: "simulations", Title: "random schedules of the quorum's protocol and of the queue keep the promises", Run: simulations, FullOnly: true},
		{Name: "fuzz", Title: "random input through the router: no panic, no 5xx, wrong input is refused", Run: fuzz},
	}
}

// on runs a check on a system of its own.
func on(o system.Options, r *check.Result, do func(s *system.System) error) error {
	s, err := system.Start(o)
	if err != nil {
		return err
	}
	err = do(s)
	if closeErr := s.Close(); closeErr != nil {
		r.Violation("%v", closeErr)
	}
	return err
}

// turns are with holds of up to 20 ms first, and then short ones, which crowd more.
func turns(o system.Options, part, long, short int) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return on(o, r, func(s *system.System) error {
			t := crowd.Turns{Threads: 32, Names: 5, Turns: check.Pick(scale, part, long), Hold: 20 * time.Millisecond}
			err := t.Run(ctx, s, r)
			t.Turns, t.Hold = check.Pick(scale, 5*part, short), time.Millisecond
			return errors.Join(err, t.Run(ctx, s, r))
		})
	}
}

func closers(o system.Options) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return on(o, r, func(s *system.System) error {
			return crowd.Closers{Clients: check.Pick(scale, 5_000, 50_000), Concurrent: 16}.Run(ctx, s, r)
		})
	}
}

func waiters(o system.Options, part, full int) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return on(o, r, func(s *system.System) error {
			return crowd.Waiters{Rounds: check.Pick(scale, part, full), Waiters: 1000}.Run(ctx, s, r)
		})
	}
}

func readers(o system.Options) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return on(o, r, func(s *system.System) error {
			return crowd.Readers{Rounds: check.Pick(scale, 1, 10), Crowds: 3, Each: 250}.Run(ctx, s, r)
		})
	}
}

const sessionsTitle = "sessions of 64 names, whose clients are killed, stopped and cut off: all names become free in time, none before its linger time is over; attached again at another gateway, they keep their tokens"

func sessionsOf(o system.Options) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return on(o, r, func(s *system.System) error {
			return sessions.Sessions{Rounds: check.Pick(scale, 1, 20)}.Run(ctx, s, r)
		})
	}
}

const streamsTitle = "two or three POSTs for a stream with one lease id, lost messages, stopped and killed gateways, clients that leave meanwhile, sessions that gain, lose and release names: one stream remains, and nothing is held for a client that left"

func streamsOf(store system.Kind, gateways int) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return on(system.Options{Store: store, Gateways: gateways}, r, func(s *system.System) error {
			return check.Pick(scale, sessions.Streams{Groups: 100, Leavers: 200, Broken: 16, Losses: 1}, sessions.Streams{Groups: 1000, Leavers: 5000, Broken: 100, Losses: 3}).Run(ctx, s, r)
		})
	}
}

// cluster has things happen to a cluster of so many gateways.
func cluster(gateways int, part, full members.Members) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return on(system.Options{Store: system.Raft, Gateways: gateways}, r, func(s *system.System) error {
			m := check.Pick(scale, part, full)
			m.Stand = 3 * time.Second
			return m.Run(ctx, s, r)
		})
	}
}

func attacked(o system.Options, fenced bool, part, full int) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return on(o, r, func(s *system.System) error {
			return attack.Attack{Pauses: check.Pick(scale, part, full), Unfenced: !fenced}.Run(ctx, s, r)
		})
	}
}

func clientRounds(holder clients.Holder) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		return clients.Rounds{Holder: holder, Rounds: check.Pick(scale, 14, 100)}.Run(ctx, r)
	}
}

func allLanguages(ctx context.Context, _ check.Scale, r *check.Result) error {
	programs := clients.Languages{Dir: "examples"}
	if missing := programs.Missing(); len(missing) > 0 {
		return missingPrograms(missing)
	}
	return programs.Run(ctx, r)
}

func clientTrials(ctx context.Context, scale check.Scale, r *check.Result) error {
	if missing := (clients.Languages{}).Missing(); len(missing) > 0 {
		return missingPrograms(missing)
	}
	return clients.Trials{Dir: "examples", Each: check.Pick(scale, 6, 300), Lanes: 20}.Run(ctx, r)
}

func missingPrograms(missing []string) error {
	return fmt.Errorf("%v are not there; Debian has them in bash, python3, nodejs and default-jdk-headless", missing)
}

func soaked(kind system.Kind, soaking time.Duration) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		if soaking == 0 {
			soaking = check.Pick(scale, 30*time.Second, 20*time.Minute)
		}
		return soak.Soak{Kind: kind, Duration: soaking}.Run(ctx, r)
	}
}
