package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
	"fencepost/internal/watchdog"
)

// aloneRate is the arrivals a second beside parked clients when the throughput,
// of which it would be a tenth, is not measured in the same run.
const aloneRate = 1000

// measureWaiting measures all that has to do with waiting, on processes of its
// own.
func (r *results) measureWaiting(binary, dir string, rounds int, length time.Duration) error {
	var stops []func()
	defer func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]()
		}
	}()
	var fault error
	keep := func(p *process, err error) *process {
		if err != nil {
			fault = err
			return &process{}
		}
		stops = append(stops, func() { p.stop() })
		return p
	}
	launch := func() *redistest.Server {
		server, err := redistest.Run("--appendonly", "no", "--save", "")
		if err != nil {
			fault = err
			return nil
		}
		stops = append(stops, func() { server.Close() })
		return server
	}
	one, two, queue, poll := launch(), launch(), launch(), launch()
	if fault != nil {
		return fault
	}
	bare := keep(startBaseline("parking", ""))
	polling := keep(startBaseline("polling", poll.URL()))
	memory := keep(startBaseline("fifo", ""))
	embedded := keep(startGateway(binary, "embedded", filepath.Join(dir, "contended")))
	alone := keep(startGateway(binary, one.URL(), ""))
	left, right := keep(startGateway(binary, two.URL(), "")), keep(startGateway(binary, two.URL(), ""))
	if fault != nil {
		return fault
	}
	store, err := redis.Open(context.Background(), redis.Options{URL: queue.URL(), MaxSkew: time.Second})
	if err != nil {
		return err
	}
	dog := watchdog.New(store, watchdog.Options{MaxSkew: time.Second})
	dog.Start()
	defer func() { dog.Stop(); store.Close() }()

	var rivals []rival
	add := func(key, title string, server *redistest.Server, addrs ...string) {
		hire := func() (turn, func(), error) { return overHTTP("bench/contended", addrs...) }
		rivals = append(rivals, rival{key: key, title: title, hire: hire, server: server})
	}
	add("polling", "minimal gateway that polls Redis every 50 ms", poll, polling.addr)
	add("fifo", "a queue in memory behind net/http and chi", nil, memory.addr)
	add("embedded", "Fencepost, embedded", nil, embedded.addr)
	add("redis", "Fencepost, Redis", one, alone.addr)
	add("two", "Fencepost, two gateways on one Redis", two, left.addr, right.addr)
	bareQueue := rival{
		key: "queue", title: "the store's queue without HTTP", server: queue,
		hire: func() (turn, func(), error) { return inProcess(dog, "bench/contended"), func() {}, nil },
	}
	rivals = append(rivals, bareQueue)
	// With a hold the turns are few: it takes longer for one more or less not to count.
	for _, c := range []struct{ hold, length time.Duration }{{time.Millisecond, 10 * length}, {0, 5 * length}} {
		if err := r.measureContended(rivals, c.hold, max(rounds/5, 3), c.length); err != nil {
			return err
		}
	}
	if err := r.measureCrowd(dog, &bareQueue); err != nil {
		return err
	}
	fresh := keep(startGateway(binary, "embedded", filepath.Join(dir, "parked")))
	crowded, idle := keep(startGateway(binary, one.URL(), "")), keep(startGateway(binary, one.URL(), ""))
	if fault != nil {
		return fault
	}
	if err := r.measureParked([]target{
		{key: "parking", title: "bare net/http and chi handler", pids: []int{bare.cmd.Process.Pid}, addrs: []string{bare.addr}},
		{key: "embedded", title: "Fencepost, embedded", pids: []int{fresh.cmd.Process.Pid}, addrs: []string{fresh.addr}},
		{key: "redis", title: "Fencepost, Redis", pids: []int{crowded.cmd.Process.Pid}, addrs: []string{crowded.addr}},
	}); err != nil {
		return err
	}
	busy := keep(startGateway(binary, two.URL(), ""))
	if fault != nil {
		return fault
	}
	return r.measureBeside(idle, busy, max(rounds/5, 3), 2*length)
}

// reportWaiting is the part of BENCHMARKS.md about waiting.
func (r *results) reportWaiting() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
## Many clients, one name

%d clients want one lock. Each holds it for a while, releases it, and asks again at once.

- A hand-over is a turn that follows a turn of another client. Where clients poll, the client
  that has just released usually gets the lock again.
- "In use" is the part of the time in which somebody held the lock. The next column compares it
  with a queue in memory over HTTP.
- The longest wait is relative to the mean wait; the turns of the slowest client to those of the
  fastest.

| hold | target | turns/s | hand-overs/s | to polling | in use | to the queue in memory | longest wait | slowest client | calls a turn |
| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
`, contenders)
	for _, c := range r.contended {
		calls, toMemory := "-", "-"
		if c.calls > 0 {
			calls = fmt.Sprintf("%.3f", c.calls)
		}
		if c.hold > 0 {
			toMemory = fmt.Sprintf("%.2f", c.toMemory)
		}
		fmt.Fprintf(&b, "| %s | %s | %.0f | %.0f | %.1f | %.2f | %s | %.2f | %.2f | %s |\n",
			c.hold, c.title, c.turns, c.handed, c.toPolling, c.use, toMemory, c.longest, c.slowest, calls)
	}
	fmt.Fprintf(&b, `
With %d clients in one queue, a turn takes %.3f calls.

## Clients that wait

%d connections, each with a request that waits for the same name.

| target | resident memory each | to bare |
| --- | ---: | ---: |
`, parkedClients, r.crowd, parkedClients)
	for _, p := range r.parked {
		fmt.Fprintf(&b, "| %s | %.1f kB | %.2f |\n", p.title, p.perWait/1000, p.toBare)
	}
	fmt.Fprintf(&b, `
Acquires of other names at this gateway, relative to a gateway without waiting clients, at
%.0f arrivals a second: p50 %.2f, p99 %.2f.
`, r.rate, r.beside50, r.beside99)
	return b.String()
}
