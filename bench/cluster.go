package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	fencepost "fencepost/client"
	"fencepost/internal/redis/redistest"
)

// members is how many gateways, and how many members of etcd, are a cluster here.
const members = 3

// measureClusters compares clusters of gateways with one gateway alone, with Redis, and with
// etcd, on processes of its own whose data are on one disk.
func (r *results) measureClusters(binary, dir string, rounds int, length time.Duration) (err error) {
	var stops []func() error
	defer func() {
		for i := len(stops) - 1; i >= 0; i-- {
			err = errors.Join(err, stops[i]())
		}
	}()
	alone, err := startGateway(binary, "embedded", filepath.Join(dir, "alone"))
	if err != nil {
		return err
	}
	stops = append(stops, alone.stop)
	server, err := redistest.Run("--appendonly", "yes", "--appendfsync", "always", "--save", "")
	if err != nil {
		return err
	}
	stops = append(stops, server.Close)
	onRedis, err := startGateway(binary, server.URL(), "")
	if err != nil {
		return err
	}
	stops = append(stops, onRedis.stop)
	one, stop, err := startCluster(binary, filepath.Join(dir, "one"), 1)
	stops = append(stops, stop)
	if err != nil {
		return err
	}
	three, stop, err := startCluster(binary, filepath.Join(dir, "three"), members)
	stops = append(stops, stop)
	if err != nil {
		return err
	}
	etcd, err := startEtcd(dir)
	if err != nil {
		return err
	}
	stops = append(stops, etcd.stop)

	byClient, dismiss, err := clientPairs(addresses(three...))
	if err != nil {
		return err
	}
	stops = append(stops, dismiss)
	targets := []target{
		{key: "embedded", title: "Fencepost, embedded", addrs: addresses(alone), pids: processes(alone)},
		{key: "redis", title: "Fencepost, Redis with appendfsync always", addrs: addresses(onRedis), pids: append(processes(onRedis), server.Pid())},
		{key: "one", title: "Fencepost, cluster of one", addrs: addresses(one...), pids: processes(one...)},
		{key: "three", title: "Fencepost, cluster of three", addrs: addresses(three...), pids: processes(three...)},
		{key: "client", title: "the same, by Fencepost's Go client", work: byClient, pids: processes(three...)},
		{key: "etcd", title: "etcd, three members, by its Go client", rate: etcd.pairs, pids: etcd.pids},
	}
	for _, clients := range []int{1, 64} {
		if err := r.measureClusterPairs(targets, clients, rounds, length); err != nil {
			return err
		}
	}
	var rivals []rival
	add := func(key, title string, at ...*process) {
		hire := func() (turn, func(), error) { return overHTTP("bench/contended", addresses(at...)...) }
		rivals = append(rivals, rival{key: key, title: title, hire: hire})
	}
	add("embedded", "Fencepost, embedded", alone)
	add("redis", "Fencepost, Redis with appendfsync always", onRedis)
	add("one", "Fencepost, cluster of one", one...)
	add("near", "Fencepost, cluster of three, all at one gateway", three[0])
	add("three", "Fencepost, cluster of three, spread over them", three...)
	return r.measureClusterTurns(rivals, rounds, 5*length)
}

// measureClusterPairs is the closed loop of each target in turn.
func (r *results) measureClusterPairs(targets []target, clients, rounds int, length time.Duration) error {
	rates, cpus, err := compareThroughput(targets, clients, rounds, length)
	if err != nil {
		return err
	}
	for _, t := range targets {
		r.clusters = append(r.clusters, clusterRow{
			title: t.title, clients: clients, pairs: median(rates[t.key]), cpu: time.Duration(median(cpus[t.key])),
			toEmbedded: median(ratios(rates[t.key], rates["embedded"])), toEtcd: median(ratios(rates[t.key], rates["etcd"])),
		})
	}
	return nil
}

// measureClusterTurns has clients want one lock, which they let go at once.
func (r *results) measureClusterTurns(rivals []rival, rounds int, length time.Duration) error {
	found, err := compareContests(rivals, 0, max(rounds/2, 3), length)
	if err != nil {
		return err
	}
	handed := func(key string) (all []float64) {
		for _, c := range found[key] {
			all = append(all, c.handed)
		}
		return all
	}
	for _, v := range rivals {
		r.clusterTurns = append(r.clusterTurns, clusterTurn{
			title: v.title, handed: median(handed(v.key)), toEmbedded: median(ratios(handed(v.key), handed("embedded"))),
		})
	}
	return nil
}

