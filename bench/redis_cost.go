package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fencepost/internal/redis"
	"fencepost/internal/redis/redistest"
)

// redisCost is what Redis does for an operation, in figures that do not depend on the
// pace of the machine.
type redisCost struct {
	aof        float64 // bytes that a pair puts into the AOF
	pair, turn float64 // instructions of a pair and of a turn of the queue; 0 without valgrind
}

// callersAtOnce is how many operations can share a call while instructions are counted.
const callersAtOnce = 16

// measureRedisCost leaves instructions out, and says so, where they can't be counted:
// without valgrind, or on a machine so busy that a Redis under it does not answer in time.
func (r *results) measureRedisCost() (err error) {
	if r.cost.aof, err = aofOfAPair(); err != nil {
		return err
	}
	nothing := func(*row) error { return nil }
	pair, err := instructions(nothing, func(w *row, i int) error { return storePair(w.stores[0], i%names) })
	if err == nil {
		r.cost.turn, err = instructions(func(w *row) error { return each(names, 1, w.queue("turn")) }, (*row).turn)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "no instructions are counted:", err)
		return nil
	}
	r.cost.pair = pair
	return nil
}

// aofOfAPair returns the bytes that an acquire and a release put into the AOF. A replica
// is sent as many.
func aofOfAPair() (float64, error) {
	server, err := redistest.Run("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
	if err != nil {
		return 0, err
	}
	defer server.Close()
	ctx, client := context.Background(), server.Client()
	defer client.Close()
	store, err := openStore(ctx, server)
	if err != nil {
		return 0, err
	}
	defer store.Close()
	pair := func(i int) error { return storePair(store, i%names) }
	if err := each(names, 1, pair); err != nil { // what only the first of a name costs
		return 0, err
	}
	used, err := spent(ctx, client, 20_000, callers, pair)
	return used.aof, err
}

// instructions returns how many instructions Redis runs for one piece of work: the
// difference of two runs under callgrind, so that what a run costs at any rate is not in it.
func instructions(prepare func(*row) error, work func(w *row, i int) error) (float64, error) {
	const few, many = 1000, 3000
	var counts [2]float64
	for i, n := range []int{few, many} {
		var err error
		if counts[i], err = countInstructions(func(w *row) error {
			return errors.Join(prepare(w), each(n, callersAtOnce, func(i int) error { return work(w, i) }))
		}); err != nil {
			return 0, err
		}
	}
	return (counts[1] - counts[0]) / (many - few), nil
}

// countInstructions returns how many instructions a Redis runs in all while load has it.
func countInstructions(load func(*row) error) (float64, error) {
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	log := filepath.Join(dir, "callgrind")
	server := exec.Command("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-file="+log,
		"redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--save", "", "--appendonly", "no", "--logfile", filepath.Join(dir, "log"))
	if err := server.Start(); err != nil {
		return 0, err
	}
	err = loadRedis("127.0.0.1:"+strconv.Itoa(port), load)
	err = errors.Join(err, server.Process.Signal(syscall.SIGTERM), server.Wait())
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(log)
	if err != nil {
		return 0, err
	}
	found := collected.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("callgrind has counted nothing: %s", text)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

var collected = regexp.MustCompile(`Collected : (\d+)`)

// loadRedis runs load on a store at a Redis that is about to start.
func loadRedis(addr string, load func(*row) error) error {
	const patience = time.Minute
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := ping(addr, patience)
		if err == nil {
			break
		}
		if time.Since(start) > patience {
			return err
		}
	}
	ctx := context.Background()
	store, err := openStoreAt(ctx, "redis://"+addr+"/0")
	if err != nil {
		return err
	}
	defer store.Close()
	return load(&row{ctx: ctx, stores: []*redis.Store{store}})
}

// ping returns when a Redis has answered.
func ping(addr string, patience time.Duration) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	conn.SetReadDeadline(time.Now().Add(patience))
	_, err = conn.Read(make([]byte, 1))
	return err
}

// reportRedisCost is the part of docs/benchmarks.md about them.
func (r *results) reportRedisCost() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
## What Redis does for a pair

A pair puts %.0f bytes into the AOF, and sends each replica as many.
`, r.cost.aof)
	if r.cost.pair > 0 {
		fmt.Fprintf(&b, `
Thousands of instructions (callgrind), with %d operations under way at a time: %.0f a pair,
%.0f a turn of a queue, that is a release, the hand-over, and a new place at its end.
`, callersAtOnce, r.cost.pair/1e3, r.cost.turn/1e3)
	}
	return b.String()
}
