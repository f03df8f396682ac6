// Bench measures the gateway beside a bare HTTP handler, simpler gateways, the store
// without HTTP, and etcd. The ratios compare rates taken seconds apart in the same run,
// and the order of the targets changes from round to round; the medians go into
// BENCHMARKS.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

func main() {
	baseline := flag.String("baseline", "", "serve as this baseline (used by bench itself)")
	abuse := flag.String("abuse", "", "abuse a gateway in this way (used by bench itself)")
	target := flag.String("target", "", "address of the gateway to abuse")
	storeURL := flag.String("store", "", "store of the baseline")
	rounds := flag.Int("rounds", 25, "rounds of each measurement; the medians count")
	length := flag.Duration("length", 400*time.Millisecond, "length of one measurement; short, so that a round is over before a shared machine changes its pace")
	only := flag.String("only", "", "waiting, redis, topologies, clusters, databases, abuse or footprint: measure that part alone and write no report")
	report := flag.String("report", "BENCHMARKS.md", "file to write")
	flag.Parse()
	var err error
	if *baseline != "" {
		err = serveBaseline(*baseline, *storeURL)
	} else if *abuse != "" {
		err = serveAbuse(*abuse, *target)
	} else {
		err = run(*rounds, *length, *report, *only)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(rounds int, length time.Duration, report, only string) error {
	if only == "footprint" {
		f, err := measureFootprint(rounds)
		fmt.Print(f.report(rounds))
		return err
	}
	if only == "redis" {
		var r results
		err := r.measureRedisCost()
		fmt.Print(r.reportRedisCost())
		return err
	}
	if only == "topologies" {
		var r results
		err := r.measureTopologies(rounds, length)
		fmt.Print(r.reportTopologies())
		return err
	}
	dir, err := os.MkdirTemp("", "fencepost-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "gateway")
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/gateway")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return err
	}
	if only == "abuse" {
		var r results
		err := r.measureAbuse(binary, dir, rounds)
		fmt.Print(r.reportAbuse())
		return err
	}
	if only == "databases" {
		var r results
		err := r.measureDatabases(binary, rounds)
		fmt.Print(r.reportDatabases())
		return err
	}
	if only == "clusters" {
		var r results
		err := r.measureClusters(binary, dir, rounds, length)
		fmt.Print(r.reportClusters())
		return err
	}
	if only == "waiting" {
		r := results{rate: aloneRate}
		err := r.measureWaiting(binary, dir, rounds, length)
		fmt.Print(r.reportWaiting())
		return err
	}
	targets, stop, err := startTargets(binary, dir)
	defer stop()
	if err != nil {
		return err
	}
	var r results
	for _, clients := range []int{1, 64, 256} {
		if err := r.measureThroughput(targets, clients, rounds, length); err != nil {
			return err
		}
	}
	if err := r.measureLatency(targets, rounds, 2*length); err != nil {
		return err
	}
	if err := r.measureMemory(); err != nil {
		return err
	}
	if err := r.measureRedisCost(); err != nil {
		return err
	}
	if err := r.measureWaiting(binary, dir, rounds, length); err != nil {
		return err
	}
	if err := r.measureTopologies(rounds, length); err != nil {
		return err
	}
	if err := r.measureClusters(binary, dir, rounds, length); err != nil {
		return err
	}
	if err := r.measureDatabases(binary, max(rounds/5, 5)); err != nil {
		return err
	}
	if err := r.measureAbuse(binary, dir, rounds); err != nil {
		return err
	}
	text := r.report(rounds, length)
	fmt.Print(text)
	return os.WriteFile(report, []byte(text), 0o644)
}
