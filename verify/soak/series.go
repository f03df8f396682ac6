package soak

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

const (
	// sampled is how often a gateway is asked what it uses.
	sampled = time.Second

	// warmUp is the part of the samples at the begin that does not count: pools fill, and
	// until the first tombstones are forgotten there are ever more. It has to be
	// the first 5 min of a soak of 20 min: fencing.TombstoneTTL.
	warmUp = 0.25

	// What the line through the samples may rise from the first to the last of them: a
	// share of their mean, or so much where that is more. Under faults, waiters and
	// connections come and go.
	growth           = 0.15
	growthHeap       = 2 << 20 // bytes
	growthGoroutines = 40
)

// series is what a gateway used over time.
type series struct{ heap, goroutines []float64 }

var (
	heapInUse  = regexp.MustCompile(`(?m)^# HeapAlloc = ([0-9]+)$`)
	goroutines = regexp.MustCompile(`(?m)^go_goroutines ([0-9.e+]+)$`)
)

// collect samples until ctx ends. What is in use is taken from a profile of the heap that
// is written as text, which runs a collection and looks right after it. What is looked at
// later has the garbage of the profile in it, and that grows with the places that allocate.
func (s *series) collect(ctx context.Context, client *system.Client, g *system.Gateway) {
	for tick := time.NewTicker(sampled); ctx.Err() == nil; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		asking, cancel := context.WithTimeout(ctx, patience)
		profile, _ := client.Do(asking, "GET", g.AdminURL()+"/debug/pprof/heap?gc=1&debug=1", "", "") // no JSON: always an error
		metrics, _ := client.Do(asking, "GET", g.AdminURL()+"/metrics", "", "")
		cancel()
		heap, n := heapInUse.FindSubmatch(profile.Body), goroutines.FindSubmatch(metrics.Body)
		if heap != nil && n != nil { // a gateway that is stopped does not answer
			s.heap = append(s.heap, number(heap[1]))
			s.goroutines = append(s.goroutines, number(n[1]))
		}
	}
}

// number returns what digits say.
func number(digits []byte) float64 {
	n, _ := strconv.ParseFloat(string(digits), 64)
	return n
}

// judge checks that nothing grew.
func (s *series) judge(r *check.Result) {
	if len(s.heap) < 10 {
		r.Violation("a gateway told what it uses only %d times", len(s.heap))
		return
	}
	level(r, "heap in use", s.heap, growthHeap, func(v float64) string { return fmt.Sprintf("%.2f MiB", v/(1<<20)) })
	level(r, "goroutines", s.goroutines, growthGoroutines, func(v float64) string { return fmt.Sprintf("%.0f", v) })
}

func level(r *check.Result, what string, samples []float64, least float64, format func(float64) string) {
	samples = samples[int(float64(len(samples))*warmUp):]
	mean, rise := line(samples)
	r.Count(what, format(mean))
	r.Count("rise of "+what, format(rise))
	if allowed := max(least, growth*mean); rise > allowed {
		r.Violation("%s rose by %s in %d samples, around %s; %s is allowed", what, format(rise), len(samples), format(mean), format(allowed))
	}
}

// line fits a line by least squares and returns the mean, and the rise of the line from
// the first sample to the last.
func line(samples []float64) (mean, rise float64) {
	n := float64(len(samples))
	for _, y := range samples {
		mean += y / n
	}
	middle, above, below := (n-1)/2, 0.0, 0.0
	for i, y := range samples {
		x := float64(i) - middle
		above += x * (y - mean)
		below += x * x
	}
	if below == 0 {
		return mean, 0
	}
	return mean, above / below * (n - 1)
}
