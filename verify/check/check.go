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

	// FullOnly leaves it out of Part: make test-system has a short run of the same, or it takes too long
	// for each change.
	FullOnly bool

	// Beside names a group: checks with the same one, which stand together in the table,
	// run side by side. They mostly wait, and judge no time that is close. Empty: alone.
	Beside string
}

// Result is what a check counts and finds. Many goroutines may use one.
type Result struct {
	Seed  uint64 // of all that is random
	Harms Harms  // what its faults did to whom

	mu         sync.Mutex
	labels     []string
	counts     map[string]string
	reached    []Reached
	notes      []string
	violations []string
	violated   int
}

// Reached is how much was asked of a check, and how much of that was done.
type Reached struct {
	What        string // in the plural
	Done, Asked int
}

// Short reports whether less was done than asked.
func (r Reached) Short() bool { return r.Done < r.Asked }

func (r Reached) String() string {
	text := fmt.Sprintf("%d of %d %s", r.Done, r.Asked, r.What)
	if r.Short() {
		text += " (short)"
	}
	return text
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

// Reach adds to what is done of what the check is asked for. Fewer are no violation, but
// the report says so.
func (r *Result) Reach(what string, done, asked int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.reached {
		if r.reached[i].What == what {
			r.reached[i].Done += done
			r.reached[i].Asked += asked
			return
		}
	}
	r.reached = append(r.reached, Reached{what, done, asked})
}

// Reached returns what was asked and done, in the order of the first calls.
func (r *Result) Reached() []Reached {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Reached(nil), r.reached...)
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

// Violations returns how many there were, and the first of them. A kind of fault that did nothing is one.
func (r *Result) Violations() (int, []string) {
	idle := r.Harms.Idle()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.violated + len(idle), append(idle, r.violations...)
}

// Notes returns the remarks.
func (r *Result) Notes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.notes...)
}

// String returns all figures in a line.
func (r *Result) String() string {
	var parts []string
	for _, reached := range r.Reached() {
		parts = append(parts, reached.String())
	}
	if counts := r.Counts(); counts != "" {
		parts = append(parts, counts)
	}
	return strings.Join(parts, ", ")
}

// Counts returns the figures of Count in a line.
func (r *Result) Counts() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var parts []string
	for _, label := range r.labels {
		parts = append(parts, label+" "+r.counts[label])
	}
	return strings.Join(parts, ", ")
}
