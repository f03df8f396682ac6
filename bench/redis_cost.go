package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"fencepost/internal/redis"

	goredis "github.com/redis/go-redis/v9"
)

// redisCost is what Redis does for an operation, in figures that do not depend on the
// pace of the machine.
type redisCost struct {
	aof        float64 // bytes that a pair puts into the AOF
	pair, turn float64 // thousand instructions of a pair and of a turn of the queue; 0 without valgrind
}

// measureRedisCost leaves instructions out, and says so, where they can't be counted:
// without valgrind, or on a machine so busy that a Redis under it does not answer in time.
func (r *results) measureRedisCost() (err error) {
	if r.cost.aof, err = aofOfAPair(); err != nil {
		return err
	}
	if r.cost.pair, r.cost.turn, err = instructions(); err != nil {
		fmt.Fprintln(os.Stderr, "no instructions are counted:", err)
	}
	return nil
}

// aofOfAPair returns the bytes that an acquire and a release put into the AOF. A replica
// is sent as many.
func aofOfAPair() (bytes float64, err error) {
	err = onRedis(func(ctx context.Context, client *goredis.Client, store *redis.Store) error {
		pair := func(i int) error { return storePair(store, i%names) }
		if err := each(names, 1, pair); err != nil { // what only the first of a name costs
			return err
		}
		used, err := spent(ctx, client, 20_000, callers, pair)
		bytes = used.aof
		return err
	}, "--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
	return bytes, err
}

// instructions returns how many thousand instructions Redis runs for a pair and for a turn,
// with calls as full as they get: what the benchmark of internal/redis counts.
func instructions() (pair, turn float64, err error) {
	if _, err := exec.LookPath("valgrind"); err != nil {
		return 0, 0, err
	}
	out, err := exec.Command("go", "test", "-run", "^$", "-bench", "^BenchmarkInstructions$/operations=16", "-benchtime", "1x", "./internal/redis").CombinedOutput()
	found := counted.FindSubmatch(out)
	if err != nil || found == nil {
		return 0, 0, fmt.Errorf("%w: %s", err, out)
	}
	pair, errPair := strconv.ParseFloat(string(found[1]), 64)
	turn, errTurn := strconv.ParseFloat(string(found[2]), 64)
	return pair, turn, errors.Join(errPair, errTurn)
}

var counted = regexp.MustCompile(`([0-9.]+) kI/pair\s+([0-9.]+) kI/turn`)

// reportRedisCost is the part of BENCHMARKS.md about them.
func (r *results) reportRedisCost() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
## What Redis does for a pair

A pair writes %.0f bytes to the AOF, and sends as many to each replica.
`, r.cost.aof)
	if r.cost.pair > 0 {
		fmt.Fprintf(&b, `
With 16 operations a call, Redis takes %.0f thousand instructions for a pair (callgrind), and %.0f thousand
for a turn in a queue: a release, the hand-over, and a new place at the end.
`, r.cost.pair, r.cost.turn)
	}
	return b.String()
}
