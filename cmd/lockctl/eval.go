package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// What acquire prints is for a shell: eval "$(lockctl acquire NAME)". It reads
//
//	unset -v LEASE_ID …; false || :;
//	export LEASE_ID=…
//
// of a lease, and
//
//	unset -v LEASE_ID …; false || (exit 75)
//
// of a failure: eval then has that status, and nothing of an earlier lease is left. What comes
// before the || is printed before anything is asked, so that an end by SIGKILL is a failure too:
// eval "" has status 0.

// maxNames is how many names a lease has at most.
const maxNames = 64

// leaseVariables are all that an acquire may set.
func leaseVariables() []string {
	all := []string{"LEASE_ID", "LEASE", "LOCK_NAME", "FENCING_TOKEN", "LOCK_SLOT", "LOCK_SLOTS"}
	for i := 2; i <= maxNames; i++ {
		all = append(all, fmt.Sprintf("LOCK_NAME_%d", i), fmt.Sprintf("FENCING_TOKEN_%d", i))
	}
	return all
}

// forShell prints what a shell reads.
type forShell struct {
	out  io.Writer
	open bool // the first part is printed, and not what follows it
	done bool // nothing more is to be printed
}

// begin prints what makes eval fail unless something follows. Nobody evaluates what is shown
// on a terminal.
func (s *forShell) begin() error {
	if s.done || isShown(s.out) {
		s.done = true
		return nil
	}
	s.open = true
	_, err := fmt.Fprintf(s.out, "unset -v %s; false", strings.Join(leaseVariables(), " "))
	return err
}

// succeed prints the variables of a lease.
func (s *forShell) succeed(text string) error {
	if s.open {
		text = " || :;\n" + text
	}
	s.open, s.done = false, true
	_, err := io.WriteString(s.out, text)
	return err
}

// fail has eval end with a status.
func (s *forShell) fail(status int) {
	if !s.open && s.begin() != nil || s.done {
		return
	}
	s.open, s.done = false, true
	fmt.Fprintf(s.out, " || (exit %d)\n", status)
}

// asksJSON tells whether arguments ask for JSON, for those that can't be parsed.
func asksJSON(args []string) bool {
	for i, a := range args {
		name, value, follows := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !follows && i+1 < len(args) {
			value = args[i+1]
		}
		if strings.HasPrefix(a, "-") && name == "o" && value == "json" {
			return true
		}
	}
	return false
}

// isShown tells whether what is written is seen on a terminal.
func isShown(w io.Writer) bool {
	f := fileOf(w)
	return f != nil && isTerminal(f)
}

// wasClosed tells whether a file was closed when this process was started: then it is the null device by now, open for reading
// too. So it is for programs that start this one without an output; a shell's >/dev/null is for writing only.
func wasClosed(w io.Writer) bool {
	f := fileOf(w)
	if f == nil {
		return false
	}
	opened, err := f.Stat()
	null, nullErr := os.Stat(os.DevNull)
	if err != nil || nullErr != nil || !os.SameFile(opened, null) {
		return false
	}
	_, err = f.Read(make([]byte, 1))
	return err == io.EOF
}

// fileOf returns the file that w writes to; nil if it is none.
func fileOf(w io.Writer) *os.File {
	if c, ok := w.(*checked); ok {
		w = c.Writer
	}
	f, _ := w.(*os.File)
	return f
}
