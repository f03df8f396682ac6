package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/quorum"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// topology is a store on one way to run Redis, used without HTTP: that costs the
// same everywhere and would hide the difference.
type topology struct {
	key, title string
	store      fencing.Store
	servers    []int // process ids of all its Redis, replicas and Sentinels included
}

// topologyRow is a topology at a number of clients: medians of the rounds, and of
// the ratios within them to the first topology.
type topologyRow struct {
	key, title string
	clients    int
	topologySample
	toPairs, to50, to99, toBusiest float64
}

// topologySample is what one round found of a topology.
type topologySample struct {
	pairs    float64 // a second
	p50, p99 float64 // of an acquire, ns
	redis    float64 // CPU a pair of all Redis processes together, ns
	busiest  float64 // of the one that used most
	here     float64 // of this process: load and store
}

// measureTopologies measures all topologies, on processes of its own.
func (r *results) measureTopologies(rounds int, length time.Duration) error {
	near, far, stop, err := startTopologies()
	for _, clients := range []int{1, 16, 64} {
		if err != nil {
			break
		}
		var rows []topologyRow
		rows, err = compareTopologies(near, clients, rounds, length)
		r.topologies = append(r.topologies, rows...)
	}
	if err == nil {
		r.distant, err = compareTopologies(far, 1, rounds, length)
	}
	return errors.Join(err, stop())
}

// compareTopologies runs them in turn; the first is what the others are compared with.
func compareTopologies(all []topology, clients, rounds int, length time.Duration) ([]topologyRow, error) {
	found := make([][]topologySample, len(all))
	for round := range rounds + 1 { // the first round warms up and is dropped
		for i := range all {
			n := (i + round) % len(all)
			s, err := all[n].sample(clients, length)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", all[n].title, err)
			}
			if round > 0 {
				found[n] = append(found[n], s)
			}
		}
		fmt.Fprintf(os.Stderr, "topologies, %d clients, round %d of %d\n", clients, round, rounds)
	}
	var rows []topologyRow
	for i := range all {
		rows = append(rows, newTopologyRow(&all[i], clients, found[i], found[0]))
	}
	return rows, nil
}

func newTopologyRow(t *topology, clients int, samples, base []topologySample) topologyRow {
	all := func(of []topologySample, value func(*topologySample) float64) (values []float64) {
		for i := range of {
			values = append(values, value(&of[i]))
		}
		return values
	}
	both := func(value func(*topologySample) float64) (middle, to float64) {
		values := all(samples, value)
		return median(values), median(ratios(values, all(base, value)))
	}
	row := topologyRow{key: t.key, title: t.title, clients: clients}
	row.pairs, row.toPairs = both(func(s *topologySample) float64 { return s.pairs })
	row.p50, row.to50 = both(func(s *topologySample) float64 { return s.p50 })
	row.p99, row.to99 = both(func(s *topologySample) float64 { return s.p99 })
	row.redis, _ = both(func(s *topologySample) float64 { return s.redis })
	row.busiest, row.toBusiest = both(func(s *topologySample) float64 { return s.busiest })
	row.here, _ = both(func(s *topologySample) float64 { return s.here })
	return row
}

// sample has clients acquire and release for a while, each a name of its own.
func (t *topology) sample(clients int, length time.Duration) (topologySample, error) {
	took := make([]latencies, clients)
	before, err := cpuTimes(t.servers)
	if err != nil {
		return topologySample{}, err
	}
	rate, err := closedLoop(clients, length, func(client int) error {
		request := newRequest(fencing.Name(fmt.Sprintf("bench/%d", client)))
		elapsed, err := timedPair(t.store, request)
		took[client] = append(took[client], elapsed)
		return err
	})
	if err != nil {
		return topologySample{}, err
	}
	after, err := cpuTimes(t.servers)
	if err != nil {
		return topologySample{}, err
	}
	merged := slices.Concat(took...)
	slices.Sort(merged)
	s := topologySample{pairs: rate, p50: float64(merged.at(.5)), p99: float64(merged.at(.99))}
	for i := range after {
		used := float64(after[i]-before[i]) / float64(len(merged))
		if i == len(t.servers) {
			s.here = used
			continue
		}
		s.redis += used
		s.busiest = max(s.busiest, used)
	}
	return s, nil
}

