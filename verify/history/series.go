package history

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fencepost/verify/system"
)

// Series is many histories, over all stores that are servers or a file, or over clusters of gateways, several at a time: clients mostly wait.
type Series struct {
	Histories  int
	Operations int // of each
	Parallel   int // how many are played at a time
	Seed       uint64
	Dir        string // where pictures of violations go; empty: none are made

	Clusters bool // of gateways, in place of all other stores

	Limit time.Duration // none is begun after it; 0 is any time
}

// situation is a place where histories are played.
type situation struct {
	name           string
	options        system.Options
	clients, names int
	faults         []string
	mix            Mix // the zero value is Everything
}

// gateways are faults of gateways, links of what is between them and one Redis.
var (
	gateways  = []string{"gateway-kill", "gateway-restart", "gateway-stop"}
	links     = []string{"link-cut", "link-reset", "link-delay", "swallow-reply", "swallow-reply-hang", "swallow-messages", "drop-clients"}
	nodes     = []string{"node-kill", "node-stop", "flush"}
	clocks    = []string{"clock", "clock-far-ahead"}
	keys      = []string{"index-lost", "key-lost"}
	leaders   = []string{"leader-kill", "leader-stop", "leader-cut", "transfer"}
	ways      = []string{"way-cut", "leader-cut"}
	databases = []string{"database-kill", "database-restart", "database-stop", "turn-cut", "turn-stop"}
	disks     = []string{"disk-slow", "disk-full"}
	masters   = []string{"fail-over", "master-kill", "master-kill-lossy", "master-stop", "flush", "drop-clients"}
)

func all(lists ...[]string) (all []string) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// clusters are places in clusters of gateways, played in turn.
func clusters() []situation {
	of := func(gateways int) system.Options { return system.Options{Store: system.Raft, Gateways: gateways} }
	return []situation{
		{"raft, faults", of(3), 24, 4, all(gateways, leaders, ways, disks), Mix{}},
		{"raft, ways cut", of(3), 24, 4, ways, Mix{}},
		{"raft, leaders", of(3), 24, 4, leaders, Mix{}},
		{"raft, 5 gateways, faults", of(5), 24, 4, all(gateways, leaders, ways, disks), Mix{}},
		{"raft", of(3), 32, 5, nil, Mix{}},
		{"raft, transfers", of(3), 32, 5, []string{"transfer"}, Mix{}},
		{"raft, 1 gateway, faults", of(1), 24, 4, all(gateways, disks), Mix{}},
		{"raft, permits, faults", of(3), 24, 8, all(gateways, leaders), Mix{Wait: 20, Shared: 20, Permit: 60, Leave: 10, Linger: 1}},
		{"raft, disks", of(3), 24, 4, disks, Mix{}},
		{"raft, 5 gateways, crowd", of(5), 64, 6, nil, Mix{}},
	}
}

