package clients

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"fencepost/client"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

// Trials send every client SIGTERM, stop it, and freeze its gateway, at random moments from before
// it asks for the lock until after it has released it.
type Trials struct {
	Dir   string // the path of examples
	Each  int    // trials of each client and each of the three
	Lanes int    // how many are under way at a time, two or more

	only string // the name of a client; empty: all
}

// harm is what happens in a trial.
type harm string

const (
	terminated harm = "SIGTERM"
	stopped    harm = "SIGSTOP"
	frozen     harm = "a frozen gateway"
)

var harms = []harm{terminated, stopped, frozen}

// moment is when it happens.
type moment string

const started moment = "start"

func sent(method string) moment     { return moment(method + " is sent") }
func answered(method string) moment { return moment(method + " is answered") }

// moments are those that a trial may choose. Of some there are several, of which it chooses one.
var moments = []struct {
	moment
	most  int
	later time.Duration // up to so much later; 0: at once, or a little later
}{
	{started, 1, 400 * time.Millisecond},
	{sent("POST"), 1, 0},
	{answered("POST"), 1, 0},
	{answered("POST"), 1, 5 * time.Second}, // any time
	{sent("PUT"), 3, 0},
	{answered("PUT"), 3, 0},
	{sent("write"), parts, 0},
	{answered("write"), parts, 0},
	{sent("DELETE"), 1, 0},
	{answered("DELETE"), 1, 0},
}

// little is how much later at most what happens at about a moment does.
const little = 50 * time.Millisecond

// marks counts trials, also of runs beside each other that draw the same numbers.
var marks atomic.Int64

// bench is a system that has one trial at a time.
type bench struct {
	*Trials
	s      *system.System
	judge  *client.Client
	r      *check.Result
	stalls *stalls
	sums   *sums
}

// sums is what all trials have come to.
type sums struct {
	mu       sync.Mutex
	early    int                      // trials that had ended before their moment
	inFlight int                      // writes that a stop has kept until after the deadline
	stale    int                      // those of them that the storage has refused
	overlaps int                      // writes of commands while lockctl was stopped
	starved  int                      // writes late by less than the machine has kept processes waiting
	crossed  int                      // grants that were answered when their client had left, and had been released before
	gaveUp   int                      // clients that gave up a lease that could be kept, on a machine that kept processes waiting
	slowest  map[string]time.Duration // from SIGTERM to the end of a client
	longest  map[string]time.Duration // that a lock was held when its client had ended and was not to be held any more
}

// job is a trial to be made.
type job struct {
	number int
	subject
	harm
}

// Run makes the trials: half of them at a gateway that is alone, half beside a second one.
func (o Trials) Run(ctx context.Context, r *check.Result) error {
	dir, err := os.MkdirTemp("", "fencepost-trials")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, missing, err := subjects(o.Dir, dir)
	if err != nil {
		return err
	}
	for _, command := range missing {
		r.Note("%s is not there: no trials of its program", command)
	}
	watching := watchStalls()
	watching.watchStarts()
	sums := &sums{slowest: map[string]time.Duration{}, longest: map[string]time.Duration{}}
	jobs := o.jobs(all, r)
	errs := make([]error, max(2, o.Lanes))
	var running sync.WaitGroup
	for n := range errs {
		running.Go(func() {
			b := &bench{Trials: &o, r: r, stalls: watching, sums: sums}
			if errs[n] = b.open(n); errs[n] != nil {
				return
			}
			for j := range jobs[n%2] {
				if ctx.Err() != nil {
					break
				}
				if err := b.play(ctx, j); err != nil && ctx.Err() == nil {
					errs[n] = fmt.Errorf("trial %d of %s, %s: %w", j.number, j.name, j.harm, err)
					break
				}
			}
			errs[n] = errors.Join(errs[n], b.close())
		})
	}
	running.Wait()
	watching.stop()
	sums.report(r, watching)
	return errors.Join(errs...)
}

// jobs returns the trials in a random order, those at a gateway that is alone first.
func (o Trials) jobs(all []subject, r *check.Result) (jobs [2]chan job) {
	var list []job
	for _, s := range all {
		if o.only != "" && s.name != o.only {
			continue
		}
		for _, h := range harms {
			for range o.Each {
				list = append(list, job{len(list), s, h})
			}
			r.Reach("trials of "+s.name, 0, o.Each)
		}
	}
	random := r.Random(-2)
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for i := range jobs {
		jobs[i] = make(chan job, len(list))
	}
	for _, j := range list {
		jobs[j.number%2] <- j
	}
	for i := range jobs {
		close(jobs[i])
	}
	return jobs
}