// cpuTimes returns the CPU times of processes, and last that of this one.
func cpuTimes(pids []int) (all []time.Duration, err error) {
	for _, pid := range append(slices.Clip(pids), os.Getpid()) {
		used, err := cpuTime(pid)
		if err != nil {
			return nil, err
		}
		all = append(all, used)
	}
	return all, nil
}

// timedPair acquires and releases, and returns how long the acquire took.
func timedPair(store fencing.Store, request fencing.AcquireRequest) (time.Duration, error) {
	ctx := context.Background()
	asked := time.Now()
	_, err := store.Do(ctx, request)
	elapsed := time.Since(asked)
	if err == nil {
		_, err = store.Do(ctx, fencing.ReleaseRequest{Name: request.Name, Lease: request.Lease})
	}
	return elapsed, err
}

// distance is how long an answer travels to a store that is not near.
const distance = time.Millisecond

// startTopologies starts one of each: near on loopback, far with a delay line before
// each Redis. stop, which is never nil, ends them.
func startTopologies() (near, far []topology, stop func() error, err error) {
	var sentinel *redistest.Sentinel
	var cluster *redistest.Cluster
	var alone, three, five []*redistest.Server
	away := map[*redistest.Server]string{}
	ended, err := redistest.Launch(func(t testing.TB) {
		alone = redistest.StartQuorum(t, 1)
		sentinel = redistest.StartSentinel(t, 2, 3)
		cluster = redistest.StartCluster(t, 3, 3)
		three, five = redistest.StartQuorum(t, 3), redistest.StartQuorum(t, 5)
		for _, s := range slices.Concat(alone, sentinel.Servers()[:1], three, five) {
			line := redistest.StartProxy(t, s.Addr())
			line.Delay(distance)
			away[s] = line.URL()
		}
	})
	stop = func() error {
		var errs []error
		for _, t := range slices.Concat(near, far) {
			errs = append(errs, t.store.Close())
		}
		return errors.Join(append(errs, ended())...)
	}
	if err != nil {
		return nil, nil, stop, err
	}
	here := func(s *redistest.Server) string { return s.URL() }
	there := func(s *redistest.Server) string { return away[s] }
	watched := append(pids(sentinel.Servers()), pids(sentinel.Sentinels())...)
	for _, kind := range []struct {
		to         *[]topology
		key, title string
		servers    []int
		open       func() (fencing.Store, error)
	}{
		{&near, "standalone", "standalone", pids(alone), func() (fencing.Store, error) { return openTopology(alone[0].URL(), 0) }},
		{&near, "sentinel", "Sentinel, 2 replicas", watched, func() (fencing.Store, error) { return openTopology(sentinel.URL(), 0) }},
		{&near, "acks", "Sentinel, 1 of 2 replicas confirms", watched, func() (fencing.Store, error) { return openTopology(sentinel.URL(), 1) }},
		{&near, "cluster", "Cluster, 3 masters, 3 replicas", pids(cluster.Members()), func() (fencing.Store, error) { return openTopology(cluster.URL(), 0) }},
		{&near, "three", "quorum of 3", pids(three), func() (fencing.Store, error) { return openQuorum(three, here) }},
		{&near, "five", "quorum of 5", pids(five), func() (fencing.Store, error) { return openQuorum(five, here) }},
		{&far, "standalone", "standalone", pids(alone), func() (fencing.Store, error) { return openTopology(there(alone[0]), 0) }},
		{&far, "sentinel", "Sentinel's master, 2 replicas", watched, func() (fencing.Store, error) { return openTopology(there(sentinel.Servers()[0]), 0) }},
		{&far, "acks", "Sentinel's master, 1 of 2 replicas confirms", watched, func() (fencing.Store, error) { return openTopology(there(sentinel.Servers()[0]), 1) }},
		{&far, "three", "quorum of 3", pids(three), func() (fencing.Store, error) { return openQuorum(three, there) }},
		{&far, "five", "quorum of 5", pids(five), func() (fencing.Store, error) { return openQuorum(five, there) }},
	} {
		store, err := kind.open()
		if err != nil {
			return near, far, stop, fmt.Errorf("%s: %w", kind.title, err)
		}
		*kind.to = append(*kind.to, topology{kind.key, kind.title, store, kind.servers})
	}
	return near, far, stop, nil
}

