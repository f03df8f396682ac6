package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fencepost/client"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

// lockOfPrograms is what the programs acquire.
const lockOfPrograms = "reports/nightly"

// ending is a program that writes, and that something has happened to.
type ending struct {
	language
	cmd    *exec.Cmd
	said   *bytes.Buffer
	st     *storage
	status int
}

// written is how many parts are taken before something happens.
const written = 1

// writing starts the program and waits until so many parts are written.
func (l language) writing(ctx context.Context, gateway, dir string, st *storage) (*ending, error) {
	cmd, said, err := l.start(ctx, gateway, dir, st)
	if err != nil {
		return nil, err
	}
	e := &ending{l, cmd, said, st, 0}
	if !st.await(written) {
		return nil, errors.Join(fmt.Errorf("it writes nothing: %s", said), cmd.Cancel(), cmd.Wait())
	}
	return e, nil
}

// wait waits for the end of the program, which must have the status.
func (e *ending) wait(after string, want int, r *check.Result) {
	_ = e.cmd.Wait()
	if e.status = e.cmd.ProcessState.ExitCode(); e.status != want {
		r.Violation("%s, %s: exit status %d, want %d, after %d parts: %s", e.name, after, e.status, want, e.st.count(), e.said)
	}
}

// endedBy notes whether a signal that was sent to the program is why it has ended, by its exit status.
func (e *ending) endedBy(signal syscall.Signal, r *check.Result) {
	did := check.Harm{To: e.name, What: "programs that it ended"}
	if e.status == 128+int(signal) {
		did.N = 1
	}
	r.Harms.Add("signal: "+signal.String(), did)
}

// storageFails has the storage fail after a part: with 500, or without an answer. The
// program must not go on as if they had been written, and leaves the lock free.
func (l language) storageFails(ctx context.Context, s *system.System, dir string, r *check.Result) error {
	for _, how := range []failure{answers500, breaksOff} {
		ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
		defer cancel()
		st := newStorage(0)
		defer st.server.Close()
		st.fail(written, how)
		e, err := l.writing(ctx, s.Gateways[0].URL(), dir, st)
		if err != nil {
			return err
		}
		after := "the storage failed (" + string(how) + ")"
		e.wait(after, 1, r)
		r.Harms.Add("storage "+string(how), check.Harm{To: l.name, What: "writes failed", N: st.failures()})
		if st.count() != written || st.failures() != 1 {
			r.Violation("%s, %s: %d parts were taken, and %d tried after them", l.name, after, st.count(), st.failures())
		}
		if err := l.isFree(ctx, s, after, r); err != nil {
			return err
		}
	}
	return nil
}

// raises has the work fail by itself, in the middle of nothing that is asked of anybody: an URL of the storage
// that is none. The lock is free then, too.
func (l language) raises(ctx context.Context, s *system.System, dir string, r *check.Result) error {
	ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
	defer cancel()
	st := newStorage(0)
	defer st.server.Close()
	const after = "its work failed"
	cmd, said, err := l.start(ctx, s.Gateways[0].URL(), dir, st, "STORAGE=http://[")
	if err != nil {
		return err
	}
	(&ending{l, cmd, said, st, 0}).wait(after, 1, r)
	return l.isFree(ctx, s, after, r)
}