// open starts the system of a bench: an embedded store's gateway, or two gateways on one Redis.
func (b *bench) open(n int) (err error) {
	o := system.Options{Store: system.Embedded}
	if n%2 == 1 {
		o = system.Options{Store: system.Redis, Gateways: 2}
	}
	if b.s, err = system.Start(o); err != nil {
		return err
	}
	last := b.s.Gateways[len(b.s.Gateways)-1]
	b.judge, err = client.New(client.Options{Addresses: []string{last.URL()}, Owner: nextOwner, Patience: patience})
	if err != nil {
		return errors.Join(err, b.s.Close())
	}
	return nil
}

func (b *bench) close() error { return errors.Join(b.judge.Close(), b.s.Close()) }

// triesOfTrial: a client may have ended before the moment that was chosen. Then another one is.
const triesOfTrial = 5

func (b *bench) play(ctx context.Context, j job) error {
	for i := range triesOfTrial {
		random := b.r.Random(j.number*triesOfTrial + i)
		t, err := b.newTrial(j, random)
		if err != nil {
			return err
		}
		if err := t.run(ctx); err != nil {
			return err
		}
		if !t.struck.IsZero() {
			b.r.Reach("trials of "+j.name, 1, 0)
			return nil
		}
		b.sums.add(&b.sums.early)
	}
	return nil // the report says that there is one less
}

// trial is one run of a client, with what happens to it.
type trial struct {
	*bench
	job
	when   moment
	nth    int
	delay  time.Duration // from the moment until it happens
	keeps  time.Duration // for how long what was on its way is kept then
	lasts  time.Duration // until the client goes on, or the gateway
	whole  bool          // all processes of the client are stopped, and not the first alone; SIGTERM comes to its process group
	rival  bool          // another one waits for the lock when the client is stopped
	mark   string        // in the environment of all that the client starts
	st     *storage
	cmd    *exec.Cmd
	said   *os.File
	began  time.Time
	up     chan struct{} // closed when it is known which process the client is: it may have asked before
	exited chan struct{}
	healed chan struct{} // closed when what was stopped or frozen goes on
	succ   sync.WaitGroup

	mu       sync.Mutex
	reached  map[moment]int
	due      bool
	over     bool // the client has ended
	crossed  bool // a grant and a release of it have crossed
	asked    []*exchange
	struck   time.Time // when it happened
	healedAt time.Time
	exitedAt time.Time
	faults   []error // of this program, and not of the client
}

func (b *bench) newTrial(j job, random *rand.Rand) (*trial, error) {
	t := &trial{bench: b, job: j, up: make(chan struct{}), exited: make(chan struct{}), healed: make(chan struct{}), reached: map[moment]int{}}
	m := moments[random.IntN(len(moments))]
	t.when, t.nth = m.moment, 1+random.IntN(m.most)
	later := m.later
	if later == 0 && random.IntN(2) == 0 {
		later = little
	}
	if later > 0 {
		t.delay = time.Duration(random.Int64N(int64(later)))
	}
	if random.IntN(2) == 0 {
		t.keeps = time.Duration(random.Int64N(int64(little)))
	}
	t.lasts = time.Duration(random.Int64N(int64(2 * ttlOfTrials)))
	if t.harm == stopped && t.when == sent("write") && random.IntN(2) == 0 {
		t.delay, t.keeps = 0, t.lasts // the write is on its way meanwhile
	}
	t.whole, t.rival = random.IntN(2) == 0, random.IntN(2) == 0
	t.mark = fmt.Sprintf("CLIENT_TRIAL=%d.%d", os.Getpid(), marks.Add(1))
	t.st = newStorage(0)
	t.st.reach = t.reach
	var err error
	t.said, err = os.CreateTemp("", "fencepost-trial")
	return t, err
}

// run makes the trial, and judges it.
func (t *trial) run(ctx context.Context) error {
	defer t.st.server.Close()
	defer func() { t.said.Close(); os.Remove(t.said.Name()) }()
	var addresses []string
	for _, g := range t.s.Gateways {
		r, err := newRelay(t, g.Addr())
		if err != nil {
			return err
		}
		defer r.close()
		addresses = append(addresses, r.url())
	}
	if err := t.start(addresses); err != nil {
		return err
	}
	t.reach(started)
	late := time.AfterFunc(patienceOfPrograms, func() {
		t.violation("it does not end")
		_ = syscall.Kill(-t.cmd.Process.Pid, syscall.SIGKILL)
	})
	<-t.exited
	late.Stop()
	if !t.struckAt().IsZero() {
		<-t.healed
	}
	t.succ.Wait()
	if err := errors.Join(t.faults...); err != nil {
		return err
	}
	return t.assess(ctx)
}

