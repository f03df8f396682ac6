// Package check is what checks have in common: what they count, and what they find.
package check

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// keptViolations are told in full; the rest is counted.
const keptViolations = 20

// Scale is how much is done.
type Scale string

// Part is for every change, some minutes for all checks together; Full is what
// VERIFICATION.md reports.
const (
	Part Scale = "part"
	Full Scale = "full"
)

// Pick returns what belongs to the scale.
func Pick[T any](s Scale, part, full T) T {
	if s == Full {
		return full
	}
	return part
}

// Check is one row of the report.
type Check struct {
	Name  string // of -only
	Title string // what holds if there is no violation, for people
	Run   func(ctx context.Context, scale Scale, r *Result) error

	// FullOnly leaves it out of Part: make test has a short run of the same.
	FullOnly bool
}

// Result is what a check counts and finds. Many goroutines may use one.
type Result struct {
	Seed uint64 // of all that is random

	mu         sync.Mutex
	labels     []string
	counts     map[string]string
	notes      []string
	violations []string
	violated   int
}

// NewResult returns an empty result.
func NewResult(seed uint64) *Result { return &Result{Seed: seed, counts: map[string]string{}} }

// Random returns a source of its own for a part of the check: the same for the same
// seed and part.
func (r *Result) Random(part int) *rand.Rand { return rand.New(rand.NewPCG(r.Seed, uint64(part))) }

// Count notes a figure, in the order of the first calls; the last value counts.
func (r *Result) Count(label string, value any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.counts[label]; !known {
		r.labels = append(r.labels, label)
	}
	if d, ok := value.(time.Duration); ok {
		value = d.Round(time.Millisecond)
	}
	r.counts[label] = fmt.Sprint(value)
}

// Violation notes something that must not be.
func (r *Result) Violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.violated++; len(r.violations) < keptViolations {
		r.violations = append(r.violations, fmt.Sprintf(format, args...))
	}
}

// Note adds a remark to the report, such as a command.
func (r *Result) Note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// Violations returns how many there were, and the first of them.
func (r *Result) Violations() (int, []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.violated, append([]string(nil), r.violations...)
}

// Notes returns the remarks.
func (r *Result) Notes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.notes...)
}

// String returns the figures in a line.
func (r *Result) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var parts []string
	for _, label := range r.labels {
		parts = append(parts, label+" "+r.counts[label])
	}
	return strings.Join(parts, ", ")
}