// signalled sends the program SIGTERM, twice, while it writes and while it waits for the lock: it
// leaves neither the lock nor a place in the queue behind.
func (l language) signalled(ctx context.Context, s *system.System, dir string, r *check.Result) error {
	ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
	defer cancel()
	const status = 128 + int(syscall.SIGTERM)
	st := newStorage(0)
	defer st.server.Close()
	e, err := l.writing(ctx, s.Gateways[0].URL(), dir, st)
	if err != nil {
		return err
	}
	err = errors.Join(e.cmd.Process.Signal(syscall.SIGTERM), e.cmd.Process.Signal(syscall.SIGTERM))
	e.wait("SIGTERM", status, r)
	if e.endedBy(syscall.SIGTERM, r); err != nil {
		return err
	}
	if err := l.isFree(ctx, s, "SIGTERM", r); err != nil {
		return err
	}

	c, err := client.New(client.Options{Addresses: []string{s.Gateways[0].URL()}})
	if err != nil {
		return err
	}
	defer c.Close()
	other, err := c.Acquire(ctx, lockOfPrograms)
	if err != nil {
		return err
	}
	defer other.Release(ctx)
	if e.cmd, e.said, err = l.start(ctx, s.Gateways[0].URL(), dir, st); err != nil {
		return err
	}
	err = awaitQueue(ctx, c, 1)
	if err = errors.Join(err, e.cmd.Process.Signal(syscall.SIGTERM)); err != nil {
		return errors.Join(err, e.cmd.Cancel(), e.cmd.Wait())
	}
	e.wait("SIGTERM in the queue", status, r)
	e.endedBy(syscall.SIGTERM, r)
	if err := awaitQueue(ctx, c, 0); err != nil {
		r.Violation("%s: its place in the queue is left after SIGTERM: %v", l.name, err)
	}
	return nil
}

// awaitQueue waits until so many wait for the lock of the programs.
func awaitQueue(ctx context.Context, c *client.Client, n int) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		seen, err := c.Inspect(ctx, lockOfPrograms)
		if err != nil || seen.Waiting == n {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d wait, not %d: %w", seen.Waiting, n, ctx.Err())
		}
	}
}

// stoppedPast stops the program, and all it has started, while the storage takes a part, until
// its lease is over and another has the lock. When it goes on it must write no further part.
func (l language) stoppedPast(ctx context.Context, s *system.System, dir string, r *check.Result) error {
	ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
	defer cancel()
	st := newStorage(0)
	defer st.server.Close()
	answer := st.hold(written)
	defer answer()
	e, err := l.writing(ctx, s.Gateways[0].URL(), dir, st)
	if err != nil {
		return err
	}
	stopped := treeOf(e.cmd.Process.Pid)
	for _, pid := range stopped {
		if stop := syscall.Kill(pid, syscall.SIGSTOP); stop != syscall.ESRCH { // a sleep of the shell's may have ended
			err = errors.Join(err, stop)
		}
	}
	c, clientErr := client.New(client.Options{Addresses: []string{s.Gateways[0].URL()}})
	if err = errors.Join(err, clientErr); err != nil {
		return errors.Join(err, e.cmd.Cancel(), e.cmd.Wait())
	}
	defer c.Close()
	other, err := c.Acquire(ctx, lockOfPrograms)
	if err != nil {
		return errors.Join(err, e.cmd.Cancel(), e.cmd.Wait())
	}
	r.Harms.Add("stopped past its lease", check.Harm{To: l.name, What: "processes standing still", N: system.Standing(stopped...)})
	answer() // it was on its way meanwhile
	for i := range stopped {
		_ = syscall.Kill(stopped[len(stopped)-1-i], syscall.SIGCONT) // the work goes on before those who watch over it
	}
	e.wait("SIGSTOP past its lease", exitLost, r)
	if n := st.count(); n != written {
		r.Violation("%s: %d parts came after its lease was over and it went on", l.name, n-written)
	}
	if err := other.Release(ctx); err != nil {
		r.Violation("%s, stopped past its lease, took the lock from the next: %v", l.name, err)
	}
	return nil
}

// treeOf returns a process and all that descends from it, parents first.
func treeOf(pid int) (all []int) {
	all = []int{pid}
	for i := 0; i < len(all); i++ {
		lists, _ := filepath.Glob("/proc/" + strconv.Itoa(all[i]) + "/task/*/children")
		for _, list := range lists {
			text, _ := os.ReadFile(list) // of a process that has ended meanwhile there is nothing
			for field := range strings.FieldsSeq(string(text)) {
				if child, err := strconv.Atoi(field); err == nil {
					all = append(all, child)
				}
			}
		}
	}
	return all
}