func (t *trial) start(addresses []string) error {
	t.cmd = exec.Command(t.args[0], t.args[1:]...)
	t.cmd.Env = append(environment(), "FENCEPOST="+strings.Join(addresses, ","), "STORAGE="+t.st.server.URL, "no_proxy=*", t.mark)
	t.cmd.Env = append(t.cmd.Env, t.env...)
	t.cmd.Stdout, t.cmd.Stderr = t.said, t.said
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // a client that is stopped would stay for good
	t.began = time.Now()
	if err := t.cmd.Start(); err != nil {
		return err
	}
	close(t.up)
	go func() {
		_ = t.cmd.Wait() // its status is judged later
		t.mu.Lock()
		t.over, t.exitedAt = true, time.Now()
		t.mu.Unlock()
		close(t.exited)
	}()
	return nil
}

// reach says that a moment has come. When it is the one that the trial has chosen, it happens: before
// what is on its way arrives.
func (t *trial) reach(m moment) {
	t.mu.Lock()
	t.reached[m]++
	due := m == t.when && t.reached[m] == t.nth && !t.due
	t.due = t.due || due
	t.mu.Unlock()
	switch {
	case !due:
	case t.delay > 0:
		time.AfterFunc(t.delay, t.strike)
	default:
		t.strike()
		time.Sleep(t.keeps)
	}
}

// strike has it happen, and be over when it has lasted.
func (t *trial) strike() {
	<-t.up
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.struck = time.Now()
	granted := !t.deadline(time.Now()).IsZero()
	t.mu.Unlock()
	heal := func() error { return nil }
	switch t.harm {
	case terminated:
		pid := t.cmd.Process.Pid
		if t.group && t.whole {
			pid = -pid
		}
		taken := 1
		if syscall.Kill(pid, syscall.SIGTERM) != nil { // it has ended
			taken = 0
		}
		t.r.Harms.Add(string(t.harm), check.Harm{To: t.name, What: "signals taken", N: taken})
		t.lasts = 0
	case stopped:
		all := t.halt()
		heal = func() error {
			t.r.Harms.Add(string(t.harm), check.Harm{To: t.name, What: "processes standing still", N: system.Standing(all...)})
			for i := range all { // the work goes on before those who watch over it
				_ = syscall.Kill(all[len(all)-1-i], syscall.SIGCONT)
			}
			return nil
		}
		if granted && t.rival {
			t.succ.Go(t.succeed)
		}
	case frozen:
		g := t.s.Gateways[0]
		t.fault(g.Pause())
		heal = func() error {
			t.r.Harms.Add(string(t.harm), check.Harm{To: "gateway of " + t.name, What: "processes standing still", N: system.Standing(g.PID())})
			return g.Resume()
		}
	}
	time.AfterFunc(t.lasts, func() {
		t.fault(heal())
		t.mu.Lock()
		t.healedAt = time.Now()
		t.mu.Unlock()
		close(t.healed)
	})
}

// halt stops the client, or all that has come of it, and returns what was stopped, parents first.
func (t *trial) halt() (all []int) {
	seen := map[int]bool{}
	for {
		more := []int{t.cmd.Process.Pid}
		if t.whole {
			more = treeOf(t.cmd.Process.Pid)
		}
		fresh := false
		for _, pid := range more {
			if !seen[pid] {
				seen[pid], fresh = true, true
				all = append(all, pid)
				_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
			}
		}
		if !fresh { // what was stopped starts nothing more
			return all
		}
	}
}

// nextOwner is the label of those who have the lock after a client.
const nextOwner = "next"

// succeed has another one take the lock when the client has lost it or has ended, and write.
func (t *trial) succeed() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	lease, err := t.judge.Acquire(ctx, lockOfPrograms, client.TTL(ttlOfTrials))
	if err != nil {
		t.fault(fmt.Errorf("another one did not get the lock: %w", err))
		return
	}
	t.st.take(lease.Token())
	t.fault(lease.Release(ctx))
}

func (t *trial) fault(err error) {
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.faults = append(t.faults, err)
	}
}

func (t *trial) struckAt() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.struck
}

// deadline returns until when the client may count on its lease, by the answers that it may have read by a
// moment; zero: there is none. t.mu is held.
func (t *trial) deadline(at time.Time) (d time.Time) {
	for _, x := range t.asked {
		if x.lives > 0 && !x.answered.After(at) && x.sent.Add(x.lives).After(d) {
			d = x.sent.Add(x.lives)
		}
	}
	return d
}