// clusterRow is a target at a number of clients: medians of the rounds, and of the ratios
// within them.
type clusterRow struct {
	title              string
	clients            int
	pairs              float64 // a second
	cpu                time.Duration
	toEmbedded, toEtcd float64
}

// clusterTurn is a rival whose clients want one lock.
type clusterTurn struct {
	title              string
	handed, toEmbedded float64 // hand-overs a second
}

// startCluster starts gateways that are a cluster, and waits until all are ready. stop, which
// is never nil, ends them.
func startCluster(binary, dir string, size int) (all []*process, stop func() error, err error) {
	stop = func() error {
		for _, p := range all {
			p.stop()
		}
		return nil
	}
	var list []string
	for range size {
		port, err := redistest.FreePort()
		if err != nil {
			return nil, stop, err
		}
		list = append(list, fmt.Sprintf("127.0.0.1:%d", port))
	}
	for i, addr := range list {
		p, err := startGateway(binary, "raft://"+strings.Join(list, ","), filepath.Join(dir, fmt.Sprint(i)), "FENCEPOST_CLUSTER_ADDR="+addr)
		if err != nil {
			return all, stop, err
		}
		all = append(all, p)
	}
	for _, p := range all {
		if err := p.awaitReady(time.Minute); err != nil {
			return all, stop, err
		}
	}
	return all, stop, nil
}

// awaitReady waits until a gateway serves locks.
func (p *process) awaitReady(timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		response, err := http.Get("http://" + p.addr + "/readyz")
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("the gateway at %s is not ready after %s", p.addr, timeout)
}

func addresses(all ...*process) (addrs []string) {
	for _, p := range all {
		addrs = append(addrs, p.addr)
	}
	return addrs
}

func processes(all ...*process) (pids []int) {
	for _, p := range all {
		pids = append(pids, p.cmd.Process.Pid)
	}
	return pids
}

// clientPairs acquires and releases by the Go client that users have, one for each of
// etcdClients, which are spread over the gateways.
func clientPairs(addrs []string) (work func(int) error, dismiss func() error, err error) {
	var all []*fencepost.Client
	dismiss = func() (err error) {
		for _, c := range all {
			err = errors.Join(err, c.Close())
		}
		return err
	}
	for i := range etcdClients {
		var urls []string
		for n := range addrs {
			urls = append(urls, "http://"+addrs[(i+n)%len(addrs)])
		}
		c, err := fencepost.New(fencepost.Options{Addresses: urls, Owner: "worker-7"})
		if err != nil {
			return nil, dismiss, errors.Join(err, dismiss())
		}
		all = append(all, c)
	}
	return func(i int) error {
		ctx := context.Background()
		lease, err := all[i].Acquire(ctx, fmt.Sprintf("bench/%d", i), fencepost.TTL(30*time.Second))
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}, dismiss, nil
}

// reportClusters is the part of BENCHMARKS.md about clusters of gateways.
func (r *results) reportClusters() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
## A cluster of gateways, and etcd

Each client has its own names. All data are on the same disk, and every write is flushed before its answer. Clients
of a cluster are spread over its %d gateways, those of etcd over its members. The load over HTTP is the cheap one of
the tables above. The rows with a Go client use the client that users have: Fencepost's speaks HTTP; etcd's speaks
gRPC, with a connection, a session and a concurrency.Mutex for each client. CPU is that of gateways and servers, not of
the clients, which share the machine.

| clients | target | pairs/s | CPU a pair | to embedded | to etcd |
| ---: | --- | ---: | ---: | ---: | ---: |
`, members)
	for _, c := range r.clusters {
		fmt.Fprintf(&b, "| %d | %s | %.0f | %.0f µs | %.2f | %.2f |\n", c.clients, c.title, c.pairs, float64(c.cpu)/1e3, c.toEmbedded, c.toEtcd)
	}
	fmt.Fprintf(&b, `
%d clients want one lock, release it at once and ask again:

| target | hand-overs/s | to embedded |
| --- | ---: | ---: |
`, contenders)
	for _, t := range r.clusterTurns {
		fmt.Fprintf(&b, "| %s | %.0f | %.2f |\n", t.title, t.handed, t.toEmbedded)
	}
	return b.String()
}
