package fencetest

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
)

// keptFindings of each kind of attack are told in full; the rest is counted.
const keptFindings = 5

// Report is what came of an attack.
type Report struct {
	Seed     uint64   // of what was random
	Tallies  []Tally  // one a kind of attack
	Findings []string // what got through, and what should have; the first of each kind
	Notes    []string // what no such storage can help, and its owner should know
	Blind    bool     // the storage can't be read: a write that is refused and made all the same was not seen

	resources int
}

// Tally counts one kind of attack.
type Tally struct {
	Attack   string
	Writes   int
	Admitted int
	Refused  int
	Failed   int // neither was answered
	Through  int // findings; 0 is as it should be
}

func (t *Tally) count(err error) {
	t.Writes++
	switch {
	case err == nil:
		t.Admitted++
	case errors.Is(err, ErrRefused):
		t.Refused++
	default:
		t.Failed++
	}
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Err returns an error with the findings, or nil if there are none.
func (r *Report) Err() error {
	n := 0
	for _, t := range r.Tallies {
		n += t.Through
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d findings:\n  %s", n, strings.Join(r.Findings, "\n  "))
}

// String returns a table, and what was found, for people.
func (r *Report) String() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "attack\twrites\tadmitted\trefused\tfailed\tfindings")
	for _, t := range r.Tallies {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\n", t.Attack, t.Writes, t.Admitted, t.Refused, t.Failed, t.Through)
	}
	w.Flush()
	for _, finding := range r.Findings {
		fmt.Fprintf(&text, "FINDING %s\n", finding)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "note: %s\n", note)
	}
	if r.Blind {
		fmt.Fprintln(&text, "note: the storage was not read, so only its answers were judged")
	}
	return text.String()
}
