//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"fencepost/client"
	"fencepost/internal/lines"
)

const runHelp = `
The command has in its environment FENCING_TOKEN, LOCK_NAME and LEASE (the public part of
the lease id), LOCK_SLOT with -permit, LOCK_SLOTS with -permits, and LOCK_NAME_2 and FENCING_TOKEN_2 and so on with
-also. The lease is renewed as long as anything of the command runs.

If an administrator breaks the lease with notice, lockctl sends the command the signal of
-notice-signal and prints a line on stderr.

When the lease is lost, the command and all its descendants get SIGKILL at once. When it
can't be renewed, they get SIGTERM -grace before its deadline, and SIGKILL before the
deadline.
`

// killEarly is how long before the deadline what still runs is killed: the signal, the end
// of the processes and the scheduler need a moment. Half of the grace, if that is less.
const killEarly = time.Second

// runUnder runs a command under a lock, and ends it before the lease can be gone.
func runUnder(ctx context.Context, c *call) error {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // else it would end this process, and not the command, when stderr's reader is gone
	path, err := findCommand(c.args[1])
	if err != nil {
		return err
	}
	if c.ttl <= 0 { // the gateway's default would leave the grace unknown
		return usage("-ttl is %s; it must be above 0", c.ttl)
	}
	if c.grace == 0 {
		c.grace = min(c.ttl/4, 10*time.Second)
	}
	if c.grace < 0 || c.grace > c.ttl/2 {
		return usage("-grace is %s; it must be from 0 to half of -ttl, %s", c.grace, c.ttl/2)
	}
	if c.atLeastOnFailure && c.atLeast == 0 {
		return usage("-at-least-on-failure needs -at-least, which says how long")
	}
	warning, err := signalNamed(c.noticeSignal)
	if err != nil {
		return err
	}
	var orphaned <-chan struct{}
	if c.withParent {
		var end func()
		if ctx, orphaned, end, err = followParent(ctx); err != nil {
			return err
		}
		defer end()
	}
	notices := make(chan client.Notice, 1)  // the latest
	var failing atomic.Pointer[func(error)] // once the command is started
	renewalsFail := client.OnRenewalsFail(func(err error) {
		if say := failing.Load(); say != nil {
			(*say)(err)
		}
	})
	l, err := c.obtain(ctx, client.StopEarly(c.grace), client.AtLeast(c.atLeast), renewalsFail, client.OnNotice(func(n client.Notice) {
		select {
		case <-notices:
		default:
		}
		select {
		case notices <- n:
		default: // another one came just now
		}
	}))
	if err != nil {
		return c.refused(err)
	}
	release := l.ReleaseNow // unless the command does its work
	defer func() {
		if release != nil {
			_ = release(context.Background())
		}
	}()
	env := withoutVariables(os.Environ())
	if !c.passKey {
		env = slices.DeleteFunc(env, keyVariables.MatchString)
	}
	env = append(env, c.variables(l)...)
	if c.passLeaseID {
		env = append(env, "LEASE_ID="+l.ID())
	}
	signals := make(chan os.Signal, 16) // before the start: none must end this process beside the command
	notify(signals)
	if ctx.Err() != nil { // it came just before
		return context.Cause(ctx)
	}
	said := c.speak(l.Name())
	sayFailing := func(err error) {
		said.say(fmt.Sprintf("the lease, of which %s are left, could not be renewed yet: %s", short(l.Remaining()), err))
	}
	failing.Store(&sayFailing) // before the start, which may take long
	p, err := startUnder(l, path, c.args[1:], env)
	if err != nil {
		return err
	}
	p.orphaned = orphaned
	status := p.supervise(l, c.grace, signals, notices, said.say, warning)
	p.restore()
	kept := c.atLeast > 0 && l.Err() == nil && (status == 0 || c.atLeastOnFailure)
	if kept {
		release = l.Release
	}
	err, release = release(context.Background()), nil // it is not tried again
	c.unsaid = err != nil
	switch {
	case err == nil, errors.Is(err, client.CodeLeaseLost), errors.Is(err, client.CodeReplaced):
	case errors.Is(err, client.CodeInvalidRequest):
		said.say(fmt.Sprintf("the lock is held until the lease expires instead of for %s: %s", c.atLeast, err))
	case kept:
		said.say(fmt.Sprintf("no gateway could be told how long to hold the lock, so it is held until the lease expires: %s", err))
	default:
		said.say(fmt.Sprintf("the lease could not be released, so the lock is held until it expires: %s", err))
	}
	said.end()
	if lost := l.Context(); !errors.Is(context.Cause(lost), client.ErrReleased) {
		return exit{status: exitLost, err: fmt.Errorf("%s: the command was ended: %w", l.Name(), context.Cause(lost))}
	}
	if errors.Is(err, client.CodeLeaseLost) {
		return exit{status: exitLost, err: fmt.Errorf("%s: the lease was lost while the command ran: %w", l.Name(), err)}
	}
	if status.Signaled() {
		return p.endedBy(status.Signal())
	}
	return exit{status: status.ExitStatus()}
}

// startUnder starts a command unless its lease is gone: who asks for it, or the machine, may have stood still since the grant.
func startUnder(l *client.Lease, path string, args, env []string) (*process, error) {
	if err := l.Err(); err != nil {
		return nil, exit{status: exitLost, err: fmt.Errorf("%s: the command was not started: %w", l.Name(), err)}
	}
	return startProcess(path, args, env)
}

