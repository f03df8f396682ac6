package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/history"
	"fencepost/verify/planted"
)

// histories are played over all stores, or clusters of gateways, with faults and without. What was found is told
// with a picture each, which stays where it is.
func histories(clusters bool, limit time.Duration) func(context.Context, check.Scale, *check.Result) error {
	return func(ctx context.Context, scale check.Scale, r *check.Result) error {
		s := history.Series{Clusters: clusters, Histories: check.Pick(scale, 20, 200), Parallel: 7, Limit: limit}
		if clusters {
			s.Histories, s.Parallel = check.Pick(scale, 10, 100), 3
		}
		return play(ctx, scale, s, r)
	}
}

func play(ctx context.Context, scale check.Scale, s history.Series, r *check.Result) error {
	s.Operations, s.Seed = check.Pick(scale, 1_000, 10_000), r.Seed
	dir, err := os.MkdirTemp("", "fencepost-histories")
	if err != nil {
		return err
	}
	var sum struct{ histories, operations, granted, unknown, leavers, kept, violations int }
	var played, judged time.Duration
	s.Dir = dir
	err = s.Run(ctx, func(where string, h history.Report) {
		sum.histories++
		sum.operations += h.Operations
		sum.granted += h.Granted
		sum.unknown += h.Unknown
		sum.leavers += h.Leavers
		sum.kept += h.Kept
		played, judged = played+h.Took, judged+h.Judged
		r.Harms.Join(h.Harms)
		for _, v := range h.Violations {
			sum.violations++
			r.Violation("%s, seed %d: %s", where, h.Seed, v)
		}
	})
	if history.TooManyKept(sum.leavers, sum.kept) {
		sum.violations++
		r.Violation("P6: of %d clients that left, %d keep their lease", sum.leavers, sum.kept)
	}
	r.Reach(fmt.Sprintf("histories of %d operations", s.Operations), sum.histories, s.Histories)
	r.Count("operations", sum.operations)
	r.Count("leases told", sum.granted)
	r.Count("answers unknown", sum.unknown)
	r.Count("clients that left", sum.leavers)
	r.Count("of them whose lease lived on", sum.kept)
	if played > 0 {
		r.Count("of the time P4, P5 and P6 were judged in", fmt.Sprintf("%d %%", 100*judged/played))
	}
	r.Count("faults", r.Harms.Times())
	if sum.violations == 0 {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// bugs are planted one at a time; part looks for a few of them.
func bugs(ctx context.Context, scale check.Scale, r *check.Result) error {
	all := planted.Bugs()
	all = all[:check.Pick(scale, 4, len(all))]
	slots := make(chan struct{}, 2)
	var work sync.WaitGroup
	var mu sync.Mutex
	caught := 0
	for i := range all {
		work.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			dir, err := os.MkdirTemp("", "fencepost-planted")
			if err != nil {
				r.Violation("%v", err)
				return
			}
			defer os.RemoveAll(dir)
			by, err := all[i].Caught(ctx, dir)
			if err == nil {
				r.Note("%s: caught by %s", all[i].Name, by)
				err = all[i].Clean(ctx, dir)
			}
			if err != nil {
				r.Violation("%v", err)
				return
			}
			mu.Lock()
			caught++
			mu.Unlock()
		})
	}
	work.Wait()
	r.Count("bugs planted", len(all))
	r.Count("caught", caught)
	return ctx.Err()
}
