package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// results are what a run found.
type results struct {
	throughput []throughput
	latency    []latency
	rate       float64 // arrivals a second of the latency rounds
	perLock    float64 // bytes of Redis memory a held lock
	cost       redisCost

	topologies         []topologyRow
	distant            []topologyRow // the same behind a delay line
	contended          []contended
	parked             []parked
	crowd              float64 // calls a turn with parkedClients in the queue
	abuse              []besides
	databases          []databaseRow
	clusters           []clusterRow
	clusterTurns       []clusterTurn
	beside50, beside99 float64 // latency of other names, many parked to none
}

// throughput is a target's closed loop at a number of clients.
type throughput struct {
	key     string
	title   string
	clients int
	pairs   float64 // median, a second
	cpu     time.Duration
	toBare  float64 // medians of the ratios within a round; 0 for the baseline itself
	toNaive float64
	toMin   float64
}

type latency struct {
	title    string
	p50, p99 time.Duration
	r50, r99 float64 // to the naive gateway, within a round
}

func (r *results) measureThroughput(targets []target, clients, rounds int, length time.Duration) error {
	rates, cpus, err := compareThroughput(targets, clients, rounds, length)
	if err != nil {
		return err
	}
	for _, t := range targets {
		r.throughput = append(r.throughput, throughput{
			key: t.key, title: t.title, clients: clients,
			pairs: median(rates[t.key]), cpu: time.Duration(median(cpus[t.key])),
			toBare: median(ratios(rates[t.key], rates["bare"])), toNaive: median(ratios(rates[t.key], rates["naive"])),
			toMin: median(ratios(rates[t.key], rates["minimal"])),
		})
	}
	return nil
}

// compareThroughput runs the targets in turn. It returns, by their keys, what each round found: pairs
// a second, and the CPU of a pair in ns.
func compareThroughput(targets []target, clients, rounds int, length time.Duration) (rates, cpus map[string][]float64, err error) {
	loop := make([]func(time.Duration) (float64, error), len(targets))
	for i := range targets {
		var dismiss func()
		loop[i], dismiss, err = targets[i].hire(clients)
		defer dismiss()
		if err != nil {
			return nil, nil, err
		}
	}
	rates, cpus = map[string][]float64{}, map[string][]float64{}
	for round := range rounds + 1 { // the first round warms up and is dropped
		for i := range targets {
			n := (i + round) % len(targets)
			t := &targets[n]
			before, err := cpuTime(t.pids...)
			if err != nil {
				return nil, nil, err
			}
			rate, err := loop[n](length)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", t.title, err)
			}
			after, err := cpuTime(t.pids...)
			if err != nil {
				return nil, nil, err
			}
			if round > 0 {
				rates[t.key] = append(rates[t.key], rate)
				cpus[t.key] = append(cpus[t.key], float64(after-before)/(rate*length.Seconds()))
			}
		}
		fmt.Fprintf(os.Stderr, "%d clients, round %d of %d\n", clients, round, rounds)
	}
	return rates, cpus, nil
}

// measureLatency compares the two gateways on Redis under irregular arrivals at
// a tenth of what ours got through with 64 clients.
func (r *results) measureLatency(targets []target, rounds int, length time.Duration) error {
	var compared []target
	for _, t := range targets {
		if t.key == "naive" || t.key == "redis" || t.key == "embedded" {
			compared = append(compared, t)
		}
	}
	for _, t := range r.throughput {
		if t.clients == 64 && t.key == "redis" {
			r.rate = t.pairs / 10
		}
	}
	p50, p99 := map[string][]float64{}, map[string][]float64{}
	for round := range rounds {
		for i := range compared {
			t := &compared[(i+round)%len(compared)]
			took, err := irregular(t.addrs[0], r.rate, length, uint64(round))
			if err != nil {
				return fmt.Errorf("%s: %w", t.title, err)
			}
			p50[t.key] = append(p50[t.key], float64(took.at(.5)))
			p99[t.key] = append(p99[t.key], float64(took.at(.99)))
		}
		fmt.Fprintf(os.Stderr, "irregular arrivals, round %d of %d\n", round+1, rounds)
	}
	for _, t := range compared {
		r.latency = append(r.latency, latency{
			title: t.title, p50: time.Duration(median(p50[t.key])), p99: time.Duration(median(p99[t.key])),
			r50: median(ratios(p50[t.key], p50["naive"])), r99: median(ratios(p99[t.key], p99["naive"])),
		})
	}
	return nil
}

