package clients

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// hungUp takes the terminal from the program of the shell, whose work is in a process group of
// its own, which the system does not end: the program has to, and releases the lock.
func (l language) hungUp(ctx context.Context, s *system.System, dir string, r *check.Result) error {
	if l.name != "bash" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
	defer cancel()
	st := newStorage(languageTTL / parts)
	defer st.server.Close()
	// Whoever started this may ignore SIGHUP (nohup does), and so would the program: a shell can't
	// trap what was ignored when it began. What is caught here is not ignored there.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	cmd, said, err := l.start(ctx, s.Gateways[0].URL(), dir, st)
	if err != nil {
		return err
	}
	if !st.await(1) {
		return errors.Join(fmt.Errorf("it writes nothing: %s", said), cmd.Cancel(), cmd.Wait())
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	_ = cmd.Wait() // for the work too, which has its output
	(&ending{language: l, status: cmd.ProcessState.ExitCode()}).endedBy(syscall.SIGHUP, r)
	if status := cmd.ProcessState.ExitCode(); status != 128+int(syscall.SIGHUP) || st.count() >= parts {
		r.Violation("%s, hung up: exit status %d after %d parts: %s", l.name, status, st.count(), said)
	}
	return l.isFree(ctx, s, "its program was hung up", r)
}