// situations are played in turn.
func situations() []situation {
	off := []string{"FENCEPOST_QUARANTINE=off"}
	permits := Mix{Wait: 20, Shared: 20, Permit: 60, Leave: 10, Linger: 1}
	return []situation{
		{"embedded", system.Options{Store: system.Embedded}, 24, 4, nil, Mix{}},
		{"redis", system.Options{Store: system.Redis, Gateways: 1}, 24, 4, nil, Mix{}},
		{"redis, 2 gateways", system.Options{Store: system.Redis, Gateways: 2}, 32, 5, nil, Mix{}},
		{"redis, 2 gateways, faults", system.Options{Store: system.Redis, Gateways: 2}, 24, 4, all(gateways, links, nodes), Mix{}},
		{"sentinel, faults", system.Options{Store: system.Sentinel, Gateways: 2}, 24, 4, all(gateways, masters), Mix{}},
		{"cluster, faults", system.Options{Store: system.Cluster, Gateways: 2}, 24, 6, all(gateways, masters, []string{"reshard"}), Mix{}},
		{"quorum", system.Options{Store: system.Quorum, Gateways: 2}, 8, 4, nil, Mix{}},
		{"postgres, 2 gateways", system.Options{Store: system.Postgres, Gateways: 2}, 32, 5, nil, Mix{}},
		{"postgres, faults", system.Options{Store: system.Postgres, Gateways: 2}, 24, 4, all(gateways, databases, []string{"drop-backends"}), Mix{}},
		{"mariadb, 2 gateways", system.Options{Store: system.MariaDB, Gateways: 2}, 32, 5, nil, Mix{}},
		{"mariadb, faults", system.Options{Store: system.MariaDB, Gateways: 2}, 24, 4, all(gateways, databases), Mix{}},
		{"embedded, crowd", system.Options{Store: system.Embedded}, 64, 4, nil, Mix{}},
		{"embedded, permits", system.Options{Store: system.Embedded}, 24, 8, nil, permits},
		{"embedded, faults", system.Options{Store: system.Embedded}, 24, 4, gateways, Mix{}},
		{"redis, 3 gateways, crowd", system.Options{Store: system.Redis, Gateways: 3}, 64, 6, nil, Mix{}},
		{"redis, no quarantine, faults", system.Options{Store: system.Redis, Gateways: 2, Env: off}, 24, 4, all(links, []string{"flush"}), Mix{}},
		{"sentinel", system.Options{Store: system.Sentinel, Gateways: 2}, 24, 4, nil, Mix{}},
		{"cluster", system.Options{Store: system.Cluster, Gateways: 3}, 32, 8, nil, Mix{}},
		{"quorum, faults", system.Options{Store: system.Quorum, Gateways: 2}, 8, 4, all(gateways, links, nodes), Mix{}},
		{"redis, permits", system.Options{Store: system.Redis, Gateways: 2}, 24, 8, nil, permits},
		{"redis, clock", system.Options{Store: system.Redis, Gateways: 2}, 24, 4, clocks, Mix{}},
		{"quorum, clocks", system.Options{Store: system.Quorum, Gateways: 2}, 8, 4, clocks, Mix{}},
		{"redis, keys lost", system.Options{Store: system.Redis, Gateways: 2}, 24, 4, keys, Mix{}},
		{"redis, few", system.Options{Store: system.Redis, Gateways: 2}, 4, 2, links, Mix{}},
	}
}

// every returns how often there are faults in a round of the places. Nothing follows from a fault of a
// cluster for long that would hide what comes later, so that they may be close together.
func (s Series) every(round int) time.Duration {
	if s.Clusters && round%2 == 0 {
		return 2 * time.Second
	}
	return 0
}

// Run plays the histories and has each told by report, one at a time, with where it was
// played. An error means that some could not be played.
func (s Series) Run(ctx context.Context, report func(where string, r Report)) error {
	places := situations()
	if s.Clusters {
		places = clusters()
	}
	numbers := make(chan int)
	var (
		mu     sync.Mutex
		failed []error
		work   sync.WaitGroup
	)
	for range max(s.Parallel, 1) {
		work.Go(func() {
			for n := range numbers {
				at := places[n%len(places)]
				r, err := Run(ctx, Config{
					Options: at.options, Clients: at.clients, Names: at.names, Operations: s.Operations, Seed: s.Seed + uint64(n),
					Faults: at.faults, Every: s.every(n / len(places)), Mix: at.mix, Dir: s.Dir,
				})
				mu.Lock()
				if err != nil {
					failed = append(failed, fmt.Errorf("history %d (%s): %w", n, at.name, err))
				} else {
					report(at.name, r)
				}
				mu.Unlock()
			}
		})
	}
	begun := time.Now()
	for n := range s.Histories {
		if s.Limit > 0 && time.Since(begun) > s.Limit {
			break
		}
		select {
		case numbers <- n:
		case <-ctx.Done():
		}
	}
	close(numbers)
	work.Wait()
	return errors.Join(append(failed, ctx.Err())...)
}
