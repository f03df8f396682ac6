package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// target is something that acquires and releases.
type target struct {
	key   string
	title string
	pids  []int                                                              // whose CPU a pair costs
	addrs []string                                                           // over which clients are spread
	work  func(client int) error                                             // in place of addrs: another client, in this process
	rate  func(clients int, length time.Duration) (pairs float64, err error) // in place of both: another process
}

// hire returns the loop of a number of clients, in pairs a second, and what ends them.
func (t *target) hire(clients int) (loop func(length time.Duration) (float64, error), dismiss func(), err error) {
	if t.rate != nil {
		return func(length time.Duration) (float64, error) { return t.rate(clients, length) }, func() {}, nil
	}
	work, dismiss := t.work, func() {}
	if work == nil {
		all, err := newCrew(clients, t.addrs...)
		if err != nil {
			return nil, all.close, err
		}
		work, dismiss = func(i int) error { return all[i].pair() }, all.close
	}
	return func(length time.Duration) (float64, error) { return closedLoop(clients, length, work) }, dismiss, nil
}

// startTargets starts everything once; stop ends it.
func startTargets(binary, dir string) (targets []target, stop func(), err error) {
	var stops []func()
	stop = func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]()
		}
	}
	add := func(key, title string, p *process, err error, more ...int) error {
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
		stops = append(stops, func() { p.stop() })
		targets = append(targets, target{key: key, title: title, addrs: []string{p.addr}, pids: append(more, p.cmd.Process.Pid)})
		return nil
	}
	launch := func(args ...string) (*redistest.Server, error) {
		server, err := redistest.Run(args...)
		if err == nil {
			stops = append(stops, func() { server.Close() })
		}
		return server, err
	}
	volatile, err := launch("--appendonly", "no", "--save", "")
	if err != nil {
		return nil, stop, err
	}
	durable, err := launch("--appendonly", "yes", "--appendfsync", "always", "--save", "")
	if err != nil {
		return nil, stop, err
	}

	p, err := startBaseline("bare", "")
	if err := add("bare", "bare net/http and chi handler", p, err); err != nil {
		return nil, stop, err
	}
	p, err = startBaseline("naive", volatile.URL())
	if err := add("naive", "naive gateway: the same library, one FCALL a request", p, err, volatile.Pid()); err != nil {
		return nil, stop, err
	}
	p, err = startBaseline("minimal", volatile.URL())
	if err := add("minimal", "minimal gateway: SET NX, INCR; GET, DEL", p, err, volatile.Pid()); err != nil {
		return nil, stop, err
	}
	p, err = startGateway(binary, "embedded", filepath.Join(dir, "data"))
	if err := add("embedded", "Fencepost, embedded", p, err); err != nil {
		return nil, stop, err
	}
	p, err = startGateway(binary, volatile.URL(), "")
	if err := add("redis", "Fencepost, Redis without AOF", p, err, volatile.Pid()); err != nil {
		return nil, stop, err
	}
	p, err = startGateway(binary, durable.URL(), "")
	if err := add("always", "Fencepost, Redis with appendfsync always", p, err, durable.Pid()); err != nil {
		return nil, stop, err
	}
	store, err := redis.Open(context.Background(), redis.Options{URL: volatile.URL(), MaxSkew: time.Second})
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, func() { store.Close() })
	targets = append(targets, target{key: "library", title: "the same library without HTTP", pids: []int{volatile.Pid()}, work: func(client int) error { return storePair(store, client) }})
	return targets, stop, nil
}

// storePair acquires and releases straight on the store.
func storePair(store fencing.Store, client int) error {
	ctx := context.Background()
	request := newRequest(fencing.Name(fmt.Sprintf("bench/%d", client)))
	if _, err := store.Do(ctx, request); err != nil {
		return err
	}
	_, err := store.Do(ctx, fencing.ReleaseRequest{Name: request.Name, Lease: request.Lease})
	return err
}

func newRequest(name fencing.Name) fencing.AcquireRequest {
	return fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Owner: "worker-7",
		Mode: fencing.ModeExclusive, Hold: 1, TTL: 30 * time.Second,
	}
}