// errOrphaned is why a command is ended with -with-parent.
var errOrphaned = errors.New("the process that started lockctl has ended")

// lookForParent is how often it is looked whether that has ended.
const lookForParent = 100 * time.Millisecond

// followParent returns a context that ends when the process that started this one has ended, and
// a channel that is closed then. That process's id may be another's later, but never our parent's:
// who has lost its parent has another one at once. So nothing but our parent's id is looked at.
func followParent(ctx context.Context) (context.Context, <-chan struct{}, func(), error) {
	parent := os.Getppid()
	if parent <= 1 { // that of orphans, where no other process takes them
		return nil, nil, nil, usage("-with-parent: the process that started lockctl has ended, or is process 1, which nothing outlives")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	orphaned := make(chan struct{})
	watched, end := context.WithCancel(context.Background())
	go func() {
		tick := time.NewTicker(lookForParent)
		defer tick.Stop()
		for os.Getppid() == parent {
			select {
			case <-tick.C:
			case <-watched.Done():
				return
			}
		}
		close(orphaned)
		cancel(exit{status: 128 + int(syscall.SIGTERM), err: errOrphaned})
	}()
	return ctx, orphaned, func() { end(); cancel(nil) }, nil
}

// textOf says that a lease is to be broken.
func textOf(n client.Notice) string {
	text := "an administrator will break the lease in " + short(n.Left)
	if n.Reason != "" {
		text += fmt.Sprintf(": %q", n.Reason)
	}
	return text
}

// noticeSignals are those that a command may be sent when it is to finish.
var noticeSignals = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
}

// signalNamed returns the signal of a name, with or without SIG; 0 of none.
func signalNamed(name string) (syscall.Signal, error) {
	if name == "" {
		return 0, nil
	}
	s, ok := noticeSignals[strings.TrimPrefix(strings.ToUpper(name), "SIG")]
	if !ok {
		return 0, usage("-notice-signal is %q; it must be one of %s", name, strings.Join(slices.Sorted(maps.Keys(noticeSignals)), ", "))
	}
	return s, nil
}

// forwarded are the signals that are passed on. SIGTSTP is caught and dropped: the lease
// would run out while this process is stopped.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP,
}

// notify catches the signals to forward, but for those that this process was told to
// ignore, as by nohup.
func notify(signals chan os.Signal) {
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
}

// speech says lines of a lock on stderr without its caller waiting: who supervises a command must not
// be held up by a pipe that nobody reads.
type speech struct {
	name string
	out  *lines.Queue
}

// speak begins to speak of a lock.
func (c *call) speak(name string) speech {
	return speech{name, lines.New(c.err, mostSaid, mostBytesSaid)}
}

// say says one line.
func (s speech) say(text string) {
	fmt.Fprintf(s.out, "lockctl: %s: %s\n", s.name, strings.ReplaceAll(text, "\n", "; "))
}

// end returns when all has been said, or nobody reads it.
func (s speech) end() { s.out.Close(endOfSpeech) }

// supervise returns how the command has ended, when nothing of it is left. What people have
// to know meanwhile it says. Of notices the command is told by the signal warning; 0: by none.
func (p *process) supervise(l *client.Lease, grace time.Duration, signals <-chan os.Signal, notices <-chan client.Notice, say func(string), warning syscall.Signal) (status wait) {
	e := &ending{p: p, say: say}
	var leaving <-chan time.Time // when what the command left behind is killed
	orphaned := p.orphaned
	var paused wait
	var again <-chan time.Time // when a command that is stopped is looked at again
	for {
		select {
		case <-p.gone:
			select {
			case status = <-p.ended:
			default:
			}
			return status
		case status = <-p.ended:
			again = nil
			e.terminate() // what it left behind would run on without the lock
			leaving = cmp.Or(leaving, time.After(grace))
		case <-orphaned:
			orphaned = nil
			e.say("ending the command: " + errOrphaned.Error())
			e.terminate()
			leaving = cmp.Or(leaving, time.After(grace))
		case <-leaving:
			leaving = time.After(e.kill())
		case paused = <-p.paused:
			again = p.resume(paused)
		case <-again:
			again = p.resume(paused)
		case s := <-signals:
			p.forward(s.(syscall.Signal))
		case n := <-notices:
			say(textOf(n))
			if warning != 0 {
				p.forward(warning)
			}
		case <-l.Context().Done():
			return e.stop(l, grace, status)
		}
	}
}

// stop ends what runs without a lease. One that is lost may be somebody else's already;
// else there is some time until the deadline.
func (e *ending) stop(l *client.Lease, grace time.Duration, status wait) wait {
	cause := context.Cause(l.Context())
	e.say(fmt.Sprintf("ending the command: %s", cause))
	if !errors.Is(cause, client.CodeLeaseLost) && !errors.Is(cause, client.CodeReplaced) || errors.Is(cause, client.ErrMaxHold) || errors.Is(cause, client.ErrNoticeOver) {
		e.terminate()
		early := min(grace/2, killEarly)
		for left := l.Remaining(); left > early; left = l.Remaining() {
			select {
			case <-e.p.gone:
				left = 0
			case s := <-e.p.ended:
				status = s
				continue
			case <-time.After(min(left-early, 50*time.Millisecond)): // the machine may be suspended meanwhile
				continue
			}
			break
		}
	}
	for gone := false; !gone; {
		select {
		case <-e.p.gone:
			gone = true
		case <-time.After(e.kill()):
		}
	}
	select {
	case status = <-e.p.ended:
	default:
	}
	return status
}
