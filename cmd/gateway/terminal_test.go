package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// terminal is a shell into which a test types. What it says is collected from one
// command to the next.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.Writer
	chunks chan string // what was read, closed at the end
	said   string      // since the last command was typed

	patience time.Duration // bounds every wait
}

// commandEnd is written by the shell after each command, with the exit status.
var commandEnd = regexp.MustCompile("\x1e(\\d+)\n")

// startPatience bounds a command that stays in the foreground: make run may have to
// compile everything first.
const startPatience = 5 * time.Minute

// openTerminal starts a shell that reads commands from the test.
func openTerminal(t *testing.T, shell, dir string, env []string) *terminal {
	t.Helper()
	reading, writing, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(shell)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, writing, writing
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for all of it, and not for the test
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writing.Close()
	term := &terminal{t: t, cmd: cmd, stdin: stdin, chunks: make(chan string, 16), patience: patience}
	go term.read(reading)
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		for range term.chunks {
		}
		reading.Close()
		cmd.Wait()
	})
	fmt.Fprintln(stdin, "trap : INT") // the shell stays when a command is interrupted
	return term
}

func (term *terminal) read(from io.Reader) {
	defer close(term.chunks)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			term.chunks <- string(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// enter types a command.
func (term *terminal) enter(command string) {
	term.said = ""
	// $? is still that of the command when the next one is typed.
	if _, err := fmt.Fprintf(term.stdin, "%s\nended=$?; printf '\\036%%s\\n' $ended; (exit $ended)\n", command); err != nil {
		term.t.Fatal(err)
	}
}

// interrupt is Ctrl-C.
func (term *terminal) interrupt() { syscall.Kill(-term.cmd.Process.Pid, syscall.SIGINT) }

// until waits until something is said that matches, and returns it. If the command
// ends before, it returns all that was said.
func (term *terminal) until(wanted *regexp.Regexp) string {
	term.t.Helper()
	term.wait(func(said string) bool { return said != "" && wanted.MatchString(said) || commandEnd.MatchString(said) }, wanted.String())
	return plain(term.said)
}

// ended waits for the end of the command, and returns what it said and its exit status.
func (term *terminal) ended() (said, status string) {
	term.t.Helper()
	term.wait(commandEnd.MatchString, "the end of the command")
	end := commandEnd.FindStringSubmatchIndex(term.said)
	return plain(term.said[:end[0]]), term.said[end[2]:end[3]]
}

func (term *terminal) wait(holds func(said string) bool, what string) {
	term.t.Helper()
	deadline := time.After(term.patience)
	for !holds(plain(term.said)) {
		select {
		case chunk, open := <-term.chunks:
			if !open {
				term.t.Fatalf("the shell has ended; it said\n%s", term.said)
			}
			term.said += chunk
		case <-deadline:
			term.t.Fatalf("it never says %s, but\n%s", what, term.said)
		}
	}
}

// plain is text without the carriage returns of HTTP.
func plain(text string) string { return strings.ReplaceAll(text, "\r", "") }
