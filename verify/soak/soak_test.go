package soak

import (
	"math"
	"testing"
	"time"

	"fencepost/internal/seed"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

// The short version; make soak has the long one.
func TestSoak(t *testing.T) {
	r := check.NewResult(seed.Of(t))
	if err := (Soak{Kind: system.Redis, Duration: 15 * time.Second}).Run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if n, violations := r.Violations(); n > 0 {
		t.Errorf("%d violations, seed %d: %q", n, r.Seed, violations)
	}
	t.Log(r)
}

// at returns a time so many milliseconds after a fixed one.
func at(ms int) time.Time { return time.UnixMilli(1_800_000_000_000 + int64(ms)) }

func TestLedger(t *testing.T) {
	first := belief{name: "a", token: 5, sent: at(0), from: at(1), until: at(100)}
	for _, tt := range []struct {
		title      string
		next       belief
		violations int
	}{
		{"after its end", belief{name: "a", token: 6, sent: at(50), from: at(100), until: at(200)}, 0},
		{"another name", belief{name: "b", token: 4, sent: at(50), from: at(60), until: at(200)}, 0},
		{"at the same time", belief{name: "a", token: 6, sent: at(50), from: at(60), until: at(200)}, 1},
		{"that had ended when it came", belief{name: "a", token: 6, sent: at(50), from: at(60), until: at(55)}, 0},
		{"with a token that does not grow", belief{name: "a", token: 5, sent: at(50), from: at(150), until: at(200)}, 1},
		{"asked for at the same time, granted before", belief{name: "a", token: 4, sent: at(0), from: at(150), until: at(200)}, 0},
	} {
		r := check.NewResult(1)
		var l ledger
		l.add(first)
		l.add(tt.next)
		l.judge(r)
		if n, violations := r.Violations(); n != tt.violations {
			t.Errorf("%s: %d violations %q", tt.title, n, violations)
		}
	}
}

func TestSeries(t *testing.T) {
	if mean, rise := line([]float64{1, 2, 3, 4, 5}); math.Abs(mean-3) > 1e-9 || math.Abs(rise-4) > 1e-9 {
		t.Errorf("mean %f, rise %f", mean, rise)
	}
	var flat, leak series
	for i := range 60 {
		flat.heap, flat.goroutines = append(flat.heap, 10<<20+float64(i%7)*100_000), append(flat.goroutines, 100+float64(i%10))
		leak.heap, leak.goroutines = append(leak.heap, 10<<20+float64(i)*100_000), append(leak.goroutines, 100+float64(i))
	}
	for title, tt := range map[string]struct {
		series
		violations int
	}{"flat": {flat, 0}, "leak": {leak, 2}, "none": {series{}, 1}} {
		r := check.NewResult(1)
		tt.judge(r)
		if n, violations := r.Violations(); n != tt.violations {
			t.Errorf("%s: %d violations %q", title, n, violations)
		}
	}
}