// measureMemory fills a fresh Redis with held locks.
func (r *results) measureMemory() error {
	const locks, workers = 100_000, 64
	server, err := redistest.Run("--appendonly", "no", "--save", "")
	if err != nil {
		return err
	}
	defer server.Close()
	ctx := context.Background()
	store, err := redis.Open(ctx, redis.Options{URL: server.URL(), MaxSkew: time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	options, err := goredis.ParseURL(server.URL())
	if err != nil {
		return err
	}
	client := goredis.NewClient(options)
	defer client.Close()
	if err := store.Check(ctx); err != nil {
		return err
	}
	before, err := usedMemory(ctx, client)
	if err != nil {
		return err
	}
	faults := make([]error, workers)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := w; i < locks && faults[w] == nil; i += workers {
				request := newRequest(fencing.Name(fmt.Sprintf("orders/%d", i)))
				request.TTL = time.Hour
				_, faults[w] = store.Do(ctx, request)
			}
		})
	}
	group.Wait()
	if err := errors.Join(faults...); err != nil {
		return err
	}
	after, err := usedMemory(ctx, client)
	r.perLock = float64(after-before) / locks
	return err
}

func usedMemory(ctx context.Context, client *goredis.Client) (int64, error) {
	info, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(info, "used_memory:")
	value, _, _ := strings.Cut(rest, "\r\n")
	return strconv.ParseInt(value, 10, 64)
}

func ratios(of, to []float64) []float64 {
	out := make([]float64, len(of))
	for i := range of {
		out[i] = of[i] / to[i]
	}
	return out
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// commit returns the commit that is measured.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// report is BENCHMARKS.md.
func (r *results) report(rounds int, length time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Benchmarks

%smake bench%s writes this file; don't edit it. [docs/performance.md](docs/performance.md) says what
the figures mean for you.

- %s, commit %s, %s, %s
- %d cores, shared by the load, the gateways and the stores
- Each figure is the median of %d rounds of %s. Within a round the targets take turns.

Rates depend on the machine. The ratios compare targets that ran seconds apart.

A pair is an acquire and a release over HTTP. Each client has its own connection and its own
lock, and sends its next request when it has the answer to the last one.

- The bare handler only reads a request and writes an answer.
- The naive gateway does the same work as Fencepost, with the standard JSON package and one
  FCALL a request.
- The minimal gateway runs two short scripts (SET NX PX with INCR; GET and DEL). It has no
  retries, tombstones, lists or guards, and loses its counters.

All Redis servers run without AOF, unless the row says otherwise. CPU is that of the gateway and
its Redis together. In the rows without HTTP it is that of Redis alone.

## Throughput

| clients | target | pairs/s | CPU a pair | to bare | to naive | to minimal |
| ---: | --- | ---: | ---: | ---: | ---: | ---: |
`, "`", "`", time.Now().UTC().Format(time.DateOnly), commit(), runtime.GOARCH, runtime.Version(), runtime.NumCPU(), rounds, length)
	for _, t := range r.throughput {
		fmt.Fprintf(&b, "| %d | %s | %.0f | %.0f µs | %.2f | %.2f | %.2f |\n",
			t.clients, t.title, t.pairs, float64(t.cpu)/1e3, t.toBare, t.toNaive, t.toMin)
	}
	fmt.Fprintf(&b, `
## Latency at irregular arrivals

Acquires at random moments (exponential gaps), %.0f a second on average. That is a tenth
of the rate of Fencepost on Redis with 64 clients. Each counts from the moment it was due.

| target | p50 | p99 | p50 to naive | p99 to naive |
| --- | ---: | ---: | ---: | ---: |
`, r.rate)
	for _, l := range r.latency {
		fmt.Fprintf(&b, "| %s | %.3f ms | %.3f ms | %.2f | %.2f |\n", l.title, float64(l.p50)/1e6, float64(l.p99)/1e6, l.r50, l.r99)
	}
	fmt.Fprintf(&b, `
## Memory

A held lock takes %.0f bytes of Redis memory, all indexes included (100,000 names
of the form orders/12345, owner worker-7, no metadata).
`, r.perLock)
	b.WriteString(r.reportRedisCost())
	b.WriteString(r.reportTopologies())
	b.WriteString(r.reportClusters())
	b.WriteString(r.reportWaiting())
	b.WriteString(r.reportDatabases())
	b.WriteString(r.reportAbuse())
	return b.String()
}
