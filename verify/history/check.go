package history

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// patience is how long the search for an order may take for one name. A legal history
// of 10,000 operations takes well below a second.
const patience = 30 * time.Second

// Violation is a promise that was not kept.
type Violation struct {
	Promise string // P1 to P9, or "order": P1, P2, P3, P4 or P9, as the search can't tell
	Name    string // of the lock
	What    string // a sentence, and the operations that show it, a line each
	Picture string // the file with porcupine's picture of it, if there is one
}

func (v Violation) String() string {
	text := fmt.Sprintf("%s %s: %s", v.Promise, v.Name, v.What)
	if v.Picture != "" {
		text += "\npicture: " + v.Picture
	}
	return text
}

// Check returns what in a history breaks the rules. Pictures go to the directory dir,
// unless that is empty.
func Check(h *History, r Rules, dir string) []Violation {
	var found []Violation
	for _, name := range h.names() {
		found = append(found, order(h, name, &r, dir)...)
		found = append(found, reused(h, name, &r)...)
		found = append(found, delays(h, name, &r)...)
	}
	return append(found, liveness(h, &r)...)
}

// order searches for an order of the operations on a name that the rules allow.
func order(h *History, name string, r *Rules, dir string) []Violation {
	m, moves := model(r), project(h, name, r)
	switch porcupine.CheckOperationsTimeout(m, moves, patience) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return []Violation{{Promise: "order", Name: name, What: fmt.Sprintf("no order of %d moves was found in %s, and none was ruled out", len(moves), patience)}}
	}
	_, info := porcupine.CheckOperationsVerbose(m, moves, patience)
	first := culprit(moves, info)
	last := Time(first.Return)
	v := Violation{Promise: "order", Name: name, What: fmt.Sprintf(
		"no order is legal that has what returned at %s:\n%s", at(last), h.tell(name, max(0, last-2*time.Second), last))}
	if read := first.Input.(*move).read; read != nil {
		v.What += fmt.Sprintf("\nbut %s", read)
	}
	if dir != "" {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_")+".html")
		if err := porcupine.VisualizePath(m, info, path); err == nil {
			v.Picture = path
		}
	}
	return []Violation{v}
}

// reused finds lease ids that were granted after their holder had let go, releases that
// are told otherwise when they are repeated (P7), and leases that were granted with no
// time left (P9).
func reused(h *History, name string, r *Rules) (found []Violation) {
	ended, frail := map[string]Time{}, h.fragile(r)
	first := map[int]*Op{} // by call
	for i := range h.Ops {
		op := &h.Ops[i]
		was := first[op.Call]
		switch {
		case op.Verb != Release || !op.on(name):
		case op.Verdict == Ended && was == nil:
			first[op.Call] = op
		case op.Verdict == Lost && was != nil && !r.EndsCross && !h.forgotEnds(was.Sent, op.Done):
			found = append(found, Violation{Promise: "P7", Name: name, What: fmt.Sprintf("a release is not what it was when it is repeated:\n%s\n%s", was, op)})
		}
	}
	for _, c := range h.calls(name) {
		g, granted := c.grant(name)
		at, over := ended[c.Lease]
		switch {
		case c.Verb == Release && c.Verdict == Ended && !c.mayBeUndone(frail):
			ended[c.Lease] = c.Done
		case granted && c.Verb == Acquire && over && c.sent > at && !h.forgotEnds(at, c.Done):
			found = append(found, Violation{Promise: "P7", Name: name, What: "a lease id that was released was granted again:\n" + h.tell(name, at-2*time.Second, c.Done)})
		}
		if granted && g.Left <= 0 {
			found = append(found, Violation{Promise: "P9", Name: name, What: "a lease was answered that had no time left:\n" + c.String()})
		}
	}
	return found
}

// culprit returns the move that returned first of those that the longest legal order has
// no place for.
func culprit(moves []porcupine.Operation, info porcupine.LinearizationInfo) porcupine.Operation {
	var longest []porcupine.Operation
	for _, orders := range info.PartialLinearizationsOperations() {
		for _, order := range orders {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	has := map[any]bool{}
	for _, o := range longest {
		has[o.Input] = true
	}
	first := porcupine.Operation{Input: &move{}, Return: int64(forever)}
	for _, o := range moves {
		if !has[o.Input] && o.Return < first.Return {
			first = o
		}
	}
	return first
}

// tell tells the last operations on a name that touch a time, and what was done to the
// system then.
func (h *History) tell(name string, from, until Time) string {
	const most = 40
	var lines []string
	for i := range h.Ops {
		if op := &h.Ops[i]; op.on(name) && op.Done >= from && op.Sent <= until {
			lines = append(lines, op.String())
		}
	}
	if len(lines) > most {
		lines = append([]string{fmt.Sprintf("(%d before)", len(lines)-most)}, lines[len(lines)-most:]...)
	}
	for _, t := range h.Troubles {
		if t.From <= until && t.Calm >= from {
			lines = append(lines, fmt.Sprintf("%s-%s %s", at(t.From), at(t.Until), t.What))
		}
	}
	return strings.Join(lines, "\n")
}
