// Package attack stops clients past the TTL of their lease in the middle of a write and
// lets them go on, against storage that compares fencing tokens. Gateways, storage and
// writers are processes of their own.
package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"fencepost/internal/redis/redistest"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

const (
	// documents are attacked at the same time; each has its writers.
	documents = 4
	writers   = 3

	// attempted is how many of so many pauses must lead to a stale write: otherwise the
	// clients were not paused where it matters.
	attempted = 5

	// role is the variable of the environment that makes this program one of the
	// processes of an attack.
	role = "VERIFY_ATTACK_ROLE"

	// patience bounds how long no writer may get to write.
	patience = 30 * time.Second
)

// Main is to be called first thing in main, and in TestMain: where the process was
// started as a part of an attack, it is that until it ends.
func Main() {
	var err error
	switch os.Getenv(role) {
	case "":
		return
	case "storage":
		err = serve(false)
	case "unfenced storage":
		err = serve(true)
	case "writer":
		err = write(os.Args[1], os.Args[2], os.Args[3])
	}
	fmt.Fprintln(os.Stderr, "attack:", err)
	os.Exit(1)
}

// Attack is how much is done.
type Attack struct {
	Pauses   int
	Unfenced bool // the storage does not compare tokens: the attack must succeed then
}

// part is a process of the attack.
type part struct {
	cmd   *exec.Cmd
	lines chan string // of its standard output; closed when it has ended
}

func startPart(kind string, args ...string) (*part, error) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{role + "=" + kind}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // should this process be killed
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &part{cmd: cmd, lines: make(chan string, 1)}
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case p.lines <- lines.Text():
			default: // nobody listens, or not yet
			}
		}
	}()
	return p, nil
}

// stop ends the process.
func (p *part) stop() {
	_ = p.cmd.Process.Kill()
	for range p.lines {
	}
	_ = p.cmd.Wait()
}

// Run pauses writers, each in the middle of a write and for longer than their TTL.
func (o Attack) Run(ctx context.Context, s *system.System, r *check.Result) error {
	kind := "storage"
	if o.Unfenced {
		kind = "unfenced storage"
	}
	storage, err := startPart(kind)
	if err != nil {
		return err
	}
	defer storage.stop()
	url, ok := <-storage.lines
	if !ok {
		return errors.New("the storage does not start")
	}
	var left atomic.Int64
	left.Store(int64(o.Pauses))
	faults := make([]error, documents)
	var attackers sync.WaitGroup
	for i := range documents {
		attackers.Go(func() {
			faults[i] = assail(ctx, s, url, fmt.Sprintf("document-%d", i), &left, r, r.Random(i))
		})
	}
	attackers.Wait()
	if err := errors.Join(faults...); err != nil {
		return err
	}
	return o.judge(ctx, url, r)
}

// assail starts the writers of a document and pauses them, one at a time, until no
// pauses are left.
func assail(ctx context.Context, s *system.System, storage, name string, left *atomic.Int64, r *check.Result, random *rand.Rand) error {
	var all []*part
	defer func() {
		for _, w := range all {
			w.stop()
		}
	}()
	for i := range writers {
		w, err := startPart("writer", s.Gateways[i%len(s.Gateways)].URL(), storage, name)
		if err != nil {
			return err
		}
		all = append(all, w)
	}
	for left.Add(-1) >= 0 {
		victim := all[random.IntN(len(all))]
		select { // what it said before is old
		case <-victim.lines:
		default:
		}
		select {
		case _, ok := <-victim.lines:
			if !ok {
				return errors.New("a writer has ended")
			}
		case <-time.After(patience):
			return fmt.Errorf("a writer of %s did not get to write within %s", name, patience)
		case <-ctx.Done():
			return ctx.Err()
		}
		time.Sleep(time.Duration(random.Int64N(int64(chunks-3) * int64(chunkGap))))
		if err := redistest.PauseProcess(victim.cmd.Process); err != nil {
			return err
		}
		time.Sleep(ttl + time.Duration(random.Int64N(int64(ttl))))
		r.Harms.Add("writer stopped", check.Harm{To: name, What: "processes standing still", N: system.Standing(victim.cmd.Process.Pid)})
		if err := victim.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
	}
	return nil
}

// judge asks the storage what it has seen.
func (o Attack) judge(ctx context.Context, url string, r *check.Result) error {
	client := system.NewClient(1)
	defer client.Close()
	a, err := client.Do(ctx, "GET", url+"/", "", "")
	if err != nil {
		return err
	}
	var all map[string]document
	if err := json.Unmarshal(a.Body, &all); err != nil {
		return err
	}
	accepted, refused, stale := 0, 0, 0
	for _, d := range all {
		accepted, refused, stale = accepted+d.Accepted, refused+d.Refused, stale+d.StaleTook
	}
	r.Reach("pauses", o.Pauses, o.Pauses)
	r.Count("writes admitted", accepted)
	r.Count("stale writes attempted", refused+stale)
	r.Count("stale writes admitted", stale)
	switch {
	case o.Unfenced && stale == 0:
		r.Violation("without its check the storage was not corrupted either: the attack proves nothing")
	case !o.Unfenced && stale > 0:
		r.Violation("%d stale writes were admitted", stale)
	}
	if (refused+stale)*attempted < o.Pauses {
		r.Violation("only %d stale writes were attempted in %d pauses: the attack proves little", refused+stale, o.Pauses)
	}
	return nil
}
