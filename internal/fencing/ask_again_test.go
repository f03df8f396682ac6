package fencing

import "testing"

// Who is refused while more has come due than one step does is asked for again, unless others
// wait: its own place, which it has given up, is none of these.
func TestAskAgain(t *testing.T) {
	for _, c := range []struct {
		waiting, position int
		code              Code
		again             bool
	}{
		{0, 0, CodeLocked, true},
		{1, 0, CodeLocked, false},
		{1, 1, CodeLocked, true},
		{2, 1, CodeLocked, false},
		{2, 2, CodeLocked, false},
		{2, 0, CodeTooManyRequests, true},
	} {
		out := Outcome{More: true, Err: &Error{Code: c.code, Position: c.position, Lock: &Lock{Waiting: c.waiting}}}
		if got := out.AskAgain(); got != c.again {
			t.Errorf("%d wait, from the position %d, %s: asked again %t, want %t", c.waiting, c.position, c.code, got, c.again)
		}
	}
}
