package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"fencepost/internal/sql"
)

// commandPatience is how long a command that is asked to end has for that.
const commandPatience = 10 * time.Second

// The statuses of commands that can't be run, as a shell has them.
const (
	statusNotRunnable = 126
	statusNotFound    = 127
	statusOfSignal    = 128 // and the signal's number
)

// commandStatus is the status that a command has ended with, which is this program's. err may be nil: the command has said what there is.
type commandStatus struct {
	status int
	err    error
}

func (s commandStatus) Error() string { return fmt.Sprint(s.err) }
func (s commandStatus) Unwrap() error { return s.err }

// passedOn are the signals that the command gets.
var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// holdWhile runs a command while no gateway uses the database of the settings.
func holdWhile(ctx context.Context, cfg config, args []string) error {
	path, err := exec.LookPath(args[0])
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EISDIR):
		return commandStatus{statusNotRunnable, fmt.Errorf("store hold: %w", err)}
	case err != nil && !errors.Is(err, exec.ErrDot):
		return commandStatus{statusNotFound, fmt.Errorf("store hold: %w", err)}
	}
	host, _ := os.Hostname()
	hold, err := sql.NewHold(ctx, cfg.Store, fmt.Sprintf("fencepost store hold: %s at %s", filepath.Base(path), host))
	if err != nil {
		return fmt.Errorf("store hold: %w", err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...) // also where ctx ends by one
	defer signal.Stop(signals)
	if err = ctx.Err(); err == nil {
		err = runCommand(path, args, hold.Lost(), signals)
	}
	if lost := hold.Release(); lost != nil {
		return fmt.Errorf("store hold: gateways were not held off to the end of the command (%s), so repeat it: %w", howEnded(err), lost)
	}
	return err
}

func howEnded(err error) string {
	switch s := (commandStatus{}); {
	case err == nil:
		return "exit status 0"
	case errors.As(err, &s):
		return fmt.Sprint("exit status ", s.status)
	}
	return err.Error()
}

// runCommand runs a command with this process's files, and passes signals on to it. It is asked to end when lost gets something, and
// on Linux with this process.
func runCommand(path string, args []string, lost <-chan error, signals <-chan os.Signal) error {
	cmd := exec.Command(path, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = endsWithParent()
	runtime.LockOSThread() // with whose thread the command ends
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return commandStatus{statusNotRunnable, fmt.Errorf("store hold: %w", err)}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var late <-chan time.Time
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case <-lost:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			late = time.After(commandPatience)
		case <-late:
			_ = cmd.Process.Kill()
		case err := <-ended:
			return commandEnded(err)
		}
	}
}

// commandEnded returns how a command has ended, nil if well.
func commandEnded(err error) error {
	var exited *exec.ExitError
	if !errors.As(err, &exited) {
		return err
	}
	if status, is := exited.Sys().(syscall.WaitStatus); is && status.Signaled() {
		return commandStatus{status: statusOfSignal + int(status.Signal())}
	}
	return commandStatus{status: exited.ExitCode()}
}