func pids(servers []*redistest.Server) (all []int) {
	for _, s := range servers {
		all = append(all, s.Pid())
	}
	return all
}

func openTopology(url string, acks int) (fencing.Store, error) {
	return redis.Open(context.Background(), redis.Options{URL: url, MaxSkew: time.Second, ReplicaAcks: acks})
}

func openQuorum(servers []*redistest.Server, url func(*redistest.Server) string) (fencing.Store, error) {
	var nodes []fencing.Node
	var errs []error
	for _, s := range servers {
		node, err := redis.Open(context.Background(), redis.Options{URL: url(s), MaxSkew: time.Second, Member: true})
		if err == nil {
			nodes = append(nodes, node)
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if err == nil { // NodeTimeout is for a machine on which all nodes share two cores with the load
		var store *quorum.Store
		if store, err = quorum.Open(nodes, quorum.Options{MaxSkew: time.Second, NodeTimeout: time.Second}); err == nil {
			return store, inService(nodes)
		}
	}
	for _, node := range nodes {
		err = errors.Join(err, node.Close())
	}
	return nil, err
}

// inService waits until the quorum has taken its nodes into service.
func inService(nodes []fencing.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, node := range nodes {
		for {
			memory, err := node.Memory(ctx)
			if ctx.Err() != nil {
				return errors.Join(errors.New("a node was not taken into service"), err)
			}
			if err == nil && memory.InService {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}

// reportTopologies is the part of BENCHMARKS.md about topologies.
func (r *results) reportTopologies() string {
	var b strings.Builder
	b.WriteString(`
## Sentinel, Cluster, quorum

Pairs of an acquire and a release, each caller with its own names, straight on the store: HTTP costs
the same with every store. All Redis servers run without AOF and share the cores with the load.
Replicas take CPU from their master, and the nodes of a quorum wait for each other, which they
would not do on machines of their own. So compare latencies at one client. For throughput compare
the CPU of the busiest Redis. "CPU here" is that of the load and the store's client. Ratios are to
one Redis (standalone).

| clients | store | pairs/s | ratio | acquire p50 | ratio | p99 | ratio | CPU of all Redis | of the busiest | ratio | CPU here |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
`)
	micros := func(ns float64) string { return fmt.Sprintf("%.0f µs", ns/1e3) }
	for _, t := range r.topologies {
		fmt.Fprintf(&b, "| %d | %s | %.0f | %.2f | %s | %.2f | %s | %.2f | %s | %s | %.2f | %s |\n",
			t.clients, t.title, t.pairs, t.toPairs, micros(t.p50), t.to50, micros(t.p99), t.to99, micros(t.redis), micros(t.busiest), t.toBusiest, micros(t.here))
	}
	fmt.Fprintf(&b, `
The same at one client, with every answer of a Redis delayed by %s, as a network does. The
requests go straight to Sentinel's master, because Sentinels take no part in a request.

| store | acquire p50 | to standalone | p99 | to standalone |
| --- | ---: | ---: | ---: | ---: |
`, distance)
	for _, t := range r.distant {
		fmt.Fprintf(&b, "| %s | %s | %.2f | %s | %.2f |\n", t.title, micros(t.p50), t.to50, micros(t.p99), t.to99)
	}
	return b.String()
}
